"""Add up the partial sums `partial` [groups, programs, 2, C] of a reduction: see `aag.kernels.norm`."""

import triton
import triton.language as tl


@triton.jit
def totals(partial, parts, channels, channel, BLOCK_C: tl.constexpr):
    """Return the two sums [BLOCK_C] over all programs."""
    PARTS: tl.constexpr = 64
    part = tl.arange(0, PARTS)
    first = tl.zeros((PARTS, BLOCK_C), tl.float32)
    second = tl.zeros((PARTS, BLOCK_C), tl.float32)
    for start in range(0, parts, PARTS):
        inside = (start + part < parts)[:, None]
        at = partial + (start + part)[:, None] * 2 * channels + channel[None, :]
        first += tl.load(at, mask=inside, other=0.0)
        second += tl.load(at + channels, mask=inside, other=0.0)
    return tl.sum(first, axis=0), tl.sum(second, axis=0)


@triton.jit
def group_statistics(x, partial, rows, channels, parts, channel, PIVOT: tl.constexpr, BLOCK_C: tl.constexpr):
    """Return the mean over all groups of their means and of their variances, [BLOCK_C] each."""
    GROUPS: tl.constexpr = 16  # at a time; where groups are many, each has few programs
    groups = tl.num_programs(2)
    mean = tl.zeros((BLOCK_C,), tl.float32)
    variance = tl.zeros((BLOCK_C,), tl.float32)
    for start in range(0, groups, GROUPS):
        group = start + tl.arange(0, GROUPS)
        inside = (group < groups)[:, None]
        first = tl.zeros((GROUPS, BLOCK_C), tl.float32)
        second = tl.zeros((GROUPS, BLOCK_C), tl.float32)
        for part in range(parts):
            at = partial + (group * parts + part)[:, None] * 2 * channels + channel[None, :]
            first += tl.load(at, mask=inside, other=0.0)
            second += tl.load(at + channels, mask=inside, other=0.0)
        distance = first / rows
        variance += tl.sum(tl.maximum(second / rows - distance * distance, 0.0), axis=0)
        if PIVOT:
            at = x + group.to(tl.int64)[:, None] * rows * channels + channel[None, :]
            distance += tl.load(at, mask=inside, other=0.0).to(tl.float32)
        mean += tl.sum(distance, axis=0)
    return mean / groups, variance / groups


@triton.jit
def group_gradients(partial, moments, channels, parts, channel, BLOCK_C: tl.constexpr):
    """Return the gradients [BLOCK_C] of bias and weight: sums over all groups, for the weight times each one's rstd."""
    PARTS: tl.constexpr = 32  # more would let this rare branch set the register count of the whole kernel
    all_parts = parts * tl.num_programs(2)
    first = tl.zeros((PARTS, BLOCK_C), tl.float32)
    second = tl.zeros((PARTS, BLOCK_C), tl.float32)
    for start in range(0, all_parts, PARTS):
        part = start + tl.arange(0, PARTS)
        inside = (part < all_parts)[:, None]
        at = partial + part[:, None] * 2 * channels + channel[None, :]
        group_moments = moments + (part // parts)[:, None] * 4 * channels + channel[None, :]
        first += tl.load(at, mask=inside, other=0.0)
        rstd = tl.load(group_moments + channels, mask=inside, other=0.0)
        second += tl.load(at + channels, mask=inside, other=0.0) * rstd
    return tl.sum(first, axis=0), tl.sum(second, axis=0)
