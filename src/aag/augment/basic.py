"""The basic family: crop, colour jitter, grayscale, flip, blur, in the paper's order."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from aag import kernels
from aag.augment.base import Augmentation, like
from aag.augment.colour import ORDERS, blur, grayscale, jitter
from aag.augment.geometry import crop_boxes, resample
from aag.augment.parts import by_parts
from aag.augment.select import apply_where
from aag.errors import AAGError, unknown
from aag.rng import uniforms


@dataclass(frozen=True)
class BasicAugment(Augmentation):
    """The paper's basic view. Every field is a setting; probabilities of 0 leave a step out."""

    size: int | None = None  # output side in pixels; None keeps the input's height and width
    scale: tuple[float, float] = (0.2, 1.0)  # share of the area a crop keeps
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    brightness: float = 0.4  # factors are drawn from [1 − s, 1 + s]
    contrast: float = 0.4
    saturation: float = 0.4
    hue: float = 0.1  # turn of the colour circle, drawn from [−s, s]
    jitter: float = 0.8  # probability that the four run, in an order of the image's own
    gray: float = 0.2  # probability
    flip: float = 0.5  # probability
    blur: float = 0.5  # probability
    blur_sigma: tuple[float, float] = (0.1, 2.0)  # pixels
    blur_kernel: int = 3  # pixels, odd

    def __post_init__(self) -> None:
        if self.blur_kernel < 1 or self.blur_kernel % 2 == 0:
            raise AAGError(f"the blur's kernel is an odd number of pixels, not {self.blur_kernel}")
        for name in ("scale", "ratio", "blur_sigma"):
            low, high = getattr(self, name)
            if not 0 < low <= high:
                raise AAGError(f"{name} is a range of positive numbers, low and high, not {(low, high)}")

    @staticmethod
    def preset(name: str, **changes: float) -> "BasicAugment":
        """`paper`, `isif`, `simclr`, `crop` (colours left alone) or `amdim`, with any field changed."""
        if name not in PRESETS:
            raise unknown("basic augmentation", name, PRESETS)
        return BasicAugment(**{**PRESETS[name], **changes})  # type: ignore[arg-type]

    def views(self, images: Tensor, key: Tensor) -> Tensor:
        return by_parts(self.draw, images, key)

    def draw(self, images: Tensor, key: Tensor) -> Tensor:
        height, width = images.shape[2:]
        size = (self.size or height, self.size or width)
        if kernels.enabled(images):
            from aag.augment.kernels.view import basic

            return basic(images, self.kernel_draws(key, height, width), size, self.blur_kernel * (self.blur > 0))

        # A flip commutes with what follows it here, so the crop's resampling does it for nothing.
        drawn = self.draws(key, height, width)
        out = resample(images, drawn.box, drawn.flip, size)
        out = out / 255 if images.dtype == torch.uint8 else out
        if self.jitter:
            out = jitter(out, drawn.jittered, drawn.order, drawn.strength)
        if self.gray:
            out = apply_where(drawn.gray, grayscale, out)
        if self.blur:
            out = apply_where(drawn.blurred, lambda pixels, s: blur(pixels, s, self.blur_kernel), out, drawn.sigma)
        return like(out, images.dtype)

    def draws(self, key: Tensor, height: int, width: int) -> "BasicDraws":
        """What the images with these keys [B] are to get."""
        u = uniforms(key, 32)
        flip, jittered, gray, blurred = (u[:, 22:26] < u.new_tensor([self.flip, self.jitter, self.gray, self.blur])).T
        spread = u.new_tensor([self.brightness, self.contrast, self.saturation, self.hue])
        strength = u.new_tensor([1, 1, 1, 0]) + spread * (2 * u[:, 26:30] - 1)
        strength[:, :3].clamp_(min=0)
        low, high = self.blur_sigma
        return BasicDraws(
            box=crop_boxes(u[:, :22], height, width, self.scale, self.ratio),
            flip=flip,
            jittered=jittered,
            gray=gray,
            blurred=blurred,
            strength=strength,
            order=(u[:, 30] * len(ORDERS)).long(),
            sigma=low + (high - low) * u[:, 31],
        )

    def kernel_draws(self, key: Tensor, height: int, width: int) -> Tensor:
        """The same as float32 [B, 16], in a kernel's columns."""
        from aag.augment.kernels.draws import view_draws, view_settings

        settings = view_settings(
            (height, width),
            self.scale,
            self.ratio,
            (self.flip, self.jitter, self.gray, self.blur),
            (self.brightness, self.contrast, self.saturation, self.hue),
            self.blur_sigma,
            key.device,
        )
        return view_draws(key, settings, (height, width), first=0)


class BasicDraws(NamedTuple):
    """One of each for every image: [B], or as given."""

    box: Tensor  # [B, 4]: top, left, height, width
    flip: Tensor
    jittered: Tensor
    gray: Tensor
    blurred: Tensor
    strength: Tensor  # [B, 4]: brightness, contrast, saturation, hue
    order: Tensor  # of the four, an index into ORDERS
    sigma: Tensor  # of the blur


PRESETS: dict[str, dict[str, object]] = {
    "paper": {},
    "isif": {"hue": 0.4, "jitter": 1.0, "blur": 0.0},
    "simclr": {"scale": (0.08, 1.0), "blur": 0.0},
    "crop": {"jitter": 0.0, "gray": 0.0, "blur": 0.0},
    "amdim": {"scale": (0.3, 1.0), "ratio": (0.7, 1.4), "hue": 0.2, "gray": 0.25, "blur": 0.0},
}
