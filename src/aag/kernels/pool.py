"""Pooling, channels last; forward and backward read and write each pixel once."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from aag.kernels import channel_block, launch


@triton.jit
def _corner(row, height, width, out_height, out_width):
    """Return the row of the upper left of the four pixels that are pooled into pixel `row`."""
    pixel = row % (out_height * out_width)
    image = (row // (out_height * out_width)).to(tl.int64)
    return (image * height + 2 * (pixel // out_width)) * width + 2 * (pixel % out_width)


@triton.jit
def _pool(
    x, y, which, rows, channels, height, width, out_height, out_width, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr
):
    """y ← the largest of each four pixels, which ← its place 0 … 3 (the first, if several are equal)."""
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = (row < rows)[:, None]
    corner = _corner(row, height, width, out_height, out_width)[:, None] * channels + channel[None, :]
    best = tl.load(x + corner, mask=inside, other=0.0)
    place = tl.zeros((BLOCK_M, BLOCK_C), tl.int8)
    for at in tl.static_range(1, 4):
        value = tl.load(x + corner + (at // 2 * width + at % 2) * channels, mask=inside, other=0.0)
        place = tl.where(value > best, at, place).to(tl.int8)
        best = tl.where(value > best, value, best)
    to = row.to(tl.int64)[:, None] * channels + channel[None, :]
    tl.store(y + to, best, mask=inside)
    tl.store(which + to, place, mask=inside)


@triton.jit
def _pool_backward(
    grad, which, grad_x, rows, channels, height, width, out_height, out_width,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """grad_x ← each gradient at the place of its maximum, zeros at the other three."""
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = (row < rows)[:, None]
    at = row.to(tl.int64)[:, None] * channels + channel[None, :]
    value = tl.load(grad + at, mask=inside, other=0.0)
    place = tl.load(which + at, mask=inside, other=0)
    corner = _corner(row, height, width, out_height, out_width)[:, None] * channels + channel[None, :]
    for to in tl.static_range(4):
        there = grad_x + corner + (to // 2 * width + to % 2) * channels
        tl.store(there, tl.where(place == to, value, 0.0).to(value.dtype), mask=inside)


class _MaxPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        half = x[:, :, : x.shape[2] // 2, : x.shape[3] // 2]
        y = torch.empty_like(half, memory_format=torch.channels_last)
        which = torch.empty_like(y, dtype=torch.int8)
        grid, sizes, blocks = _launch_sizes(x, y)
        launch(_pool, grid, x, y, which, *sizes, **blocks)
        ctx.save_for_backward(which)
        ctx.shape = x.shape
        return y

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        (which,) = ctx.saved_tensors
        grad = grad.contiguous(memory_format=torch.channels_last)
        make = (
            torch.empty if all(side % 2 == 0 for side in ctx.shape[2:]) else torch.zeros
        )  # an odd side leaves a pixel without gradient
        b, c, h, w = ctx.shape
        grad_x = make(b, h, w, c, dtype=grad.dtype, device=grad.device).permute(0, 3, 1, 2)
        grid, sizes, blocks = _launch_sizes(grad_x, grad)
        launch(_pool_backward, grid, grad, which, grad_x, *sizes, **blocks)
        return grad_x


def _launch_sizes(x: Tensor, y: Tensor) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, int]]:
    """Return grid, size arguments and block sizes for pooling x into y."""
    b, channels, h, w = x.shape
    rows = b * y.shape[2] * y.shape[3]
    block_c = channel_block(channels)
    block_m = 2048 // block_c
    grid = (triton.cdiv(rows, block_m), channels // block_c)
    return grid, (rows, channels, h, w, *y.shape[2:]), {"BLOCK_M": block_m, "BLOCK_C": block_c, "num_warps": 4}


def max_pool(x: Tensor) -> Tensor:
    """[B, C, H, W] → [B, C, H // 2, W // 2], as `F.max_pool2d(x, 2)`."""
    return _MaxPool.apply(x)


# --- the mean over all pixels -----------------------------------------------------------------------------------------


@triton.jit
def _mean(x, y, pixels, channels, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    image = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    pixel = tl.arange(0, BLOCK_P)
    total = tl.zeros((BLOCK_P, BLOCK_C), tl.float32)
    for start in range(0, pixels, BLOCK_P):
        at = (image * pixels + start + pixel)[:, None] * channels + channel[None, :]
        total += tl.load(x + at, mask=(start + pixel < pixels)[:, None], other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / pixels
    tl.store(y + image * channels + channel, mean.to(y.dtype.element_ty))


@triton.jit
def _mean_backward(grad, grad_x, pixels, channels, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr):
    image = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    pixel = tl.arange(0, BLOCK_P)
    value = tl.load(grad + image * channels + channel).to(tl.float32) / pixels
    value = tl.broadcast_to(value.to(grad_x.dtype.element_ty)[None, :], (BLOCK_P, BLOCK_C))
    for start in range(0, pixels, BLOCK_P):
        at = (image * pixels + start + pixel)[:, None] * channels + channel[None, :]
        tl.store(grad_x + at, value, mask=(start + pixel < pixels)[:, None])


class _MeanPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        b, c, h, w = ctx.shape = x.shape
        y = x.new_empty(b, c)
        block = channel_block(c)
        launch(_mean, (b, c // block), x, y, h * w, c, BLOCK_P=16, BLOCK_C=block, num_warps=1)
        return y

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        b, c, h, w = ctx.shape
        grad_x = grad.new_empty(b, h, w, c).permute(0, 3, 1, 2)
        block = channel_block(c)
        launch(
            _mean_backward, (b, c // block), grad.contiguous(), grad_x, h * w, c, BLOCK_P=16, BLOCK_C=block, num_warps=1
        )
        return grad_x


def mean_pool(x: Tensor) -> Tensor:
    """[B, C, H, W] → [B, C], as `x.mean(dim=(2, 3))`."""
    return _MeanPool.apply(x)
