"""The basic augmentation: crop, colour jitter, grayscale, flip and blur, in the paper's order."""

from dataclasses import dataclass, fields, replace
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from aag import kernels
from aag.augment.base import (
    Augmentation,
    PositiveInt,
    Probability,
    Side,
    apply_masked,
    check_name,
    check_range,
    to_dtype,
)
from aag.augment.colour import ORDERS, blur, grayscale, jitter
from aag.augment.geometry import crop_boxes, resample
from aag.augment.threads import split_over_threads
from aag.errors import AAGError
from aag.rng import uniforms
from aag.settings import Range, check_fields

Strength = Annotated[float, Range(at_least=0)]


@dataclass(frozen=True)
class BasicAugment(Augmentation):
    """The paper's basic augmentation. A probability of 0 leaves a step out."""

    size: Side | None = None  # height and width of the views in pixels; None keeps the images'
    scale: tuple[float, float] = (0.2, 1.0)  # area of the crop as a fraction of the image
    ratio: tuple[float, float] = (3 / 4, 4 / 3)  # width / height of the crop
    brightness: Strength = 0.4  # the factor is uniform in [max(0, 1 − b), 1 + b]; also for contrast and saturation
    contrast: Strength = 0.4
    saturation: Strength = 0.4
    hue: Annotated[float, Range(at_least=0, at_most=0.5)] = (
        0.1  # the shift is uniform in [−h, h], as a fraction of the colour circle
    )
    jitter: Probability = 0.8  # of the four above, in a random order
    gray: Probability = 0.2
    flip: Probability = 0.5
    blur: Probability = 0.5
    blur_sigma: tuple[float, float] = (0.1, 2.0)  # pixels
    blur_kernel: PositiveInt = 3  # width in pixels, odd

    def __post_init__(self) -> None:
        for name in ("scale", "ratio", "blur_sigma"):
            object.__setattr__(self, name, check_range(name, getattr(self, name)))
        check_fields(self, spell=str)
        if self.blur_kernel % 2 == 0:
            raise AAGError(f"blur_kernel must be odd, not {self.blur_kernel}")

    @staticmethod
    def preset(name: str, **changes: object) -> "BasicAugment":
        """Return the settings named `paper`, `isif`, `simclr`, `crop` (no colour changes) or `amdim`, with changes."""
        check_name("preset of BasicAugment", name, PRESETS)
        for change in changes:
            check_name("field of BasicAugment", change, {field.name for field in fields(BasicAugment)})
        return BasicAugment(**{**PRESETS[name], **changes})  # type: ignore[arg-type]

    def at_size(self, size: int) -> "BasicAugment":
        return replace(self, size=size)

    def views(self, images: Tensor, rng_key: Tensor) -> Tensor:
        if kernels.enabled(images):
            from aag.augment.kernels import basic as view_kernel  # imports triton

            if view_kernel.supports(self):
                return view_kernel.views(self, images, rng_key)
        return split_over_threads(self.plain_views, images, rng_key)

    def plain_views(self, images: Tensor, rng_key: Tensor) -> Tensor:
        height, width = images.shape[2:]
        draws = self.draws(rng_key, height, width)
        # A flip commutes with the steps after it, so resampling does it at no cost.
        out = resample(images, draws.box, draws.flip, (self.size or height, self.size or width))
        out = out / 255 if images.dtype == torch.uint8 else out
        if self.jitter:
            out = jitter(out, draws.jitter, draws.order, draws.strength)
        if self.gray:
            out = apply_masked(draws.gray, grayscale, out)
        if self.blur:
            out = apply_masked(draws.blur, lambda pixels, s: blur(pixels, s, self.blur_kernel), out, draws.sigma)
        return to_dtype(out, images.dtype)

    def draws(self, rng_key: Tensor, height: int, width: int) -> "BasicDraws":
        """Return the random draws for images of a size, given their keys [B]."""
        u = uniforms(rng_key, 32)
        flip, jitter, gray, blur = (u[:, 22:26] < u.new_tensor([self.flip, self.jitter, self.gray, self.blur])).T
        spread = u.new_tensor(self.jitter_spreads())
        centre = spread.clamp(min=1) * spread.new_tensor([1, 1, 1, 0])  # hue is a shift around 0
        strength = centre + spread * (2 * u[:, 26:30] - 1)
        low, high = self.blur_sigma
        return BasicDraws(
            box=crop_boxes(u[:, :22], height, width, self.scale, self.ratio),
            flip=flip,
            jitter=jitter,
            gray=gray,
            blur=blur,
            strength=strength,
            order=(u[:, 30] * len(ORDERS)).long(),
            sigma=low + (high - low) * u[:, 31],
        )

    def jitter_spreads(self) -> tuple[float, ...]:
        """Return half the range of the three factors and of the hue. A factor's range is around 1, or starts at 0."""
        return (*(min(b, (1 + b) / 2) for b in (self.brightness, self.contrast, self.saturation)), self.hue)


class BasicDraws(NamedTuple):
    """The random draws of a batch, each [B] unless noted."""

    box: Tensor  # [B, 4]: top, left, height, width
    flip: Tensor
    jitter: Tensor
    gray: Tensor
    blur: Tensor
    strength: Tensor  # [B, 4]: brightness, contrast, saturation, hue
    order: Tensor  # order of these four, an index into ORDERS
    sigma: Tensor  # of the blur, in pixels


PRESETS: dict[str, dict[str, object]] = {
    "paper": {},
    "isif": {"hue": 0.4, "jitter": 1.0, "blur": 0.0},
    "simclr": {"scale": (0.08, 1.0), "blur": 0.0},
    "crop": {"jitter": 0.0, "gray": 0.0, "blur": 0.0},
    "amdim": {"scale": (0.3, 1.0), "ratio": (0.7, 1.4), "hue": 0.2, "gray": 0.25, "blur": 0.0},
}
