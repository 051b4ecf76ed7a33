"""Check what users pass to augmentations: one line says what is wrong and what to do."""

import math
import operator
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from aag.errors import AAGError, unknown


def as_batch(images: Tensor, *, allow_float: bool = True) -> Tensor:
    """Return images [B, 3, H, W], or a single image [3, H, W] as a batch of one."""
    expected = f"expected RGB images [B, 3, H, W] or [3, H, W], uint8{' or float in [0, 1]' * allow_float}"
    if not isinstance(images, Tensor):
        raise AAGError(f"{expected}; got {type(images).__name__}")
    got = f"got {images.dtype} {list(images.shape)}"
    if images.ndim not in (3, 4) or not (images.dtype == torch.uint8 or (allow_float and images.is_floating_point())):
        raise AAGError(f"{expected}; {got}")
    channels, height, width = images.shape[-3:]
    if channels != 3:
        hint = ""
        if width == 3:
            hint = "; move the channels forward with images.movedim(-1, -3)"
        elif channels == 1:
            hint = "; repeat the grey channel with images.repeat_interleave(3, dim=-3)"
        raise AAGError(f"{expected}; {got}{hint}")
    if height * width == 0:
        raise AAGError(f"expected images with at least one pixel; {got}")
    return images if images.ndim == 4 else images[None]


def seed_number(seed: Any) -> int:
    """Return the seed as an int."""
    try:
        return operator.index(seed)
    except TypeError:
        raise AAGError(f"seed must be an integer, not {seed!r}") from None


def check_name(what: str, name: Any, known: Iterable[str]) -> None:
    """Refuse a name that is not among the known ones."""
    if not isinstance(name, str) or name not in known:
        raise unknown(what, str(name), known)


def check_number(name: str, value: Any, low: float, high: float = math.inf) -> None:
    """Refuse what is not a finite number from low to high."""
    if not (isinstance(value, Real) and low <= float(value) <= high and math.isfinite(value)):
        limits = f"of at least {low}" if high == math.inf else f"from {low} to {high}"
        raise AAGError(f"{name} must be a number {limits}, not {value!r}")


def check_integer(name: str, value: Any, low: int, high: float = math.inf) -> None:
    """Refuse what is not an integer from low to high."""
    if not (isinstance(value, Integral) and low <= int(value) <= high):
        limits = f"of at least {low}" if high == math.inf else f"from {low} to {high}"
        raise AAGError(f"{name} must be an integer {limits}, not {value!r}")


def check_range(name: str, pair: Any) -> tuple[float, float]:
    """Return the pair (low, high) as a tuple; refuse it unless 0 < low <= high."""
    try:
        low, high = pair
        valid = 0 < low <= high < math.inf
    except (TypeError, ValueError):
        valid = False
    if not valid:
        raise AAGError(f"{name} must be two positive numbers (low, high), not {pair!r}")
    return low, high
