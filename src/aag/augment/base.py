"""The base class of all augmentations, and conversions between uint8 and float images."""

from collections.abc import Callable
from inspect import isfunction
from typing import ClassVar

import torch
from torch import Tensor

from aag.augment.checks import as_batch, seed_number
from aag.errors import AAGError
from aag.pixels import check_pixel_range
from aag.rng import keys


class Augmentation:
    """Make one view of each image: [B, 3, H, W] or a single [3, H, W], uint8 or float in [0, 1].

    Views have the images' dtype and device. The range of float images is checked, which synchronises a GPU.

    Each image has its own random draw. It depends on `seed=` and the image's position in the batch, or only on
    `key=`, int64 [B] (see `aag.augment.keys`). Without either, each call draws a new seed from torch's default
    generator, so two calls give different views and `torch.manual_seed` makes them reproducible.

    Subclasses define `plain_views`. Those with a kernel override `views` to use it where it supports them.
    """

    _defined_methods: ClassVar[dict[str, Callable]]

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        # Kernels compare with these to notice methods that were replaced after the class was defined.
        names = (name for name in dir(cls) if not name.startswith("__"))
        cls._defined_methods = {name: method for name in names if isfunction(method := getattr(cls, name))}

    def __call__(self, images: Tensor, *, seed: int | None = None, key: Tensor | None = None) -> Tensor:
        batch = check_pixel_range(as_batch(images))
        rng_key = self._rng_key(batch, seed, key)
        with torch.autocast(batch.device.type, enabled=False):  # the caller's autocast would round the pixels
            views = self.views(batch, rng_key)
        return views if images.ndim == 4 else views[0]

    def views(self, images: Tensor, rng_key: Tensor) -> Tensor:
        """Return the views of a batch [B, 3, H, W] with keys [B], without checks: training calls this."""
        return self.plain_views(images, rng_key)

    def plain_views(self, images: Tensor, rng_key: Tensor) -> Tensor:
        """Return the views of a batch [B, 3, H, W] with keys [B] in plain PyTorch. Subclasses define it."""
        raise NotImplementedError(f"{type(self).__name__} must define plain_views")

    @staticmethod
    def _rng_key(images: Tensor, seed: int | None, key: Tensor | None) -> Tensor:
        if key is None:
            number = int(torch.randint(2**63 - 1, ())) if seed is None else seed_number(seed)
            return keys(number, 0, torch.arange(len(images), device=images.device))
        if seed is not None:
            raise AAGError("give either seed= or key=, not both: a key already depends on its seed")
        if not isinstance(key, Tensor):
            raise AAGError(f"key= takes an int64 tensor from aag.augment.keys, not {type(key).__name__}")
        key = key[None] if key.ndim == 0 else key
        if key.shape != images.shape[:1] or key.dtype != torch.int64 or key.device != images.device:
            wanted, given = f"{images.device}, int64 [{len(images)}]", f"{key.device}, {key.dtype} {list(key.shape)}"
            raise AAGError(f"expected one key per image, on {wanted}; got {given}")
        return key


def to_float(images: Tensor) -> Tensor:
    """Convert images to float32 in [0, 1]."""
    return images.float() / 255 if images.dtype == torch.uint8 else images.float()


def to_uint8(images: Tensor) -> Tensor:
    """Convert images to uint8, rounded to the nearest level."""
    return images if images.dtype == torch.uint8 else (images * 255).round().clamp(0, 255).to(torch.uint8)


def to_dtype(images: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert images, uint8 or float in [0, 1], to a dtype."""
    return to_uint8(images) if dtype == torch.uint8 else to_float(images).to(dtype)
