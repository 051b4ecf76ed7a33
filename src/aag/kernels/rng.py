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
    return _stir(h ^ (h >> 16))


@triton.jit
def _stir(h):
    """The same after its first step."""
    h = h * 0x7FEB352D
    h = h ^ (h >> 15)
    h = h * 0x2C1B3C6D
    h = h ^ (h >> 14)
    h = h * 0x297A2D39
    return h ^ (h >> 16)


@triton.jit
def uniform(key, slot):
    """rng.uniforms in one slot of each key, int64: float32."""
    word = _mix((tl.zeros_like(key) + slot).to(tl.uint32) + 0x3C6EF372)
    h = key ^ word.to(tl.int64)
    h = _stir((h ^ (h >> 16)).to(tl.uint32))  # a key's bits above 32 show in the first shift, and nowhere else
    return (h >> 8).to(tl.int32).to(tl.float32) * 5.9604644775390625e-08  # 2^-24


@triton.jit(do_not_specialize=["image", "n", "seen", "view"])
def fold_keys(image, out, n, seen, view, BLOCK: tl.constexpr):
    """Keys of images, given the hash of what comes before them and the mixed view, both as int32."""
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(image + lane, mask=lane < n, other=0).to(tl.uint32)
    key = _mix(_mix(word + 0x3C6EF372) ^ seen.to(tl.uint32))
    key = _mix(key ^ view.to(tl.uint32))
    tl.store(out + lane, key.to(tl.int64), mask=lane < n)


def keys(seen: int, image: Tensor, view: int) -> Tensor:
    """int64 [B] for images int64 [B], from two 32-bit words: the hash before the image, and the mixed view."""
    image = image.contiguous()
    out = torch.empty_like(image)
    launch(
        fold_keys,
        (triton.cdiv(len(image), BLOCK),),
        image,
        out,
        len(image),
        _signed(seen),
        _signed(view),
        BLOCK=BLOCK,
        num_warps=2,
    )
    return out


def _signed(word: int) -> int:
    return word - (word >> 31 << 32)
