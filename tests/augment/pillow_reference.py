"""Pillow's operations and crop, image by image: the reference of ours."""

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

GRAY = (128, 128, 128)
INEXACT = ("Rotate", "ShearX", "ShearY")  # rounding may select another nearest pixel


def to_pillow(image: Tensor) -> Image.Image:
    """Convert uint8 [3, H, W] to a Pillow image."""
    return Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())


def from_pillow(im: Image.Image) -> Tensor:
    """Convert a Pillow image to uint8 [3, H, W]."""
    return torch.from_numpy(np.array(im)).permute(2, 0, 1)


def operation(name: str, image: Tensor, v: float) -> Tensor:
    """Apply an operation to uint8 [3, H, W] by Pillow's function."""
    im = to_pillow(image)
    matrices = {
        "ShearX": (1, v, 0, 0, 1, 0),
        "ShearY": (1, 0, 0, v, 1, 0),
        "TranslateX": (1, 0, v, 0, 1, 0),
        "TranslateY": (1, 0, 0, 0, 1, v),
    }
    if name in matrices:
        nearest = Image.Resampling.NEAREST
        return from_pillow(im.transform(im.size, Image.Transform.AFFINE, matrices[name], nearest, fillcolor=GRAY))
    if name == "Rotate":
        return from_pillow(im.rotate(v, fillcolor=GRAY))
    if name in ("Brightness", "Color", "Contrast", "Sharpness"):
        return from_pillow(getattr(ImageEnhance, name)(im).enhance(v))
    if name == "Posterize":
        return from_pillow(ImageOps.posterize(im, int(v)))
    if name == "Solarize":
        return from_pillow(ImageOps.solarize(im, v))
    plain = {"AutoContrast": ImageOps.autocontrast, "Equalize": ImageOps.equalize, "Invert": ImageOps.invert}
    return from_pillow(plain[name](im)) if name in plain else image


def operations(name: str, images: Tensor, magnitudes: list[float]) -> Tensor:
    """Apply an operation to images [B, 3, H, W], each with its own magnitude."""
    return torch.stack([operation(name, image, v) for image, v in zip(images, magnitudes, strict=True)])


def crop_and_resize(image: Tensor, box: Tensor, flip: bool, size: tuple[int, int]) -> Tensor:
    """Crop the box (top, left, height, width), resize it to (height, width) with BILINEAR, then flip it."""
    top, left, height, width = (int(n) for n in box)
    crop = to_pillow(image).crop((left, top, left + width, top + height))
    out = crop.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    return from_pillow(out.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else out)


def max_difference(ours: Tensor, theirs: Tensor) -> int:
    """Return the largest difference of two uint8 batches, in levels."""
    return int((ours.int() - theirs.int()).abs().max())


def fraction_differing(ours: Tensor, theirs: Tensor) -> float:
    """Return the fraction of values in which two uint8 batches differ."""
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype == torch.uint8
    return (ours != theirs).double().mean().item()


def tolerated_fraction(name: str) -> float:
    """Return the fraction of values in which an operation may differ from Pillow's."""
    return 0.001 if name in INEXACT else 0.0
