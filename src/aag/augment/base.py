"""The base class of all augmentations, and functions that they share: checks and conversions of images."""

import math
from collections.abc import Callable, Iterable
from inspect import isfunction
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from aag.errors import AAGError, describe, unknown_name
from aag.pixels import check_pixel_range
from aag.rng import keys
from aag.settings import Range

Probability = Annotated[float, Range(at_least=0, at_most=1)]
PositiveInt = Annotated[int, Range(at_least=1)]
Side = Annotated[int, Range(at_least=1, at_most=2**16)]  # in pixels


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
        if "__call__" in vars(cls):
            raise AAGError(f"{cls.__name__} overrides __call__, which training does not use; override plain_views")
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

    def at_size(self, size: int) -> "Augmentation":
        """Return the same augmentation for larger images, with views of `size` pixels a side.

        By default images are cropped to their centre first. Random crops override it to use the whole image.
        """
        return CentreCropped(self, size)

    @staticmethod
    def _rng_key(images: Tensor, seed: int | None, key: Tensor | None) -> Tensor:
        if key is None:
            seed = int(torch.randint(2**63 - 1, ())) if seed is None else seed
            return keys(seed, 0, torch.arange(len(images), device=images.device))
        if seed is not None:
            raise AAGError("give either seed= or key=, not both: a key already depends on its seed")
        if not isinstance(key, Tensor):
            raise AAGError(f"key= takes an int64 tensor from aag.augment.keys, not {type(key).__name__}")
        key = key[None] if key.ndim == 0 else key
        if key.shape != images.shape[:1] or key.dtype != torch.int64 or key.device != images.device:
            wanted, given = f"{images.device}, int64 [{len(images)}]", f"{key.device}, {key.dtype} {list(key.shape)}"
            raise AAGError(f"expected one key per image, on {wanted}; got {given}")
        return key


class CentreCropped(Augmentation):
    """Crop images to their centre square, then apply another augmentation."""

    def __init__(self, augmentation: Augmentation, size: int) -> None:
        self.augmentation, self.size = augmentation, size

    def views(self, images: Tensor, rng_key: Tensor) -> Tensor:
        return self.augmentation.views(centre_crop(images, self.size), rng_key)

    plain_views = views


def centre_crop(images: Tensor, size: int) -> Tensor:
    """Return the centre squares [..., size, size] of images [..., H, W], contiguous."""
    top, left = (images.shape[-2] - size) // 2, (images.shape[-1] - size) // 2
    return images[..., top : top + size, left : left + size].contiguous()


# --- dtypes ----------------------------------------------------------------------------------------------------------


def to_float(images: Tensor) -> Tensor:
    """Convert images to float32 in [0, 1]."""
    return images.float() / 255 if images.dtype == torch.uint8 else images.float()


def to_uint8(images: Tensor) -> Tensor:
    """Convert images to uint8, rounded to the nearest level."""
    return images if images.dtype == torch.uint8 else (images * 255).round().clamp(0, 255).to(torch.uint8)


def to_dtype(images: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert images, uint8 or float in [0, 1], to a dtype."""
    return to_uint8(images) if dtype == torch.uint8 else to_float(images).to(dtype)


# --- some images of a batch ------------------------------------------------------------------------------------------


def needs_static_shapes(images: Tensor) -> bool:
    """Return whether to apply an operation to all images and select, rather than gather the chosen images.

    Gathering needs their number on the host. That is free on a CPU, synchronises a GPU, and cannot be captured.
    """
    return images.device.type != "cpu" or torch.compiler.is_compiling()


def apply_masked(mask: Tensor, operation: Callable[..., Tensor], images: Tensor, *per_image: Tensor) -> Tensor:
    """Return `operation(images, *per_image)` where `mask` [B] is true, and the image itself elsewhere."""
    if needs_static_shapes(images):
        return torch.where(mask[:, None, None, None], operation(images, *per_image), images)
    index = mask.nonzero()[:, 0]
    if len(index) == 0:
        return images
    if len(index) == len(images):
        return operation(images, *per_image)
    out = images.clone()
    out[index] = operation(images[index], *(value[index] for value in per_image))
    return out


# --- checks ----------------------------------------------------------------------------------------------------------


def as_batch(images: Tensor, *, allow_float: bool = True) -> Tensor:
    """Return images [B, 3, H, W], or a single image [3, H, W] as a batch of one."""
    expected = f"expected RGB images [B, 3, H, W] or [3, H, W], uint8{' or float in [0, 1]' * allow_float}"
    if not isinstance(images, Tensor):
        hint = "use torch.as_tensor(array), or aag.data.load(path).images"
        raise AAGError(f"{expected}; got {type(images).__name__}; {hint}")
    got = f"got {images.dtype} {list(images.shape)}"
    if images.layout != torch.strided or images.is_meta:
        raise AAGError(f"{expected}; got {images.layout} on {images.device}, which holds no pixels to read")
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


def check_name(what: str, name: Any, known: Iterable[str]) -> None:
    """Raise if a name is not among the known ones."""
    if not isinstance(name, str) or name not in known:
        raise unknown_name(what, name, known)


def check_range(name: str, pair: Any) -> tuple[float, float]:
    """Return the pair (low, high) as a tuple; raise unless 0 < low <= high."""
    try:
        low, high = pair
        valid = all(isinstance(value, int | float) for value in (low, high)) and 0 < low <= high < math.inf
    except (TypeError, ValueError):
        valid = False
    if not valid:
        raise AAGError(f"{name} must be two positive numbers (low, high), not {describe(pair)}")
    return low, high
