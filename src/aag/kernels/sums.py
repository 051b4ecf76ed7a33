"""Adding up what the programs of a reduction left in `partial` [lots, programs, 2, C]: see `aag.kernels.norm`."""

import triton
import triton.language as tl


@triton.jit
def totals(partial, parts, channels, channel, BLOCK_C: tl.constexpr):
    """The two sums [BLOCK_C] over all programs."""
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
def statistics_of_lots(x, partial, rows, channels, parts, channel, PIVOT: tl.constexpr, BLOCK_C: tl.constexpr):
    """The means [BLOCK_C] over all lots of their means and of their variances."""
    LOTS: tl.constexpr = 16  # at a time: a lot has the fewer programs the more lots there are
    lots = tl.num_programs(2)
    mean = tl.zeros((BLOCK_C,), tl.float32)
    variance = tl.zeros((BLOCK_C,), tl.float32)
    for start in range(0, lots, LOTS):
        lot = start + tl.arange(0, LOTS)
        inside = (lot < lots)[:, None]
        first = tl.zeros((LOTS, BLOCK_C), tl.float32)
        second = tl.zeros((LOTS, BLOCK_C), tl.float32)
        for part in range(parts):
            at = partial + (lot * parts + part)[:, None] * 2 * channels + channel[None, :]
            first += tl.load(at, mask=inside, other=0.0)
            second += tl.load(at + channels, mask=inside, other=0.0)
        distance = first / rows
        variance += tl.sum(tl.maximum(second / rows - distance * distance, 0.0), axis=0)
        if PIVOT:
            at = x + lot.to(tl.int64)[:, None] * rows * channels + channel[None, :]
            distance += tl.load(at, mask=inside, other=0.0).to(tl.float32)
        mean += tl.sum(distance, axis=0)
    return mean / lots, variance / lots


@triton.jit
def gradients_of_lots(partial, moments, channels, parts, channel, BLOCK_C: tl.constexpr):
    """The gradients [BLOCK_C] of bias and weight: sums over all programs of all lots, each with its lot's deviation."""
    PARTS: tl.constexpr = 32  # with more, this rare branch would decide how many registers the whole kernel takes
    parts_of_all = parts * tl.num_programs(2)
    first = tl.zeros((PARTS, BLOCK_C), tl.float32)
    second = tl.zeros((PARTS, BLOCK_C), tl.float32)
    for start in range(0, parts_of_all, PARTS):
        part = start + tl.arange(0, PARTS)
        inside = (part < parts_of_all)[:, None]
        at = partial + part[:, None] * 2 * channels + channel[None, :]
        of_lot = moments + (part // parts)[:, None] * 4 * channels + channel[None, :]
        first += tl.load(at, mask=inside, other=0.0)
        deviation = tl.load(of_lot + channels, mask=inside, other=0.0)
        second += tl.load(at + channels, mask=inside, other=0.0) * deviation
    return tl.sum(first, axis=0), tl.sum(second, axis=0)
