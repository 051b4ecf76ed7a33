"""The auxiliary augmentation: a crop and a flip, then a policy such as AutoAugment."""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from torch import Tensor

from aag import kernels
from aag.augment.autoaugment import AutoAugment
from aag.augment.base import Augmentation, Probability, Side, check_range, to_dtype, to_uint8
from aag.augment.geometry import affine, crop_boxes, resample
from aag.augment.threads import split_over_threads
from aag.errors import AAGError, describe
from aag.rng import uniforms
from aag.settings import Range, check_fields

FIRST_SLOT = 32  # first slot of the crop's random numbers; the policy uses the slots before it


@dataclass(frozen=True)
class AuxiliaryAugment(Augmentation):
    """Crop and flip each image, then apply a policy, any augmentation. The paper leaves the crop open."""

    policy: Augmentation = AutoAugment()  # noqa: RUF009 - frozen, so it may be shared
    # resized: RandomResizedCrop; padded: shift by up to `pad` pixels; none: no crop, no flip
    crop: Literal["resized", "padded", "none"] = "resized"
    flip: Probability = 0.5
    scale: tuple[float, float] = (0.2, 1.0)  # area of the resized crop as a fraction of the image
    ratio: tuple[float, float] = (3 / 4, 4 / 3)  # width / height of the resized crop
    pad: Annotated[int, Range(at_least=0)] = 4  # pixels
    size: Side | None = None  # height and width of a resized crop in pixels; None keeps the images'

    def __post_init__(self) -> None:
        if not isinstance(self.policy, Augmentation):
            raise AAGError(
                f"policy must be an augmentation such as AutoAugment('cifar10'), not {describe(self.policy)}"
            )
        for name in ("scale", "ratio"):
            object.__setattr__(self, name, check_range(name, getattr(self, name)))
        check_fields(self, spell=str)
        if self.size is not None and self.crop != "resized":
            raise AAGError(f"size needs a resized crop; with crop {self.crop!r} use at_size")

    def at_size(self, size: int) -> Augmentation:
        return replace(self, size=size) if self.crop == "resized" else super().at_size(size)

    def views(self, images: Tensor, rng_key: Tensor) -> Tensor:
        if self.crop != "none" and kernels.enabled(images):
            from aag.augment.kernels import crop as crop_kernel  # imports triton

            if crop_kernel.supports(self):
                cropped = crop_kernel.crop_batch(self, to_uint8(images), rng_key)
                return to_dtype(self.policy.views(cropped, rng_key), images.dtype)
        return self.plain_views(images, rng_key)

    def plain_views(self, images: Tensor, rng_key: Tensor) -> Tensor:
        """Crop in plain PyTorch; the policy may still use a kernel."""
        out = split_over_threads(self.plain_crop, to_uint8(images), rng_key)
        return to_dtype(self.policy.views(out, rng_key), images.dtype)

    def plain_crop(self, images: Tensor, rng_key: Tensor) -> Tensor:
        """Crop and flip uint8 images."""
        if self.crop == "none":
            return images
        height, width = images.shape[2:]
        u = uniforms(rng_key, FIRST_SLOT + 23)[:, FIRST_SLOT:]
        flip = u[:, 22] < self.flip
        if self.crop == "resized":
            box = crop_boxes(u[:, :22], height, width, self.scale, self.ratio)
            # Round in units of levels: a GPU divides by 255 through its reciprocal, which moves exact halves.
            return resample(images, box, flip, (self.size or height, self.size or width)).round().to(torch.uint8)
        shift = torch.floor(u[:, :2].double() * (2 * self.pad + 1)) - self.pad
        sign = torch.where(flip, -1.0, 1.0).double()
        zero, one = torch.zeros_like(sign), torch.ones_like(sign)
        left = shift[:, 0] + torch.where(flip, width - 1.0, 0.0)
        return affine(images, torch.stack([sign, zero, left + (one - sign) / 2, zero, one, shift[:, 1]], dim=1))
