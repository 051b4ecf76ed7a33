"""`aag.rng` as Triton functions, bit for bit."""

# mypy: ignore-errors
import torch
import triton
import triton.language as tl
from torch import Tensor

from aag.kernels import launch

BLOCK = 64  # images per program


@triton.jit
def _mix(h):
    """rng._mix of 32-bit words, uint32."""
    return _finish_mix(h ^ (h >> 16))


@triton.jit
def _finish_mix(h):
    """rng._mix after its first step."""
    h = h * 0x7FEB352D
    h = h ^ (h >> 15)
    h = h * 0x2C1B3C6D
    h = h ^ (h >> 14)
    h = h * 0x297A2D39
    return h ^ (h >> 16)


@triton.jit
def uniform(rng_key, slot):
    """rng.uniforms at one slot of each key, int64: float32."""
    word = _mix((tl.zeros_like(rng_key) + slot).to(tl.uint32) + 0x3C6EF372)
    h = rng_key ^ word.to(tl.int64)
    h = _finish_mix((h ^ (h >> 16)).to(tl.uint32))  # a key's bits above 32 matter in the first shift only
    return (h >> 8).to(tl.int32).to(tl.float32) * 5.9604644775390625e-08  # 2^-24


@triton.jit(do_not_specialize=["image", "n", "prefix", "mixed_view"])
def keys_kernel(image, out, n, prefix, mixed_view, BLOCK: tl.constexpr):
    """Write the keys of images: see `keys`. Both words are passed as int32."""
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(image + lane, mask=lane < n, other=0).to(tl.uint32)
    key = _mix(_mix(word + 0x3C6EF372) ^ prefix.to(tl.uint32))
    key = _mix(key ^ mixed_view.to(tl.uint32))
    tl.store(out + lane, key.to(tl.int64), mask=lane < n)


def keys(prefix: int, image: Tensor, mixed_view: int) -> Tensor:
    """Return keys int64 [B] of images int64 [B]; `prefix`: hash of seed and epoch; `mixed_view`: rng._premix(view)."""
    image = image.contiguous()
    out, n = torch.empty_like(image), len(image)
    grid = (triton.cdiv(n, BLOCK),)
    launch(keys_kernel, grid, image, out, n, _signed(prefix), _signed(mixed_view), BLOCK=BLOCK, num_warps=2)
    return out


def _signed(word: int) -> int:
    return word - (word >> 31 << 32)
