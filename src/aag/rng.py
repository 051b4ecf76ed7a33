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
from aag.errors import AAGError, describe

_WORD = 0xFFFFFFFF
Word = TypeVar("Word", int, Tensor)
INDEX_DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

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
    # AAG with mixtures
    MIXTURES = -2
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
    seed, epoch, view = _integer("seed", seed), _integer("epoch", epoch), _integer("view", view)
    is_index = isinstance(image, Tensor) and image.dtype in INDEX_DTYPES
    if not is_index or image.layout != torch.strided or image.is_meta:
        raise AAGError(f"image must be a tensor of indices, such as torch.arange(8), not {describe(image)}")
    prefix = 0
    for word in (seed, seed >> 32, epoch):
        prefix = _mix(prefix ^ _premix(word & _WORD))
    image, last = image.long(), _premix(view & _WORD)
    if kernels.enabled(image) and image.ndim == 1:
        from aag.kernels import rng as rng_kernel  # triton is imported with the first kernel

        return rng_kernel.keys(prefix, image, last)
    return _mix(_mix(prefix ^ _premix(image)) ^ last)


def uniforms(key: Tensor, slots: int) -> Tensor:
    """Return float32 [B, slots] in [0, 1), in steps of 2^-24: every value is exact in float32."""
    if not isinstance(key, Tensor) or key.dtype != torch.int64 or key.ndim != 1 or key.is_meta:
        raise AAGError(f"key must be an int64 tensor [B] from aag.augment.keys, not {describe(key)}")
    slot = torch.arange(_integer("slots", slots, 0, 2**31), device=key.device)
    return (_mix(key[:, None] ^ _premix(slot)) >> 8).float() * 2.0**-24


def permutation(
    seed: int,
    epoch: int,
    n: int,
    device: torch.device | str = "cpu",
    stream: Stream = Stream.IMAGE_ORDER,
    block: int | None = None,
) -> Tensor:
    """Return 0 … n−1 in random order, int64 [n]: the images sorted by their keys in this epoch.

    With `block`, shuffle only within consecutive blocks of this many images.
    """
    image = torch.arange(_integer("n", n, 0), device=device)
    order = keys(seed, epoch, image, stream)
    if block is not None:
        order += image // _integer("block", block, 1) << 32  # keys are below 2^32
    return torch.sort(order, stable=True).indices


def _integer(name: str, value: int, low: int | None = None, high: int = 2**63 - 1) -> int:
    """Return Python's or NumPy's integer as an int; raise unless it is from `low` to `high`. low None: no limits."""
    try:
        number = operator.index(value)
    except (TypeError, ValueError):
        number = None
    if number is None or (low is not None and not low <= number <= high):
        limits = "" if low is None else f" from {low} to {high}"
        raise AAGError(f"{name} must be an integer{limits}, not {describe(value)}")
    return number


def _premix(word: Word) -> Word:
    """Mix a word before it is combined with the hash: neighbouring words would give neighbouring states."""
    return _mix((word + 0x3C6EF372) & _WORD)


def _mix(h: Word) -> Word:
    """Hash a 32-bit word: a bijection in which any input bit flips each output bit with probability near ½."""
    h = h ^ (h >> 16)
    h = (h * 0x7FEB352D) & _WORD  # multipliers below 2^31 keep the product below 2^63
    h = h ^ (h >> 15)
    h = (h * 0x2C1B3C6D) & _WORD
    h = h ^ (h >> 14)
    h = (h * 0x297A2D39) & _WORD
    return h ^ (h >> 16)
