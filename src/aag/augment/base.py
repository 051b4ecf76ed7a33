"""What all augmentations share: keys, dtypes, sizes."""

import torch
from torch import Tensor

from aag.errors import AAGError
from aag.pixels import check_pixel_range
from aag.rng import keys


class Augmentation:
    """Images [B, 3, H, W] in, images out: uint8 stays uint8, float in [0, 1] stays float, on the same device.

    Floats are looked at first, since those up to 255 would be clipped; on a GPU that waits for it, where bytes do not.
    Each image has its own draw. It depends on `key` alone, int64 [B] (see `aag.augment.keys`); without one, on
    `seed` and the image's place in the batch.
    """

    def __call__(self, images: Tensor, *, seed: int = 0, key: Tensor | None = None) -> Tensor:
        expected = "expected images [B, 3, H, W], uint8 or float in [0, 1]"
        if not isinstance(images, Tensor):
            raise AAGError(f"{expected}; got {type(images).__name__}")
        if images.ndim != 4 or images.shape[1] != 3 or not (images.dtype == torch.uint8 or images.is_floating_point()):
            raise AAGError(f"{expected}; got {images.dtype} {tuple(images.shape)}")
        check_pixel_range(images)
        if key is None:
            key = keys(seed, 0, torch.arange(len(images), device=images.device))
        if key.shape != images.shape[:1] or key.dtype != torch.int64:
            raise AAGError(
                f"expected one int64 key for each of {len(images)} images, got {key.dtype} {tuple(key.shape)}"
            )
        with torch.autocast(images.device.type, enabled=False):  # a caller's would round the pixels
            return self.views(images, key)

    def views(self, images: Tensor, key: Tensor) -> Tensor:
        """One of each image, by its key; nothing is checked."""
        return self.draw(images, key)

    def draw(self, images: Tensor, key: Tensor) -> Tensor:
        """What a family defines: the views of a batch, or of a part of one."""
        raise NotImplementedError


def to_unit(images: Tensor) -> Tensor:
    """float32 in [0, 1]."""
    return images.float() / 255 if images.dtype == torch.uint8 else images.float()


def to_bytes(images: Tensor) -> Tensor:
    """uint8, rounded."""
    return images if images.dtype == torch.uint8 else (images * 255).round().clamp(0, 255).to(torch.uint8)


def like(images: Tensor, dtype: torch.dtype) -> Tensor:
    """Images, uint8 or float in [0, 1], as the dtype asked for."""
    return to_bytes(images) if dtype == torch.uint8 else to_unit(images).to(dtype)
