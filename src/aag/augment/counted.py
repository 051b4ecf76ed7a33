"""Counted random numbers: a draw is a hash of (seed, epoch, image, view, slot), not the next of a stream.

So a draw is the same on a CPU and on a GPU, for any batch size and any number of processes, and after any
restart. Everything is integer arithmetic below 2^63 on int64 tensors that hold 32-bit words: exact and without
overflow on every device.
"""

from typing import TypeVar

import torch
from torch import Tensor

from aag import kernels

_WORD = 0xFFFFFFFF
Word = TypeVar("Word", int, Tensor)


def keys(seed: int, epoch: int, image: Tensor, view: int = 0) -> Tensor:
    """One key for each image: int64 [B], given the images' indices in their set."""
    seen = 0
    for word in (seed, seed >> 32, epoch):
        seen = _mix(seen ^ _of_word(word & _WORD))
    image, last = image.long(), _of_word(view & _WORD)
    if kernels.usable(image) and image.ndim == 1:
        from aag.augment.kernels import draws

        return draws.keys(seen, image, last)
    return _mix(_mix(seen ^ _of_word(image)) ^ last)


def uniforms(key: Tensor, slots: int) -> Tensor:
    """float32 [B, slots] in [0, 1), in steps of 2^-24: every value is exact in float32."""
    slot = torch.arange(slots, device=key.device)
    return (_mix(key[:, None] ^ _of_word(slot)) >> 8).float() * 2.0**-24


def permutation(seed: int, epoch: int, n: int, device: torch.device | str = "cpu") -> Tensor:
    """A shuffle of 0 … n−1: the images sorted by their draw for this epoch."""
    image = torch.arange(n, device=device)
    return torch.sort(keys(seed, epoch, image, view=-1), stable=True).indices


def _of_word(word: Word) -> Word:
    """A word mixed, before it meets the key: neighbouring words would otherwise give neighbouring states."""
    return _mix((word + 0x3C6EF372) & _WORD)


def _mix(h: Word) -> Word:
    """A bijection of 32-bit words that flips each output bit with probability near ½ for any input bit."""
    h = h ^ (h >> 16)
    h = (h * 0x7FEB352D) & _WORD  # multipliers below 2^31 keep the product below 2^63
    h = h ^ (h >> 15)
    h = (h * 0x2C1B3C6D) & _WORD
    h = h ^ (h >> 14)
    h = (h * 0x297A2D39) & _WORD
    return h ^ (h >> 16)
