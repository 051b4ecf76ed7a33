"""The stem convolution, 3×3 on three channels, as a matrix product of patches (im2col) with the weights.

A convolution of three channels cannot fill the matrix units and takes longer than one of sixty-four. Each direction is
one pass over the activations: forward also sums up what batch norm needs, and backward takes the gradient through batch
norm and into the product without storing it. GROUPED is as in `norm`.
"""

import triton
import triton.language as tl

from aag.kernels.norm import norm_backward_factors
from aag.kernels.steps import sgd_update

PATCH = 32  # 3·3·3 values per patch, padded with zeros to a size for the matrix units


@triton.jit
def im2col(images, mean, std, out, height, width, BLOCK: tl.constexpr, PATCH: tl.constexpr):
    """out [B · H · W, PATCH] ← the normalised 3×3 patch of each pixel, in the order (row, column, channel).

    images: uint8 [B, 3, H, W], or float32 that is normalised already. Zeros outside the image, as in a convolution.
    """
    pixels = height * width
    image = tl.program_id(0).to(tl.int64)
    pixel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    k = tl.arange(0, PATCH)
    channel = k % 3
    y = (pixel // width)[:, None] + (k // 9 - 1)[None, :]
    x = (pixel % width)[:, None] + (k // 3 % 3 - 1)[None, :]
    inside = (y >= 0) & (y < height) & (x >= 0) & (x < width) & (k < 27)[None, :] & (pixel < pixels)[:, None]
    at = images + image * 3 * pixels + channel[None, :] * pixels + y * width + x
    value = tl.load(at, mask=inside, other=0).to(tl.float32)
    if images.dtype.element_ty == tl.uint8:
        value = (value / 255 - tl.load(mean + channel)[None, :]) / tl.load(std + channel)[None, :]
    value = tl.where(inside, value, 0.0)
    row = (image * pixels + pixel)[:, None] * PATCH + k[None, :]
    tl.store(out + row, value.to(out.dtype.element_ty), mask=(pixel < pixels)[:, None])


@triton.jit
def stem_convolution(
    patches, weight, out, partial, rows, channels,
    GROUPED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, PATCH: tl.constexpr, PRECISE: tl.constexpr,
):  # fmt: skip
    """out [rows, C] ← patches [rows, PATCH] · weight [C, PATCH]ᵀ; partial ← its sums and sums of squares."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    if GROUPED:
        group = tl.program_id(2).to(tl.int64)
        patches += group * rows * PATCH
        out += group * rows * channels
        partial += group * programs * 2 * channels
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    k = tl.arange(0, PATCH)
    taps = tl.load(weight + channel[None, :] * PATCH + k[:, None])
    total = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    squares = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    tile_rows = tl.full((), BLOCK_M, tl.int64)
    row = tl.arange(0, BLOCK_M)
    precision: tl.constexpr = "ieee" if PRECISE else "tf32"
    for tile in range(program, tl.cdiv(rows, BLOCK_M), programs):
        inside = (tile * BLOCK_M + row < rows)[:, None]
        patch = tl.load(patches + tile * tile_rows * PATCH + row[:, None] * PATCH + k[None, :], mask=inside, other=0.0)
        result = tl.dot(patch, taps, input_precision=precision).to(out.dtype.element_ty)
        tl.store(out + tile * tile_rows * channels + row[:, None] * channels + channel[None, :], result, mask=inside)
        value = result.to(tl.float32)
        total += value
        squares += value * value
    at = partial + program * 2 * channels + channel
    tl.store(at, tl.sum(total, axis=0))
    tl.store(at + channels, tl.sum(squares, axis=0))


@triton.jit(do_not_specialize=["parts"])
def stem_gradient(
    patches, grad, z, partial, moments, grad_weight, grad_bias, weight, bias, velocity, bias_velocity, lr,
    grad_partial, rows, channels, parts, momentum, decay,
    MASK: tl.constexpr, UPDATE: tl.constexpr, RULE: tl.constexpr, GROUPED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, PATCH: tl.constexpr, PRECISE: tl.constexpr,
):  # fmt: skip
    """grad_partial [groups · programs, C, PATCH] ← partial sums of ∂weights; the rest as in `backward_inputs`."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    if GROUPED:
        group = tl.program_id(2).to(tl.int64)
        patches += group * rows * PATCH
        grad += group * rows * channels
        z += group * rows * channels
        grad_partial += group * programs * channels * PATCH
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    scale, shift, x_factor, constant = norm_backward_factors(
        program, partial, moments, grad_weight, grad_bias, weight, bias, velocity, bias_velocity, lr,
        rows, channels, parts, channel, momentum, decay, UPDATE, RULE, GROUPED, BLOCK_C,
    )  # fmt: skip
    total = tl.zeros((BLOCK_C, PATCH), tl.float32)
    tile_rows = tl.full((), BLOCK_M, tl.int64)
    row = tl.arange(0, BLOCK_M)
    k = tl.arange(0, PATCH)
    precision: tl.constexpr = "ieee" if PRECISE else "tf32"
    for tile in range(program, tl.cdiv(rows, BLOCK_M), programs):
        inside = (tile * BLOCK_M + row < rows)[:, None]
        at = tile * tile_rows * channels + row[:, None] * channels + channel[None, :]
        value = tl.load(z + at, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
        dy = tl.load(grad + at, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
        patch = tl.load(patches + tile * tile_rows * PATCH + row[:, None] * PATCH + k[None, :], mask=inside, other=0.0)
        if MASK:
            dy = tl.where(value * scale[None, :] + shift[None, :] > 0, dy, 0.0)
        dz = scale[None, :] * dy + x_factor[None, :] * value + constant[None, :]
        dz = tl.where(inside, dz, 0.0).to(patch.dtype)
        total = tl.dot(tl.trans(dz), patch, total, input_precision=precision)
    tl.store(grad_partial + (program * channels + channel)[:, None] * PATCH + k[None, :], total)


@triton.jit(do_not_specialize=["parts"])
def stem_step(
    grad_partial, weight, velocity, flat, grad, lr, channels, parts, momentum, decay,
    UPDATE: tl.constexpr, RULE: tl.constexpr, PATCH: tl.constexpr,
):  # fmt: skip
    """Update the weights and their low-precision copy `flat` [C, PATCH] (UPDATE), or store their gradient.

    weight, velocity, grad: [C, 27] in memory. One program per channel.
    """
    PARTS: tl.constexpr = 64
    channel = tl.program_id(0)
    part = tl.arange(0, PARTS)
    k = tl.arange(0, PATCH)
    total = tl.zeros((PARTS, PATCH), tl.float32)
    for start in range(0, parts, PARTS):
        at = grad_partial + ((start + part)[:, None] * channels + channel) * PATCH + k[None, :]
        total += tl.load(at, mask=(start + part < parts)[:, None], other=0.0)
    gradient = tl.sum(total, axis=0)
    at = channel * 27 + k
    real = k < 27
    if UPDATE:
        w, v = tl.load(weight + at, mask=real, other=0.0), tl.load(velocity + at, mask=real, other=0.0)
        w, v = sgd_update(w, gradient, v, tl.load(lr), momentum, decay, RULE)
        tl.store(velocity + at, v, mask=real)
        tl.store(weight + at, w, mask=real)
        tl.store(flat + channel * PATCH + k, w.to(flat.dtype.element_ty), mask=real)
    else:
        tl.store(grad + at, gradient, mask=real)
