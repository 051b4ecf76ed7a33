"""The operations of AutoAugment and RandAugment on uint8 batches, with a magnitude per image.

They give Pillow's pixels. Operations that map each level of a channel to a level are lookup tables and share a lookup.
Geometric operations are affine maps and share a gather. Color and Sharpness share a blend. So a batch in which every
image has a different operation costs one of each.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor

from aag import kernels
from aag.augment.base import as_batch, check_name, needs_static_shapes
from aag.augment.geometry import affine, fixed_point
from aag.augment.threads import MAX_IMAGES, run_tasks
from aag.errors import AAGError, describe


def apply_op(name: str, images: Tensor, magnitude: float | Tensor | None = None) -> Tensor:
    """Apply one operation to uint8 images [B, 3, H, W], or to a single image [3, H, W].

    The magnitude is one number, or one per image, in the units of Pillow's function: degrees counter-clockwise
    (Rotate), pixels (Translate) or slope (Shear) as in the matrix of Image.transform, a factor (Brightness, Color,
    Contrast, Sharpness), bits (Posterize), a threshold (Solarize). Identity, Invert, AutoContrast, Equalize take none.
    """
    check_name("operation", name, OPS)
    batch = as_batch(images, allow_float=False)
    out = _apply_op(name, batch, _magnitudes(name, batch, magnitude))
    return out if images.ndim == 4 else out[0]


def _magnitudes(name: str, images: Tensor, magnitude: float | Tensor | None) -> Tensor:
    """Return a checked magnitude per image, float64 [B]."""
    if magnitude is None and name not in WITHOUT_MAGNITUDE:
        raise AAGError(f"{name} needs a magnitude")
    try:
        value = torch.as_tensor(0.0 if magnitude is None else magnitude, dtype=torch.float64, device=images.device)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise AAGError(f"{name} takes a number or a tensor as its magnitude, not {describe(magnitude)}") from None
    if value.ndim > 1 or (value.ndim and len(value) not in (1, len(images))):
        raise AAGError(f"{name} takes one magnitude, or one for each of {len(images)} images; got {list(value.shape)}")
    if not torch.compiler.is_compiling() and not value.isfinite().all():
        raise AAGError(f"{name} needs finite magnitudes, not {value.flatten()[~value.flatten().isfinite()][0].item()}")
    return value.expand(len(images))


def apply_ops(op: Tensor, images: Tensor, magnitude: Tensor) -> Tensor:
    """Apply a different operation to each image: op, an index into OPS [B], with magnitude float64 [B]."""
    if kernels.enabled(images):
        from aag.augment.kernels import ops as ops_kernel  # imports triton

        every_row = torch.arange(len(images), dtype=torch.int32, device=images.device)
        return ops_kernel.apply_ops(images, op_parameters(op, magnitude, *images.shape[2:]), every_row)
    if needs_static_shapes(images):
        return _apply_ops_statically(op, images, magnitude)
    out = images.clone()

    def apply_to(number: int, index: Tensor) -> None:
        out[index] = _apply_op(OPS[number], images[index], magnitude[index])

    tasks = [
        partial(apply_to, number, part)
        for number in op.unique().tolist()
        if number != OPS.index("Identity")
        for part in (op == number).nonzero()[:, 0].split(MAX_IMAGES)
    ]
    run_tasks(tasks, len(images))
    return out


def _apply_op(name: str, images: Tensor, magnitude: Tensor) -> Tensor:
    if name in TABLES:
        return _look_up(TABLES[name](images, magnitude), images)
    if name in MATRICES:
        return affine(images, MATRICES[name](magnitude, *images.shape[2:]))
    if name in BLENDS:
        return _blend(BLENDS[name](images), images, magnitude.float()[:, None, None, None])
    return images


def _apply_ops_statically(op: Tensor, images: Tensor, magnitude: Tensor) -> Tensor:
    """Do what `apply_ops` does, with static shapes and no branch on a value, so that a GPU is never synchronised."""
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


def op_parameters(op: Tensor, magnitude: Tensor, height: int, width: int) -> Tensor:
    """Return what a kernel needs, float64 [B, 8]: the operation, its magnitude, its affine map in fixed point."""
    return torch.cat([op[:, None], magnitude[:, None], fixed_point(_matrices(op, magnitude, height, width))], dim=1)


def _matrices(op: Tensor, magnitude: Tensor, height: int, width: int) -> Tensor:
    """Return affine maps, float64 [B, 6]: the identity for operations that are not geometric."""
    matrix = torch.tensor([1.0, 0, 0, 0, 1, 0], dtype=torch.float64, device=op.device).expand(len(op), 6)
    for name, make_matrix in MATRICES.items():
        matrix = torch.where((op == OPS.index(name))[:, None], make_matrix(magnitude, height, width), matrix)
    return matrix


# --- lookup tables: uint8 [B, C, 256] --------------------------------------------------------------------------------


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
    value = images.int()  # amin of uint8 compiled for a CPU returns 0 (pytorch issue 191499)
    low = value.amin(dim=(2, 3)).double()[:, :, None]
    high = value.amax(dim=(2, 3)).double()[:, :, None]
    level = _levels(images).double()
    # Truncation makes the last bit of the arithmetic visible. So: float64, this order, and tensor over tensor, since
    # a Python number over a tensor multiplies by the reciprocal.
    scale = torch.full_like(high, 255).div((high - low).clamp(min=1))
    stretched = (level * scale + -low * scale).clamp(0, 255)
    return torch.where(high > low, stretched, level).to(torch.uint8)


def _equalize(images: Tensor, _: Tensor) -> Tensor:
    b, c, h, w = images.shape
    value = images.reshape(b, c, h * w).long()
    ones = torch.ones((), dtype=torch.int32, device=images.device).expand_as(value)
    histogram = torch.zeros(b, c, 256, dtype=torch.int32, device=images.device).scatter_add(2, value, ones)
    brightest_count = histogram.gather(2, value.amax(dim=2, keepdim=True))
    step = (h * w - brightest_count) // 255  # [B, C, 1]
    below = histogram.cumsum(dim=2) - histogram
    equalized = (step // 2 + below) // step.clamp(min=1)
    return torch.where(step > 0, equalized.clamp(max=255), _levels(images)).to(torch.uint8)


# TABLES, BLENDS and MATRICES are read-only: the Triton kernel would ignore a change.
TABLES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType({
    "Brightness": _brightness, "Contrast": _contrast, "Posterize": _posterize, "Solarize": _solarize,
    "AutoContrast": _auto_contrast, "Equalize": _equalize, "Invert": _invert,
})  # fmt: skip


# --- blends with another image: uint8 [B, C, H, W] ------------------------------------------------------------------


def _blend(other: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    """Return other + factor · (images − other) in float32, clamped and truncated to uint8."""
    start = other.float()
    return (start + factor * (images.float() - start)).clamp(0, 255).to(torch.uint8)


def _luma(images: Tensor) -> Tensor:
    """Return Rec. 601 luma, int32 [B, 1, H, W], from 16-bit fixed point."""
    red, green, blue = images.int().unbind(1)
    return ((19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16)[:, None]


def _gray(images: Tensor) -> Tensor:
    return _luma(images).to(torch.uint8).expand_as(images)


def _smooth(images: Tensor) -> Tensor:
    """Return the 3×3 mean with the centre counted five times; border pixels are unchanged."""
    if min(images.shape[2:]) < 3:
        return images
    value = images.int()
    rows = value[:, :, :-2] + value[:, :, 1:-1] + value[:, :, 2:]
    total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * value[:, :, 1:-1, 1:-1]
    out = images.clone()
    out[:, :, 1:-1, 1:-1] = ((2 * total + 13) // 26).to(torch.uint8)  # total / 13 to the nearest: there are no ties
    return out


BLENDS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType({"Color": _gray, "Sharpness": _smooth})


# --- affine maps: float64 [B, 6] -------------------------------------------------------------------------------------


def _stack_entries(magnitude: Tensor, *entries: float | Tensor) -> Tensor:
    """Return affine maps, float64 [B, 6], from their six entries: numbers, or tensors [B]."""
    return torch.stack(
        [torch.as_tensor(e, dtype=torch.float64, device=magnitude.device).expand_as(magnitude) for e in entries], 1
    )


def _rotate(degrees: Tensor, height: int, width: int) -> Tensor:
    angle = -torch.remainder(degrees, 360) * (math.pi / 180)
    # 15 decimals, so that a quarter turn has a cosine of exactly 0
    cos, sin = torch.round(torch.cos(angle), decimals=15), torch.round(torch.sin(angle), decimals=15)
    x, y = width / 2, height / 2
    return _stack_entries(degrees, cos, sin, x - cos * x - sin * y, -sin, cos, y + sin * x - cos * y)


MATRICES: Mapping[str, Callable[[Tensor, int, int], Tensor]] = MappingProxyType({
    "ShearX": lambda slope, height, width: _stack_entries(slope, 1, slope, 0, 0, 1, 0),
    "ShearY": lambda slope, height, width: _stack_entries(slope, 1, 0, 0, slope, 1, 0),
    "TranslateX": lambda pixels, height, width: _stack_entries(pixels, 1, 0, torch.floor(pixels + 0.5), 0, 1, 0),
    "TranslateY": lambda pixels, height, width: _stack_entries(pixels, 1, 0, 0, 0, 1, torch.floor(pixels + 0.5)),
    "Rotate": _rotate,
})  # fmt: skip

OPS = ("Identity", *MATRICES, *TABLES, *BLENDS)
WITHOUT_MAGNITUDE = frozenset({"Identity", "AutoContrast", "Equalize", "Invert"})
