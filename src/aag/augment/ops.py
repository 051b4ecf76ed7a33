"""The operations of AutoAugment and RandAugment on uint8 batches, each image with its own magnitude.

They give Pillow's pixels. An operation that maps a channel's 256 values to 256 values is a table, looked up
once for all of them; the geometric ones are an affine map each and share one gather; Color and Sharpness are
blends and share one. So a batch in which every image has another operation costs one of each.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from aag import kernels
from aag.augment.geometry import affine, fixed_point
from aag.augment.select import dense
from aag.errors import AAGError, unknown

TABLES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {}
MATRICES: dict[str, Callable[[Tensor, int, int], Tensor]] = {}
BLENDS: dict[str, Callable[[Tensor], Tensor]] = {}


def apply_op(name: str, images: Tensor, magnitude: float | Tensor | None = None) -> Tensor:
    """One operation on every image: uint8 [B, 3, H, W] in and out.

    The magnitude, one number or one for each image, is what Pillow's function takes: degrees (Rotate, counter-
    clockwise), pixels (Translate) and the slope (Shear) as in the matrix of Image.transform, a factor (Brightness,
    Color, Contrast, Sharpness), bits (Posterize), a threshold (Solarize). Identity, Invert, AutoContrast and
    Equalize take none.
    """
    if name not in OPS:
        raise unknown("operation", name, OPS)
    check_images(images)
    if magnitude is None and name not in WITHOUT_MAGNITUDE:
        raise AAGError(f"{name} needs a magnitude")
    value = torch.as_tensor(0.0 if magnitude is None else magnitude, dtype=torch.float64, device=images.device)
    if value.ndim > 1 or (value.ndim and len(value) not in (1, len(images))):
        raise AAGError(f"{name} takes one magnitude, or one for each of {len(images)} images; got {list(value.shape)}")
    return _single(name, images, value.expand(len(images)))


def apply_each(op: Tensor, images: Tensor, magnitude: Tensor) -> Tensor:
    """To each image its own operation, an index [B] into OPS, with its own magnitude float64 [B]."""
    if kernels.enabled(images):
        from aag.augment.kernels.operate import operate

        own = torch.arange(len(images), dtype=torch.int32, device=images.device)
        return operate(images, steps(op, magnitude, *images.shape[2:]), own)
    if dense(images):
        return _all_at_once(op, images, magnitude)
    out = images.clone()
    for number in op.unique().tolist():
        index = (op == number).nonzero()[:, 0]
        out[index] = _single(OPS[number], images[index], magnitude[index])
    return out


def _single(name: str, images: Tensor, magnitude: Tensor) -> Tensor:
    if name in TABLES:
        return _look_up(TABLES[name](images, magnitude), images)
    if name in MATRICES:
        return affine(images, MATRICES[name](magnitude, *images.shape[2:]))
    if name in BLENDS:
        return _blend(BLENDS[name](images), images, magnitude.float()[:, None, None, None])
    return images


def _all_at_once(op: Tensor, images: Tensor, magnitude: Tensor) -> Tensor:
    """Fixed shapes and no branch on a value: it compiles, and the GPU never waits for the host."""
    chosen = {name: op == number for number, name in enumerate(OPS)}

    table = _levels(images).to(torch.uint8).expand(len(images), images.shape[1], 256)
    for name, make_table in TABLES.items():
        table = torch.where(chosen[name][:, None, None], make_table(images, magnitude), table)
    out = _look_up(table, images)

    other = images
    for name, make_other in BLENDS.items():
        other = torch.where(chosen[name][:, None, None, None], make_other(images), other)
    blended = torch.stack([chosen[name] for name in BLENDS]).any(dim=0)[:, None, None, None]
    out = torch.where(blended, _blend(other, images, magnitude.float()[:, None, None, None]), out)

    return affine(out, _matrices(op, magnitude, *images.shape[2:]))


def steps(op: Tensor, magnitude: Tensor, height: int, width: int) -> Tensor:
    """What a kernel needs to know, float64 [B, 8]: the operation, its magnitude, and its map in fixed point."""
    return torch.cat([op[:, None], magnitude[:, None], fixed_point(_matrices(op, magnitude, height, width))], dim=1)


def _matrices(op: Tensor, magnitude: Tensor, height: int, width: int) -> Tensor:
    """float64 [B, 6]; the identity where the operation is none of MATRICES."""
    matrix = torch.tensor([1.0, 0, 0, 0, 1, 0], dtype=torch.float64, device=op.device).expand(len(op), 6)
    for name, make_matrix in MATRICES.items():
        matrix = torch.where((op == OPS.index(name))[:, None], make_matrix(magnitude, height, width), matrix)
    return matrix


# --- tables: uint8 [B, C, 256] -------------------------------------------------------------------------------------


def _levels(images: Tensor) -> Tensor:
    return torch.arange(256, device=images.device)


def _look_up(table: Tensor, images: Tensor) -> Tensor:
    b, c, h, w = images.shape
    table = table.expand(b, c, 256)
    return table.gather(2, images.reshape(b, c, h * w).long()).view(images.shape)


def _invert(images: Tensor, _: Tensor) -> Tensor:
    return (255 - _levels(images)).to(torch.uint8).expand(len(images), 1, 256)


def _solarize(images: Tensor, threshold: Tensor) -> Tensor:
    level = _levels(images)
    return torch.where(level < threshold[:, None, None], level, 255 - level).to(torch.uint8)


def _posterize(images: Tensor, bits: Tensor) -> Tensor:
    level = _levels(images)
    dropped = 8 - bits.long()[:, None, None].clamp(0, 8)
    return ((level >> dropped) << dropped).to(torch.uint8)


def _brightness(images: Tensor, factor: Tensor) -> Tensor:
    level = _levels(images)
    return _blend(torch.zeros_like(level), level, factor.float()[:, None, None])


def _contrast(images: Tensor, factor: Tensor) -> Tensor:
    pixels = images.shape[2] * images.shape[3]
    total = _luma(images).sum(dim=(1, 2, 3), dtype=torch.int64)
    mean = (2 * total + pixels) // (2 * pixels)  # rounded half up
    return _blend(mean[:, None, None], _levels(images), factor.float()[:, None, None])


def _auto_contrast(images: Tensor, _: Tensor) -> Tensor:
    value = images.int()  # compiled for a CPU, the smallest of many bytes comes out as 0 (pytorch issue 191499)
    low = value.amin(dim=(2, 3)).double()[:, :, None]
    high = value.amax(dim=(2, 3)).double()[:, :, None]
    level = _levels(images).double()
    # In float64, by a true division (a number over a tensor multiplies by the reciprocal) and in this order: the
    # truncation shows the last bit of the arithmetic.
    scale = torch.full_like(high, 255).div((high - low).clamp(min=1))
    stretched = (level * scale + -low * scale).clamp(0, 255)
    return torch.where(high > low, stretched, level).to(torch.uint8)


def _equalize(images: Tensor, _: Tensor) -> Tensor:
    b, c, h, w = images.shape
    value = images.reshape(b, c, h * w).long()
    ones = torch.ones((), dtype=torch.int32, device=images.device).expand_as(value)
    histogram = torch.zeros(b, c, 256, dtype=torch.int32, device=images.device).scatter_add(2, value, ones)
    of_brightest = histogram.gather(2, value.amax(dim=2, keepdim=True))
    step = (h * w - of_brightest) // 255  # [B, C, 1]
    below = histogram.cumsum(dim=2) - histogram
    flat = (step // 2 + below) // step.clamp(min=1)
    return torch.where(step > 0, flat.clamp(max=255), _levels(images)).to(torch.uint8)


TABLES.update(
    Brightness=_brightness,
    Contrast=_contrast,
    Posterize=_posterize,
    Solarize=_solarize,
    AutoContrast=_auto_contrast,
    Equalize=_equalize,
    Invert=_invert,
)


# --- blends with another image: uint8 [B, C, H, W] ------------------------------------------------------------------


def _blend(other: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    """other + factor·(images − other) in float32, cut to a byte: below 1 a mixture, above 1 an exaggeration."""
    start = other.float()
    return (start + factor * (images.float() - start)).clamp(0, 255).to(torch.uint8)


def _luma(images: Tensor) -> Tensor:
    """Rec. 601 luma in 16-bit fixed point: int32 [B, 1, H, W]."""
    red, green, blue = images.int().unbind(1)
    return ((19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16)[:, None]


def _gray(images: Tensor) -> Tensor:
    return _luma(images).to(torch.uint8).expand_as(images)


def _smooth(images: Tensor) -> Tensor:
    """The 3×3 mean with the centre counted five times; the outermost pixels stay."""
    if min(images.shape[2:]) < 3:
        return images
    value = images.int()
    rows = value[:, :, :-2] + value[:, :, 1:-1] + value[:, :, 2:]
    total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * value[:, :, 1:-1, 1:-1]
    out = images.clone()
    out[:, :, 1:-1, 1:-1] = ((2 * total + 13) // 26).to(torch.uint8)  # total/13, rounded; a tie can't occur
    return out


BLENDS.update(Color=_gray, Sharpness=_smooth)


# --- affine maps: float64 [B, 6] -------------------------------------------------------------------------------------


def _rows(magnitude: Tensor, *entries: float | Tensor) -> Tensor:
    return torch.stack(
        [torch.as_tensor(e, dtype=torch.float64, device=magnitude.device).expand_as(magnitude) for e in entries], 1
    )


def _shear_x(slope: Tensor, height: int, width: int) -> Tensor:
    return _rows(slope, 1, slope, 0, 0, 1, 0)


def _shear_y(slope: Tensor, height: int, width: int) -> Tensor:
    return _rows(slope, 1, 0, 0, slope, 1, 0)


def _translate_x(pixels: Tensor, height: int, width: int) -> Tensor:
    return _rows(pixels, 1, 0, torch.floor(pixels + 0.5), 0, 1, 0)


def _translate_y(pixels: Tensor, height: int, width: int) -> Tensor:
    return _rows(pixels, 1, 0, 0, 0, 1, torch.floor(pixels + 0.5))


def _rotate(degrees: Tensor, height: int, width: int) -> Tensor:
    angle = -torch.remainder(degrees, 360) * (math.pi / 180)
    # 15 decimals, so that a quarter turn has a cosine of exactly 0
    cos, sin = torch.round(torch.cos(angle), decimals=15), torch.round(torch.sin(angle), decimals=15)
    x, y = width / 2, height / 2
    return _rows(degrees, cos, sin, x - cos * x - sin * y, -sin, cos, y + sin * x - cos * y)


MATRICES.update(ShearX=_shear_x, ShearY=_shear_y, TranslateX=_translate_x, TranslateY=_translate_y, Rotate=_rotate)

OPS = ("Identity", *MATRICES, *TABLES, *BLENDS)
WITHOUT_MAGNITUDE = frozenset({"Identity", "AutoContrast", "Equalize", "Invert"})


def check_images(images: Tensor) -> None:
    """uint8 images [B, 3, H, W]."""
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
        raise AAGError(f"expected uint8 images [B, 3, H, W], got {images.dtype} {tuple(images.shape)}")
