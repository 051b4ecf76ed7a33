"""Flip and transpose a convolution's weights, for the convolution that computes its input gradient."""

import triton
import triton.language as tl


@triton.jit
def flip_weights(weight, flipped, channels, TAPS: tl.constexpr, BLOCK: tl.constexpr):
    """flipped[i, t, o] ← weight[o, TAPS − 1 − t, i]; both [channels, TAPS, channels] in memory."""
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tap = tl.program_id(2)
    inside = (o < channels)[:, None] & (i < channels)[None, :]
    value = tl.load(weight + (o[:, None] * TAPS + TAPS - 1 - tap) * channels + i[None, :], mask=inside, other=0.0)
    tl.store(flipped + (i[None, :] * TAPS + tap) * channels + o[:, None], value, mask=inside)
