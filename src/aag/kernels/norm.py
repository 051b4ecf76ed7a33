"""Batch norm in training, fused with its neighbours in a residual network: four passes over rows [M, C].

Between two convolutions a network is bound by memory, so the cost is how often a tensor is read or written:

    statistics        reads x
    normalise         reads x (and the shortcut), writes y
    backward_sums     reads ∂y (two parts where y is used twice) and x; writes the masked ∂y where it is needed again
    backward_inputs   reads the masked ∂y and x, writes ∂x

Rows are all pixels of all images, channels last. A few programs share the rows of a reduction and store their sums in
`partial` [programs, 2, C]. Each program of the next pass adds these up, in the same order, before its own rows.
Reductions go from the last row to the first, because the cache still holds the end of x. They end at the beginning of
x, where the next pass starts.

GROUPED: ghost batch norm, as in `aag.nets.layers.GhostBatchNorm`. The grid's third dimension is the group, `rows` are
those of one group, and `partial` and `moments` have one entry per group: [groups, programs, 2, C], [groups, 4, C].
The first program of the first group updates the running statistics and the weights, which all groups share.
"""

import triton
import triton.language as tl

from aag.kernels.steps import sgd_update
from aag.kernels.sums import group_gradients, group_statistics, totals


@triton.jit
def subsample(row, height, width, STRIDE: tl.constexpr):
    """Return each pixel's row in the subsampled skip tensor, and whether it is in there."""
    pixel = row % (height * width)
    y = pixel // width
    x = pixel % width
    skip_pixels = ((height + STRIDE - 1) // STRIDE) * ((width + STRIDE - 1) // STRIDE)
    skip_row = (row // (height * width)) * skip_pixels + (y // STRIDE) * ((width + STRIDE - 1) // STRIDE) + x // STRIDE
    return skip_row, (y % STRIDE == 0) & (x % STRIDE == 0)


@triton.jit
def _centred(x, pivot, tile, row, offset, tile_stride, rows, BLOCK_M: tl.constexpr):
    """Return a tile minus the pivot; zeros outside the rows."""
    line = tile * BLOCK_M + row
    inside = ((line >= 0) & (line < rows))[:, None]
    value = tl.load(x + tile * tile_stride + offset, mask=inside, other=0.0).to(tl.float32)
    return tl.where(inside, value - pivot[None, :], 0.0)


@triton.jit
def statistics(x, partial, rows, channels, GROUPED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr):
    """partial ← sums of x − x₀ and (x − x₀)²; x₀ is the first row, so that a large mean costs no digits."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    if GROUPED:
        group = tl.program_id(2).to(tl.int64)
        x, partial = x + group * rows * channels, partial + group * programs * 2 * channels
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    row = tl.arange(0, BLOCK_M)
    offset = row[:, None] * channels + channel[None, :]
    tile_stride = tl.full((), BLOCK_M, tl.int64) * channels  # elements per tile; rows · channels can exceed 2^31
    pivot = tl.load(x + channel).to(tl.float32)
    total = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    squares = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    tiles = tl.cdiv(rows, BLOCK_M)
    for start in range(program, tiles, 4 * programs):  # four tiles at once, for more loads in flight
        tile = tiles - 1 - start
        one = _centred(x, pivot, tile, row, offset, tile_stride, rows, BLOCK_M)
        two = _centred(x, pivot, tile - programs, row, offset, tile_stride, rows, BLOCK_M)
        three = _centred(x, pivot, tile - 2 * programs, row, offset, tile_stride, rows, BLOCK_M)
        four = _centred(x, pivot, tile - 3 * programs, row, offset, tile_stride, rows, BLOCK_M)
        total += (one + two) + (three + four)
        squares += (one * one + two * two) + (three * three + four * four)
    at = partial + program * 2 * channels + channel
    tl.store(at, tl.sum(total, axis=0))
    tl.store(at + channels, tl.sum(squares, axis=0))


@triton.jit
def _moments(
    program, block, x, partial, weight, bias, conv_bias, moments, running_mean, running_var, batches,
    rows, channels, parts, channel, momentum, eps,
    CONV_BIAS: tl.constexpr, PIVOT: tl.constexpr, GROUPED: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Return scale and shift, such that the batch norm of x is scale · x + shift.

    The first program also stores moments [4, C]: mean, rstd = 1 / √(variance + eps), scale and shift. It updates the
    running statistics, by the mean over the groups (GROUPED).

    conv_bias: the convolution's bias. x lacks it, because batch norm cancels it; only the running mean includes it.
    PIVOT: the sums are of differences from x's first row.
    """
    group = tl.program_id(2)
    if GROUPED:
        partial, moments = partial + group * parts * 2 * channels, moments + group * 4 * channels
    first, second = totals(partial, parts, channels, channel, BLOCK_C)
    distance = first / rows
    mean = distance
    if PIVOT:
        mean += tl.load(x + channel).to(tl.float32)
    variance = tl.maximum(second / rows - distance * distance, 0.0)
    rstd = 1 / tl.sqrt(variance + eps)
    scale = tl.load(weight + channel) * rstd
    shift = tl.load(bias + channel) - mean * scale
    if program == 0:
        tl.store(moments + channel, mean)
        tl.store(moments + channels + channel, rstd)
        tl.store(moments + 2 * channels + channel, scale)
        tl.store(moments + 3 * channels + channel, shift)
        if not GROUPED or group == 0:
            if GROUPED:
                mean, variance = group_statistics(x, partial, rows, channels, parts, channel, PIVOT, BLOCK_C)
            if CONV_BIAS:
                mean += tl.load(conv_bias + channel)
            update_running_statistics(
                block, mean, variance, running_mean, running_var, batches, rows, channel, momentum
            )
    return scale, shift


@triton.jit
def update_running_statistics(block, mean, variance, running_mean, running_var, batches, rows, channel, momentum):
    """Move the running statistics towards those of a batch of `rows`; the first block of channels counts the batch."""
    old = tl.load(running_mean + channel)
    tl.store(running_mean + channel, old + momentum * (mean - old))
    old = tl.load(running_var + channel)
    unbiased = variance * (rows / (rows - 1.0))
    tl.store(running_var + channel, old + momentum * (unbiased - old))
    if block == 0:
        tl.store(batches, tl.load(batches) + 1)


@triton.jit(do_not_specialize=["parts", "shortcut_parts", "height", "width"])
def normalise(
    x, y, skip, bits, partial, weight, bias, conv_bias, moments, running_mean, running_var, batches,
    shortcut, shortcut_partial, shortcut_weight, shortcut_bias, shortcut_moments, shortcut_mean, shortcut_var,
    shortcut_batches, rows, channels, parts, shortcut_parts, height, width, momentum, eps,
    RELU: tl.constexpr, SHORTCUT: tl.constexpr, PROJECTED: tl.constexpr, CONV_BIAS: tl.constexpr, STRIDE: tl.constexpr,
    PIVOT: tl.constexpr, SHORTCUT_PIVOT: tl.constexpr, GROUPED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """y ← relu(x̂ · weight + bias + shortcut); a PROJECTED shortcut gets its own batch norm first.

    skip ← y[::STRIDE, ::STRIDE], where STRIDE > 1. bits ← the ReLU's mask, where there is a shortcut; without one,
    backward computes the mask from x.
    """
    program, programs, block = tl.program_id(0), tl.num_programs(0), tl.program_id(1)
    if GROUPED:
        group = tl.program_id(2).to(tl.int64)
        group_start = group * rows * channels
        x, y, shortcut, bits = x + group_start, y + group_start, shortcut + group_start, bits + group_start // 8
        if STRIDE > 1:
            skip += group * subsample(rows, height, width, STRIDE)[0] * channels
    channel = block * BLOCK_C + tl.arange(0, BLOCK_C)
    scale, shift = _moments(
        program, block, x, partial, weight, bias, conv_bias, moments, running_mean, running_var, batches,
        rows, channels, parts, channel, momentum, eps, CONV_BIAS, PIVOT, GROUPED, BLOCK_C,
    )  # fmt: skip
    if PROJECTED:
        shortcut_scale, shortcut_shift = _moments(
            program, block, shortcut, shortcut_partial, shortcut_weight, shortcut_bias, shortcut_bias, shortcut_moments,
            shortcut_mean, shortcut_var, shortcut_batches, rows, channels, shortcut_parts, channel, momentum, eps,
            False, SHORTCUT_PIVOT, GROUPED, BLOCK_C,
        )  # fmt: skip
        shift += shortcut_shift
    row = tl.arange(0, BLOCK_M)
    offset = row[:, None] * channels + channel[None, :]
    tile_stride = tl.full((), BLOCK_M, tl.int64) * channels
    for tile in range(program, tl.cdiv(rows, BLOCK_M), programs):
        inside = (tile * BLOCK_M + row < rows)[:, None]
        at = tile * tile_stride + offset
        value = tl.load(x + at, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
        value = value * scale[None, :] + shift[None, :]
        if SHORTCUT:
            added = tl.load(shortcut + at, mask=inside, other=0.0).to(tl.float32)
            if PROJECTED:
                added *= shortcut_scale[None, :]
            value += added
        if RELU:
            if SHORTCUT:
                flags = (
                    tl.reshape((value > 0).to(tl.int32), (BLOCK_M, BLOCK_C // 8, 8)) << tl.arange(0, 8)[None, None, :]
                )
                byte = block * (BLOCK_C // 8) + tl.arange(0, BLOCK_C // 8)
                to = (tile * tile_stride // 8) + row[:, None] * (channels // 8) + byte[None, :]
                tl.store(bits + to, tl.sum(flags, axis=2).to(tl.uint8), mask=inside)
            value = tl.maximum(value, 0.0)
        result = value.to(y.dtype.element_ty)
        tl.store(y + at, result, mask=inside)
        if STRIDE > 1:
            skip_row, in_skip = subsample(tile * BLOCK_M + row, height, width, STRIDE)
            at = skip_row.to(tl.int64)[:, None] * channels + channel[None, :]
            tl.store(skip + at, result, mask=inside & in_skip[:, None])


@triton.jit(do_not_specialize=["height", "width"])
def backward_sums(
    grad, skip_grad, x, bits, moments, masked, partial, rows, channels, height, width,
    SKIP_GRAD: tl.constexpr, RELU: tl.constexpr, SHORTCUT: tl.constexpr, STRIDE: tl.constexpr,
    GROUPED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """partial ← sums of ∂y and ∂y · (x − mean), after the ReLU's mask.

    ∂y is grad, plus skip_grad where y was used twice (SKIP_GRAD; only the pixels in skip, where STRIDE > 1). The masked
    ∂y is stored where it is needed again: for the shortcut (SHORTCUT), or because it is a sum (SKIP_GRAD).
    """
    program, programs, block = tl.program_id(0), tl.num_programs(0), tl.program_id(1)
    if GROUPED:
        group = tl.program_id(2).to(tl.int64)
        group_start = group * rows * channels
        grad, x, masked, bits = grad + group_start, x + group_start, masked + group_start, bits + group_start // 8
        moments, partial = moments + group * 4 * channels, partial + group * programs * 2 * channels
        if STRIDE > 1:
            group_start = group * subsample(rows, height, width, STRIDE)[0] * channels
        skip_grad += group_start
    channel = block * BLOCK_C + tl.arange(0, BLOCK_C)
    row = tl.arange(0, BLOCK_M)
    offset = row[:, None] * channels + channel[None, :]
    tile_stride = tl.full((), BLOCK_M, tl.int64) * channels
    mean = tl.load(moments + channel)
    scale = tl.load(moments + 2 * channels + channel)
    shift = tl.load(moments + 3 * channels + channel)
    total = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    product = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    tiles = tl.cdiv(rows, BLOCK_M)
    TILES: tl.constexpr = 1 if SKIP_GRAD or SHORTCUT else 2  # at once, while a tile takes two loads only
    for start in range(program, tiles, TILES * programs):
        tile = tiles - 1 - start
        inside = (tile * BLOCK_M + row < rows)[:, None]
        at = tile * tile_stride + offset
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
        if SKIP_GRAD:
            if STRIDE > 1:
                skip_row, in_skip = subsample(tile * BLOCK_M + row, height, width, STRIDE)
                skip_at = skip_row.to(tl.int64)[:, None] * channels + channel[None, :]
                dy += tl.load(skip_grad + skip_at, mask=inside & in_skip[:, None], other=0.0).to(tl.float32)
            else:
                dy += tl.load(skip_grad + at, mask=inside, other=0.0).to(tl.float32)
        if TILES == 2:
            second = tile - programs
            inside_second = (second * BLOCK_M + row >= 0)[:, None]
            second_x = tl.load(x + second * tile_stride + offset, mask=inside_second, other=0.0).to(tl.float32)
            second_dy = tl.load(grad + second * tile_stride + offset, mask=inside_second, other=0.0).to(tl.float32)
            if RELU:
                second_dy = tl.where(second_x * scale[None, :] + shift[None, :] > 0, second_dy, 0.0)
            total += second_dy
            product += second_dy * (second_x - mean[None, :])
        if RELU:
            if SHORTCUT:
                byte = block * (BLOCK_C // 8) + tl.arange(0, BLOCK_C // 8)
                byte_at = (tile * tile_stride // 8) + row[:, None] * (channels // 8) + byte[None, :]
                flags = tl.load(bits + byte_at, mask=inside, other=0).to(tl.int32)
                flags = (flags[:, :, None] >> tl.arange(0, 8)[None, None, :]) & 1
                positive = tl.reshape(flags, (BLOCK_M, BLOCK_C)) > 0
            else:
                positive = value * scale[None, :] + shift[None, :] > 0
            dy = tl.where(positive, dy, 0.0)
        if SKIP_GRAD or SHORTCUT:
            written = dy.to(masked.dtype.element_ty)
            tl.store(masked + at, written, mask=inside)
            dy = written.to(tl.float32)
        total += dy
        product += dy * (value - mean[None, :])
    at = partial + program * 2 * channels + channel
    tl.store(at, tl.sum(total, axis=0))
    tl.store(at + channels, tl.sum(product, axis=0))


@triton.jit
def update_norm_weights(
    weight_gradient, bias_gradient, grad_weight, grad_bias, weight, bias, velocity, bias_velocity, lr,
    channel, momentum, decay, UPDATE: tl.constexpr, RULE: tl.constexpr,
):  # fmt: skip
    """Update the batch norm's weight and bias (UPDATE), or store their gradients."""
    if UPDATE:
        rate = tl.load(lr)
        w, v = tl.load(weight + channel), tl.load(velocity + channel)
        w, v = sgd_update(w, weight_gradient, v, rate, momentum, decay, RULE)
        tl.store(velocity + channel, v)
        tl.store(weight + channel, w)
        w, v = tl.load(bias + channel), tl.load(bias_velocity + channel)
        w, v = sgd_update(w, bias_gradient, v, rate, momentum, decay, RULE)
        tl.store(bias_velocity + channel, v)
        tl.store(bias + channel, w)
    else:
        tl.store(grad_weight + channel, weight_gradient)
        tl.store(grad_bias + channel, bias_gradient)


@triton.jit
def norm_backward_factors(
    program, partial, moments, grad_weight, grad_bias, weight, bias, velocity, bias_velocity, lr,
    rows, channels, parts, channel, momentum, decay,
    UPDATE: tl.constexpr, RULE: tl.constexpr, GROUPED: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Return (a, shift, b, c) such that ∂x = a · ∂y + b · x + c, and the mask is a · x + shift > 0.

    The first program also updates weight and bias (UPDATE), or stores their gradients.
    """
    group = tl.program_id(2)
    if GROUPED:
        partial, moments = partial + group * parts * 2 * channels, moments + group * 4 * channels
    first, second = totals(partial, parts, channels, channel, BLOCK_C)
    mean = tl.load(moments + channel)
    rstd = tl.load(moments + channels + channel)
    scale = tl.load(moments + 2 * channels + channel)
    shift = tl.load(moments + 3 * channels + channel)
    second *= rstd
    if program == 0 and (not GROUPED or group == 0):
        bias_gradient, weight_gradient = first, second
        if GROUPED:
            bias_gradient, weight_gradient = group_gradients(partial, moments, channels, parts, channel, BLOCK_C)
        update_norm_weights(
            weight_gradient, bias_gradient, grad_weight, grad_bias, weight, bias, velocity, bias_velocity, lr,
            channel, momentum, decay, UPDATE, RULE,
        )  # fmt: skip
    x_factor = -scale * rstd * second / rows
    return scale, shift, x_factor, -scale * first / rows - x_factor * mean


@triton.jit(do_not_specialize=["parts"])
def backward_inputs(
    grad, x, grad_x, partial, moments, grad_weight, grad_bias, weight, bias, velocity, bias_velocity, lr,
    rows, channels, parts, momentum, decay,
    MASK: tl.constexpr, UPDATE: tl.constexpr, RULE: tl.constexpr, GROUPED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """grad_x ← ∂x from ∂y, which is masked here (MASK) or was masked before."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    if GROUPED:
        group_start = tl.program_id(2).to(tl.int64) * rows * channels
        grad, x, grad_x = grad + group_start, x + group_start, grad_x + group_start
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    scale, shift, x_factor, constant = norm_backward_factors(
        program, partial, moments, grad_weight, grad_bias, weight, bias, velocity, bias_velocity, lr,
        rows, channels, parts, channel, momentum, decay, UPDATE, RULE, GROUPED, BLOCK_C,
    )  # fmt: skip
    row = tl.arange(0, BLOCK_M)
    offset = row[:, None] * channels + channel[None, :]
    tile_stride = tl.full((), BLOCK_M, tl.int64) * channels
    for tile in range(program, tl.cdiv(rows, BLOCK_M), programs):
        inside = (tile * BLOCK_M + row < rows)[:, None]
        at = tile * tile_stride + offset
        value = tl.load(x + at, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
        dy = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
        if MASK:
            dy = tl.where(value * scale[None, :] + shift[None, :] > 0, dy, 0.0)
        result = scale[None, :] * dy + x_factor[None, :] * value + constant[None, :]
        tl.store(grad_x + at, result.to(grad_x.dtype.element_ty), mask=inside)
