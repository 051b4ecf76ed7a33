"""Batch norm in training, with what surrounds it in a residual network, as four passes over rows [M, C].

Between two convolutions a network is bound by memory, so what counts is how often a tensor is read or written:

    statistics        reads x
    normalise         reads x (and the shortcut), writes y
    backward_sums     reads ∂y (in two parts where y is used twice) and x, writes the masked ∂y if need be
    backward_inputs   reads the masked ∂y and x, writes ∂x

Rows are all pixels of all images, channels last. A few programs share the rows of a reduction and leave their sums in
`partial` [programs, 2, C]; each program of the pass after it adds them up, in the same order, before its own rows. The
reductions go from the last row to the first: the end of x is what the cache still holds, and their own end, the
beginning of x, is where the next pass starts.

SPLIT: a batch norm for each lot of consecutive images, as `aag.nets.layers.GhostBatchNorm` has it. A lot is the grid's
third dimension, `rows` are those of one lot, and `partial` and `moments` have one for each: [lots, programs, 2, C] and
[lots, 4, C]. What the lots have in common, running statistics and weights, is up to the first program of the first lot.
"""

import triton
import triton.language as tl

from aag.kernels.steps import stepped
from aag.kernels.sums import gradients_of_lots, statistics_of_lots, totals


@triton.jit
def _every_other(row, height, width, EVERY: tl.constexpr):
    """For each pixel, its row among those kept (every EVERY-th in both directions), and whether it is."""
    pixel = row % (height * width)
    y = pixel // width
    x = pixel % width
    of_image = ((height + EVERY - 1) // EVERY) * ((width + EVERY - 1) // EVERY)
    kept = (row // (height * width)) * of_image + (y // EVERY) * ((width + EVERY - 1) // EVERY) + x // EVERY
    return kept, (y % EVERY == 0) & (x % EVERY == 0)


@triton.jit
def _centred(x, pivot, tile, row, offset, wide, rows, BLOCK_M: tl.constexpr):
    """A tile less the pivot; zeros where there are no rows, before the first or behind the last."""
    line = tile * BLOCK_M + row
    inside = ((line >= 0) & (line < rows))[:, None]
    value = tl.load(x + tile * wide + offset, mask=inside, other=0.0).to(tl.float32)
    return tl.where(inside, value - pivot[None, :], 0.0)


@triton.jit
def statistics(x, partial, rows, channels, SPLIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr):
    """partial ← sums of x − x₀ and (x − x₀)², where x₀ is the first row: no digits are lost to a large mean."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    if SPLIT:
        lot = tl.program_id(2).to(tl.int64)
        x, partial = x + lot * rows * channels, partial + lot * programs * 2 * channels
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    row = tl.arange(0, BLOCK_M)
    offset = row[:, None] * channels + channel[None, :]
    wide = tl.full((), BLOCK_M, tl.int64) * channels  # a tile's elements; rows · channels can pass 2^31
    pivot = tl.load(x + channel).to(tl.float32)
    total = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    squares = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    tiles = tl.cdiv(rows, BLOCK_M)
    for turn in range(program, tiles, 4 * programs):  # four tiles at once, for more bytes on their way
        tile = tiles - 1 - turn
        one = _centred(x, pivot, tile, row, offset, wide, rows, BLOCK_M)
        two = _centred(x, pivot, tile - programs, row, offset, wide, rows, BLOCK_M)
        three = _centred(x, pivot, tile - 2 * programs, row, offset, wide, rows, BLOCK_M)
        four = _centred(x, pivot, tile - 3 * programs, row, offset, wide, rows, BLOCK_M)
        total += (one + two) + (three + four)
        squares += (one * one + two * two) + (three * three + four * four)
    at = partial + program * 2 * channels + channel
    tl.store(at, tl.sum(total, axis=0))
    tl.store(at + channels, tl.sum(squares, axis=0))


@triton.jit
def _moments(
    program, group, x, partial, weight, bias, idle_bias, moments, running_mean, running_var, batches,
    rows, channels, parts, channel, momentum, eps,
    IDLE: tl.constexpr, PIVOT: tl.constexpr, SPLIT: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """scale and shift; the first program writes moments [4, C]: mean, 1/deviation, scale, shift, and moves the running
    statistics on, by the mean over the lots (SPLIT). `idle_bias` is what the convolution would have added: batch norm
    takes it out again, so x goes without, and it shows in the running mean only. PIVOT: the sums are of differences
    from x's first row.
    """
    lot = tl.program_id(2)
    if SPLIT:
        partial, moments = partial + lot * parts * 2 * channels, moments + lot * 4 * channels
    first, second = totals(partial, parts, channels, channel, BLOCK_C)
    distance = first / rows
    mean = distance
    if PIVOT:
        mean += tl.load(x + channel).to(tl.float32)
    variance = tl.maximum(second / rows - distance * distance, 0.0)
    deviation = 1 / tl.sqrt(variance + eps)
    scale = tl.load(weight + channel) * deviation
    shift = tl.load(bias + channel) - mean * scale
    if program == 0:
        tl.store(moments + channel, mean)
        tl.store(moments + channels + channel, deviation)
        tl.store(moments + 2 * channels + channel, scale)
        tl.store(moments + 3 * channels + channel, shift)
        if not SPLIT or lot == 0:
            if SPLIT:
                mean, variance = statistics_of_lots(x, partial, rows, channels, parts, channel, PIVOT, BLOCK_C)
            if IDLE:
                mean += tl.load(idle_bias + channel)
            before = tl.load(running_mean + channel)
            tl.store(running_mean + channel, before + momentum * (mean - before))
            before = tl.load(running_var + channel)
            unbiased = variance * (rows / (rows - 1.0))
            tl.store(running_var + channel, before + momentum * (unbiased - before))
            if group == 0:
                tl.store(batches, tl.load(batches) + 1)
    return scale, shift


@triton.jit(do_not_specialize=["parts", "add_parts", "height", "width"])
def normalise(
    x, y, skip, bits, partial, weight, bias, idle_bias, moments, running_mean, running_var, batches,
    add, add_partial, add_weight, add_bias, add_moments, add_mean, add_var, add_batches,
    rows, channels, parts, add_parts, height, width, momentum, eps,
    RELU: tl.constexpr, ADD: tl.constexpr, THROUGH: tl.constexpr, IDLE: tl.constexpr, EVERY: tl.constexpr,
    PIVOT: tl.constexpr, ADD_PIVOT: tl.constexpr, SPLIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """y ← relu(x̂ · weight + bias + add), where add (THROUGH) goes through a batch norm of its own first.

    `skip` gets every EVERY-th pixel of y in both directions, where EVERY > 1; `bits` the mask of the ReLU where there
    is an add: without one, backward finds it in x.
    """
    program, programs, group = tl.program_id(0), tl.num_programs(0), tl.program_id(1)
    if SPLIT:
        lot = tl.program_id(2).to(tl.int64)
        before = lot * rows * channels
        x, y, add, bits = x + before, y + before, add + before, bits + before // 8
        if EVERY > 1:
            skip += lot * _every_other(rows, height, width, EVERY)[0] * channels  # as many as a lot keeps
    channel = group * BLOCK_C + tl.arange(0, BLOCK_C)
    scale, shift = _moments(
        program, group, x, partial, weight, bias, idle_bias, moments, running_mean, running_var, batches,
        rows, channels, parts, channel, momentum, eps, IDLE, PIVOT, SPLIT, BLOCK_C,
    )  # fmt: skip
    if THROUGH:
        add_scale, add_shift = _moments(
            program, group, add, add_partial, add_weight, add_bias, add_bias, add_moments, add_mean, add_var,
            add_batches, rows, channels, add_parts, channel, momentum, eps, False, ADD_PIVOT, SPLIT, BLOCK_C,
        )  # fmt: skip
        shift += add_shift
    row = tl.arange(0, BLOCK_M)
    offset = row[:, None] * channels + channel[None, :]
    wide = tl.full((), BLOCK_M, tl.int64) * channels
    for tile in range(program, tl.cdiv(rows, BLOCK_M), programs):
        inside = (tile * BLOCK_M + row < rows)[:, None]
        at = tile * wide + offset
        value = tl.load(x + at, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
        value = value * scale[None, :] + shift[None, :]
        if ADD:
            more = tl.load(add + at, mask=inside, other=0.0).to(tl.float32)
            if THROUGH:
                more *= add_scale[None, :]
            value += more
        if RELU:
            if ADD:
                flags = (
                    tl.reshape((value > 0).to(tl.int32), (BLOCK_M, BLOCK_C // 8, 8)) << tl.arange(0, 8)[None, None, :]
                )
                eight = group * (BLOCK_C // 8) + tl.arange(0, BLOCK_C // 8)
                to = (tile * wide // 8) + row[:, None] * (channels // 8) + eight[None, :]
                tl.store(bits + to, tl.sum(flags, axis=2).to(tl.uint8), mask=inside)
            value = tl.maximum(value, 0.0)
        result = value.to(y.dtype.element_ty)
        tl.store(y + at, result, mask=inside)
        if EVERY > 1:
            kept, is_kept = _every_other(tile * BLOCK_M + row, height, width, EVERY)
            at = kept.to(tl.int64)[:, None] * channels + channel[None, :]
            tl.store(skip + at, result, mask=inside & is_kept[:, None])


@triton.jit(do_not_specialize=["height", "width"])
def backward_sums(
    grad, other, x, bits, moments, masked, partial, rows, channels, height, width,
    OTHER: tl.constexpr, RELU: tl.constexpr, ADD: tl.constexpr, EVERY: tl.constexpr,
    SPLIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """partial ← sums of ∂y and ∂y · (x − mean), behind the ReLU's mask.

    ∂y is grad, plus other where y went two ways (EVERY: where skip did). It is written down masked where it is needed
    again in that form: for the shortcut (ADD), or because it was a sum (OTHER). Without a shortcut the mask follows
    from x alone.
    """
    program, programs, group = tl.program_id(0), tl.num_programs(0), tl.program_id(1)
    if SPLIT:
        lot = tl.program_id(2).to(tl.int64)
        before = lot * rows * channels
        grad, x, masked, bits = grad + before, x + before, masked + before, bits + before // 8
        moments, partial = moments + lot * 4 * channels, partial + lot * programs * 2 * channels
        if EVERY > 1:
            before = lot * _every_other(rows, height, width, EVERY)[0] * channels
        other += before
    channel = group * BLOCK_C + tl.arange(0, BLOCK_C)
    row = tl.arange(0, BLOCK_M)
    offset = row[:, None] * channels + channel[None, :]
    wide = tl.full((), BLOCK_M, tl.int64) * channels
    mean = tl.load(moments + channel)
    scale = tl.load(moments + 2 * channels + channel)
    shift = tl.load(moments + 3 * channels + channel)
    total = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    product = tl.zeros((BLOCK_M, BLOCK_C), tl.float32)
    tiles = tl.cdiv(rows, BLOCK_M)
    TOGETHER: tl.constexpr = 1 if OTHER or ADD else 2  # tiles, as long as that is only two tensors
    for turn in range(program, tiles, TOGETHER * programs):
        tile = tiles - 1 - turn
        inside = (tile * BLOCK_M + row < rows)[:, None]
        at = tile * wide + offset
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        slope = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
        if OTHER:
            if EVERY > 1:
                kept, is_kept = _every_other(tile * BLOCK_M + row, height, width, EVERY)
                from_skip = kept.to(tl.int64)[:, None] * channels + channel[None, :]
                slope += tl.load(other + from_skip, mask=inside & is_kept[:, None], other=0.0).to(tl.float32)
            else:
                slope += tl.load(other + at, mask=inside, other=0.0).to(tl.float32)
        if TOGETHER == 2:
            second = tile - programs
            inside_second = (second * BLOCK_M + row >= 0)[:, None]
            more = tl.load(x + second * wide + offset, mask=inside_second, other=0.0).to(tl.float32)
            more_slope = tl.load(grad + second * wide + offset, mask=inside_second, other=0.0).to(tl.float32)
            if RELU:
                more_slope = tl.where(more * scale[None, :] + shift[None, :] > 0, more_slope, 0.0)
            total += more_slope
            product += more_slope * (more - mean[None, :])
        if RELU:
            if ADD:
                eight = group * (BLOCK_C // 8) + tl.arange(0, BLOCK_C // 8)
                of_eight = (tile * wide // 8) + row[:, None] * (channels // 8) + eight[None, :]
                flags = tl.load(bits + of_eight, mask=inside, other=0).to(tl.int32)
                flags = (flags[:, :, None] >> tl.arange(0, 8)[None, None, :]) & 1
                positive = tl.reshape(flags, (BLOCK_M, BLOCK_C)) > 0
            else:
                positive = value * scale[None, :] + shift[None, :] > 0
            slope = tl.where(positive, slope, 0.0)
        if OTHER or ADD:
            written = slope.to(masked.dtype.element_ty)
            tl.store(masked + at, written, mask=inside)
            slope = written.to(tl.float32)
        total += slope
        product += slope * (value - mean[None, :])
    at = partial + program * 2 * channels + channel
    tl.store(at, tl.sum(total, axis=0))
    tl.store(at + channels, tl.sum(product, axis=0))


@triton.jit
def norm_backward_factors(
    program, partial, moments, grad_weight, grad_bias, weight, bias, velocity, bias_velocity, lr,
    rows, channels, parts, channel, momentum, decay,
    LEARN: tl.constexpr, RULE: tl.constexpr, SPLIT: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """(a, shift, b, c) such that ∂x = a · ∂y + b · x + c, and the mask is a · x + shift > 0.

    The first program also lets weight and bias take their step (LEARN), or writes their gradients.
    """
    lot = tl.program_id(2)
    if SPLIT:
        partial, moments = partial + lot * parts * 2 * channels, moments + lot * 4 * channels
    first, second = totals(partial, parts, channels, channel, BLOCK_C)
    mean = tl.load(moments + channel)
    deviation = tl.load(moments + channels + channel)
    scale = tl.load(moments + 2 * channels + channel)
    shift = tl.load(moments + 3 * channels + channel)
    second *= deviation
    if program == 0 and (not SPLIT or lot == 0):
        of_bias, of_weight = first, second
        if SPLIT:
            of_bias, of_weight = gradients_of_lots(partial, moments, channels, parts, channel, BLOCK_C)
        if LEARN:
            rate = tl.load(lr)
            value, speed = tl.load(weight + channel), tl.load(velocity + channel)
            value, speed = stepped(value, of_weight, speed, rate, momentum, decay, RULE)
            tl.store(velocity + channel, speed)
            tl.store(weight + channel, value)
            value, speed = tl.load(bias + channel), tl.load(bias_velocity + channel)
            value, speed = stepped(value, of_bias, speed, rate, momentum, decay, RULE)
            tl.store(bias_velocity + channel, speed)
            tl.store(bias + channel, value)
        else:
            tl.store(grad_weight + channel, of_weight)
            tl.store(grad_bias + channel, of_bias)
    of_x = -scale * deviation * second / rows
    return scale, shift, of_x, -scale * first / rows - of_x * mean


@triton.jit(do_not_specialize=["parts"])
def backward_inputs(
    grad, x, grad_x, partial, moments, grad_weight, grad_bias, weight, bias, velocity, bias_velocity, lr,
    rows, channels, parts, momentum, decay,
    MASK: tl.constexpr, LEARN: tl.constexpr, RULE: tl.constexpr, SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """∂x from ∂y, which is masked here (MASK) or was before."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    if SPLIT:
        before = tl.program_id(2).to(tl.int64) * rows * channels
        grad, x, grad_x = grad + before, x + before, grad_x + before
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    scale, shift, of_x, constant = norm_backward_factors(
        program, partial, moments, grad_weight, grad_bias, weight, bias, velocity, bias_velocity, lr,
        rows, channels, parts, channel, momentum, decay, LEARN, RULE, SPLIT, BLOCK_C,
    )  # fmt: skip
    row = tl.arange(0, BLOCK_M)
    offset = row[:, None] * channels + channel[None, :]
    wide = tl.full((), BLOCK_M, tl.int64) * channels
    for tile in range(program, tl.cdiv(rows, BLOCK_M), programs):
        inside = (tile * BLOCK_M + row < rows)[:, None]
        at = tile * wide + offset
        value = tl.load(x + at, mask=inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
        slope = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
        if MASK:
            slope = tl.where(value * scale[None, :] + shift[None, :] > 0, slope, 0.0)
        result = scale[None, :] * slope + of_x[None, :] * value + constant[None, :]
        tl.store(grad_x + at, result.to(grad_x.dtype.element_ty), mask=inside)
