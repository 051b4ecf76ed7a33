"""Counter-based random numbers: a draw is a hash of (seed, epoch, image, view, slot), not the next of a sequence.

A draw is therefore the same on a CPU and on a GPU, for any batch size, any number of processes and after any restart.
All arithmetic is on int64 tensors that hold 32-bit words, below 2^63: exact and without overflow on every device.
"""

import operator
from enum import IntEnum
from typing import TypeVar

import torch
from torch import Tensor

from aag import kernels
from aag.errors import AAGError

_WORD = 0xFFFFFFFF
Word = TypeVar("Word", int, Tensor)

NO_EPOCH = -1  # instead of an epoch number, for draws that count their own steps


class Stream(IntEnum):
    """Random streams other than an image's views, which are 0, 1, …: pass one as `view`.

    Methods that never run together share values: changing a value would change the numbers of recorded runs.
    """

    IMAGE_ORDER = -1
    HEALTH = -7  # views and subset of the label-free evaluation
    # Instance, AND, Super-AND
    NCE_NOISE = -2
    BANK_INIT = -3
    # MoCo
    KEY_SHUFFLE = -2
    QUEUE_INIT = -3
    # DeepCluster
    KMEANS_INIT = -2
    CLASSIFIER_INIT = -3
    CLUSTER_SAMPLES = -4
    KMEANS_SPLIT = -5
    SAMPLE_ORDER = -6


def keys(seed: int, epoch: int, image: Tensor, view: int = 0) -> Tensor:
    """Return one key per image, int64 [B], given the images' indices in their set."""
    try:
        seed, prefix = operator.index(seed), 0
    except TypeError:
        raise AAGError(f"seed must be an integer, not {seed!r}") from None
    for word in (seed, seed >> 32, epoch):
        prefix = _mix(prefix ^ _premix(word & _WORD))
    image, last = image.long(), _premix(view & _WORD)
    if kernels.enabled(image) and image.ndim == 1:
        from aag.kernels import rng as rng_kernel  # triton is imported with the first kernel

        return rng_kernel.keys(prefix, image, last)
    return _mix(_mix(prefix ^ _premix(image)) ^ last)


def uniforms(key: Tensor, slots: int) -> Tensor:
    """Return float32 [B, slots] in [0, 1), in steps of 2^-24: every value is exact in float32."""
    slot = torch.arange(slots, device=key.device)
    return (_mix(key[:, None] ^ _premix(slot)) >> 8).float() * 2.0**-24


def permutation(
    seed: int, epoch: int, n: int, device: torch.device | str = "cpu", stream: Stream = Stream.IMAGE_ORDER
) -> Tensor:
    """Return a shuffle of 0 … n−1, int64 [n]: the images sorted by their key in this epoch."""
    image = torch.arange(n, device=device)
    return torch.sort(keys(seed, epoch, image, stream), stable=True).indices


def _premix(word: Word) -> Word:
    """Mix a word before it is combined with the hash: neighbouring words would give neighbouring states."""
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
