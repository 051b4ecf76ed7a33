"""What Pillow makes of one image: the reference for the operations and for the crop."""

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

GRAY = (128, 128, 128)
FREE_ANGLED = ("Rotate", "ShearX", "ShearY")  # whose nearest pixel may hang on a rounding of another Pillow


def picture(image: Tensor) -> Image.Image:
    """uint8 [3, H, W] as Pillow's image."""
    return Image.fromarray(image.permute(1, 2, 0).contiguous().numpy())


def pixels(im: Image.Image) -> Tensor:
    """Pillow's image as uint8 [3, H, W]."""
    return torch.from_numpy(np.array(im)).permute(2, 0, 1)


def operation(name: str, image: Tensor, v: float) -> Tensor:
    """The operation by Pillow's own function, on uint8 [3, H, W]."""
    im = picture(image)
    matrices = {
        "ShearX": (1, v, 0, 0, 1, 0),
        "ShearY": (1, 0, 0, v, 1, 0),
        "TranslateX": (1, 0, v, 0, 1, 0),
        "TranslateY": (1, 0, 0, 0, 1, v),
    }
    if name in matrices:
        nearest = Image.Resampling.NEAREST
        return pixels(im.transform(im.size, Image.Transform.AFFINE, matrices[name], nearest, fillcolor=GRAY))
    if name == "Rotate":
        return pixels(im.rotate(v, fillcolor=GRAY))
    if name in ("Brightness", "Color", "Contrast", "Sharpness"):
        return pixels(getattr(ImageEnhance, name)(im).enhance(v))
    if name == "Posterize":
        return pixels(ImageOps.posterize(im, int(v)))
    if name == "Solarize":
        return pixels(ImageOps.solarize(im, v))
    plain = {"AutoContrast": ImageOps.autocontrast, "Equalize": ImageOps.equalize, "Invert": ImageOps.invert}
    return pixels(plain[name](im)) if name in plain else image


def operations(name: str, images: Tensor, magnitudes: list[float]) -> Tensor:
    """Each image of [B, 3, H, W] with its own magnitude."""
    return torch.stack([operation(name, image, v) for image, v in zip(images, magnitudes, strict=True)])


def crop_and_resize(image: Tensor, box: Tensor, flip: bool, size: tuple[int, int]) -> Tensor:
    """The (top, left, height, width) of an image, resized to (height, width) with BILINEAR, then mirrored."""
    top, left, height, width = (int(n) for n in box)
    crop = picture(image).crop((left, top, left + width, top + height))
    out = crop.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    return pixels(out.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if flip else out)


def levels_apart(ours: Tensor, theirs: Tensor) -> int:
    """The largest difference of two byte images."""
    return int((ours.int() - theirs.int()).abs().max())


def share_differing(ours: Tensor, theirs: Tensor) -> float:
    """The share of values in which two batches differ."""
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype == torch.uint8
    return (ours != theirs).double().mean().item()


def allowed(name: str) -> float:
    """The share of values in which an operation may differ from Pillow's."""
    return 0.001 if name in FREE_ANGLED else 0.0
