"""The first convolution, 3×3 on the three channels of an image, as a product of neighbourhoods with the weights.

A convolution of three channels leaves the matrix units idle and takes longer than one of sixty-four. Both directions
stay in one pass over the activations: forward also sums up what batch norm needs, and backward takes the gradient
through batch norm and into the product without writing it down. SPLIT is as in `norm`.
"""

import triton
import triton.language as tl

from aag.kernels.norm import norm_backward_factors
from aag.kernels.steps import stepped

WIDTH = 32  # 27 values a pixel, filled up with zeros to what a matrix product likes


@triton.jit
def patches(images, mean, std, out, height, width, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    """out [B · H · W, WIDTH] ← for (row, column, channel) around each pixel, the value less mean over std.

    images: uint8 [B, 3, H, W]; or float32, which is normalised already. Outside lie zeros, as a convolution's padding
    has them.
    """
    pixels = height * width
    image = tl.program_id(0).to(tl.int64)
    pixel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    k = tl.arange(0, WIDTH)
    channel = k % 3
    y = (pixel // width)[:, None] + (k // 9 - 1)[None, :]
    x = (pixel % width)[:, None] + (k // 3 % 3 - 1)[None, :]
    inside = (y >= 0) & (y < height) & (x >= 0) & (x < width) & (k < 27)[None, :] & (pixel < pixels)[:, None]
    at = images + image * 3 * pixels + channel[None, :] * pixels + y * width + x
    value = tl.load(at, mask=inside, other=0).to(tl.float32)
    if images.dtype.element_ty == tl.uint8:
        value = (value / 255 - tl.load(mean + channel)[None, :]) / tl.load(std + channel)[None, :]
    value = tl.where(inside, value, 0.0)
    row = (image * pixels + pixel)[:, None] * WIDTH + k[None, :]
    tl.store(out + row, value.to(out.dtype.element_ty), mask=(pixel < pixels)[:, None])


@triton.jit
def first_convolution(
    around, weight, out, partial, rows, channels,
    SPLIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, WIDTH: tl.constexpr, PRECISE: tl.constexpr,
):  # fmt: skip
    """out [rows, C] ← around [rows, WIDTH] · weight [C, WIDTH]ᵀ; partial ← its sums and sums of squares."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    if SPLIT:
        lot = tl.program_id(2).to(tl.int64)
        around += lot * rows * WIDTH
        out += lot * rows * channels
        partial += lot * programs * 2 * channels
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    k = tl.arange(0, WIDTH)
    taps = tl.load(weight + channel[None, :] * WIDTH + k[:, None])
    total = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    squares = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    wide = tl.full((), BLOCK_M, tl.int64)
    row = tl.arange(0, BLOCK_M)
    precision: tl.constexpr = "ieee" if PRECISE else "tf32"
    for tile in range(program, tl.cdiv(rows, BLOCK_M), programs):
        inside = (tile * BLOCK_M + row < rows)[:, None]
        near = tl.load(around + tile * wide * WIDTH + row[:, None] * WIDTH + k[None, :], mask=inside, other=0.0)
        result = tl.dot(near, taps, input_precision=precision).to(out.dtype.element_ty)
        tl.store(out + tile * wide * channels + row[:, None] * channels + channel[None, :], result, mask=inside)
        value = result.to(tl.float32)
        total += value
        squares += value * value
    at = partial + program * 2 * channels + channel
    tl.store(at, tl.sum(total, axis=0))
    tl.store(at + channels, tl.sum(squares, axis=0))


@triton.jit(do_not_specialize=["parts"])
def first_gradient(
    around, grad, z, partial, moments, grad_weight, grad_bias, weight, bias, velocity, bias_velocity, lr, shares,
    rows, channels, parts, momentum, decay,
    MASK: tl.constexpr, LEARN: tl.constexpr, RULE: tl.constexpr, SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr, WIDTH: tl.constexpr, PRECISE: tl.constexpr,
):  # fmt: skip
    """shares [lots · programs, C, WIDTH] ← the programs' parts of ∂weights; all else as in `norm.backward_inputs`."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    if SPLIT:
        lot = tl.program_id(2).to(tl.int64)
        around += lot * rows * WIDTH
        grad += lot * rows * channels
        z += lot * rows * channels
        shares += lot * programs * channels * WIDTH
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    scale, shift, of_x, constant = norm_backward_factors(
        program, partial, moments, grad_weight, grad_bias, weight, bias, velocity, bias_velocity, lr,
        rows, channels, parts, channel, momentum, decay, LEARN, RULE, SPLIT, BLOCK_C,
    )  # fmt: skip
    total = tl.zeros((BLOCK_C, WIDTH), tl.float32)
    wide = tl.full((), BLOCK_M, tl.int64)
    row = tl.arange(0, BLOCK_M)
    k = tl.arange(0, WIDTH)
    precision: tl.constexpr = "ieee" if PRECISE else "tf32"
    for tile in range(program, tl.cdiv(rows, BLOCK_M), programs):
        inside = (tile * BLOCK_M + row < rows)[:, None]
        at = tile * wide * channels + row[:, None] * channels + channel[None, :]
        value = tl.load(z + at, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
        slope = tl.load(grad + at, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
        near = tl.load(around + tile * wide * WIDTH + row[:, None] * WIDTH + k[None, :], mask=inside, other=0.0)
        if MASK:
            slope = tl.where(value * scale[None, :] + shift[None, :] > 0, slope, 0.0)
        of_z = scale[None, :] * slope + of_x[None, :] * value + constant[None, :]
        of_z = tl.where(inside, of_z, 0.0).to(near.dtype)
        total = tl.dot(tl.trans(of_z), near, total, input_precision=precision)
    tl.store(shares + (program * channels + channel)[:, None] * WIDTH + k[None, :], total)


@triton.jit(do_not_specialize=["parts"])
def first_step(
    shares, weight, velocity, flat, grad, lr, channels, parts, momentum, decay,
    LEARN: tl.constexpr, RULE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The weights' step (LEARN), with their copy `flat` [C, WIDTH] in low precision; or their gradient.

    weight, velocity, grad: [C, 27] in memory. One program a channel.
    """
    PARTS: tl.constexpr = 64
    channel = tl.program_id(0)
    part = tl.arange(0, PARTS)
    k = tl.arange(0, WIDTH)
    total = tl.zeros((PARTS, WIDTH), tl.float32)
    for start in range(0, parts, PARTS):
        at = shares + ((start + part)[:, None] * channels + channel) * WIDTH + k[None, :]
        total += tl.load(at, mask=(start + part < parts)[:, None], other=0.0)
    slope = tl.sum(total, axis=0)
    at = channel * 27 + k
    real = k < 27
    if LEARN:
        value, speed = tl.load(weight + at, mask=real, other=0.0), tl.load(velocity + at, mask=real, other=0.0)
        value, speed = stepped(value, slope, speed, tl.load(lr), momentum, decay, RULE)
        tl.store(velocity + at, speed, mask=real)
        tl.store(weight + at, value, mask=real)
        tl.store(flat + channel * WIDTH + k, value.to(flat.dtype.element_ty), mask=real)
    else:
        tl.store(grad + at, slope, mask=real)
