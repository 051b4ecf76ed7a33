"""The operations of AutoAugment and RandAugment, a different one per image: `aag.augment.ops`, bit for bit."""

# mypy: ignore-errors
import torch
import triton
import triton.language as tl
from torch import Tensor

from aag.augment.geometry import FILL
from aag.augment.ops import MATRICES, OPS
from aag.kernels import launch

TILE = 1024  # pixels per iteration
GRAY = tl.constexpr(FILL)
FIRST_AFFINE = tl.constexpr(min(map(OPS.index, MATRICES)))
LAST_AFFINE = tl.constexpr(max(map(OPS.index, MATRICES)))
BRIGHTNESS = tl.constexpr(OPS.index("Brightness"))
CONTRAST = tl.constexpr(OPS.index("Contrast"))
POSTERIZE = tl.constexpr(OPS.index("Posterize"))
SOLARIZE = tl.constexpr(OPS.index("Solarize"))
AUTO_CONTRAST = tl.constexpr(OPS.index("AutoContrast"))
EQUALIZE = tl.constexpr(OPS.index("Equalize"))
INVERT = tl.constexpr(OPS.index("Invert"))
COLOR = tl.constexpr(OPS.index("Color"))
SHARPNESS = tl.constexpr(OPS.index("Sharpness"))


@triton.jit(do_not_specialize=["row"])
def apply_ops_kernel(images, out, parameters, row, height, width, TILE: tl.constexpr):
    """Apply operation `row` [B] of `parameters` [·, 8] (see `ops.op_parameters`) to each image."""
    number = tl.program_id(0)
    op_row = parameters + tl.load(row + number) * 8
    op = tl.load(op_row).to(tl.int32)
    magnitude = tl.load(op_row + 1)
    base = number.to(tl.int64) * 3 * (height * width)
    if (op >= FIRST_AFFINE) & (op <= LAST_AFFINE):
        _affine(images + base, out + base, op_row, height, width, TILE)
    elif (op == AUTO_CONTRAST) | (op == EQUALIZE):
        _use_histogram(images + base, out + base, op, height * width, TILE)
    else:
        _change_levels(images + base, out + base, op, magnitude, height, width, TILE)


@triton.jit
def _affine(image, out, op_row, height, width, TILE: tl.constexpr):
    """geometry.affine, in 64-bit integers."""
    a, b, c = tl.load(op_row + 2).to(tl.int64), tl.load(op_row + 3).to(tl.int64), tl.load(op_row + 4).to(tl.int64)
    d, e, f = tl.load(op_row + 5).to(tl.int64), tl.load(op_row + 6).to(tl.int64), tl.load(op_row + 7).to(tl.int64)
    size = height * width
    for start in range(0, size, TILE):
        pixel = start + tl.arange(0, TILE)
        y, x = pixel // width, pixel % width
        from_x = (a * x + b * y + c) >> 16
        from_y = (d * x + e * y + f) >> 16
        mask = pixel < size
        inside = mask & (from_x >= 0) & (from_x < width) & (from_y >= 0) & (from_y < height)
        source = (from_y * width + from_x).to(tl.int32)
        for channel in tl.static_range(3):
            value = tl.load(image + channel * size + source, mask=inside, other=GRAY)
            tl.store(out + channel * size + pixel, value, mask=mask)


@triton.jit
def _use_histogram(image, out, op, size, TILE: tl.constexpr):
    """AutoContrast and Equalize: a lookup table per channel, from its histogram."""
    level = tl.arange(0, 256)
    for channel in range(3):
        plane = image + channel * size
        count = tl.zeros([256], tl.int32)
        for start in range(0, size, TILE):
            pixel = start + tl.arange(0, TILE)
            mask = pixel < size
            count += tl.histogram(tl.load(plane + pixel, mask=mask, other=0).to(tl.int32), 256, mask=mask)
        high = tl.max(tl.where(count > 0, level, 0))
        low = tl.min(tl.where(count > 0, level, 255))
        if op == EQUALIZE:
            stride = (size - tl.sum(tl.where(level == high, count, 0))) // 255
            below = tl.cumsum(count) - count
            table = tl.minimum((stride // 2 + below) // tl.maximum(stride, 1), 255)
            table = tl.where(stride > 0, table, level)
        else:
            span = tl.maximum(high - low, 1).to(tl.float64)
            scale = tl.full([1], 255.0, tl.float64) / span
            stretched = level.to(tl.float64) * scale + (0 - low).to(tl.float64) * scale
            table = tl.minimum(tl.maximum(stretched, 0.0), 255.0).to(tl.int32)
            table = tl.where(high > low, table, level)
        for start in range(0, size, TILE):
            pixel = start + tl.arange(0, TILE)
            mask = pixel < size
            value = tl.load(plane + pixel, mask=mask, other=0).to(tl.int32)
            tl.store(out + channel * size + pixel, tl.gather(table, value, 0).to(tl.uint8), mask=mask)


@triton.jit
def _change_levels(image, out, op, magnitude, height, width, TILE: tl.constexpr):
    """The operations on a pixel, its neighbours or the mean luma, and Identity."""
    size = height * width
    mean = 0
    if op == CONTRAST:
        total = tl.zeros([1], tl.int64)
        for start in range(0, size, TILE):
            pixel = start + tl.arange(0, TILE)
            total += tl.sum(_luma(image, pixel, size, pixel < size))
        mean = tl.sum((2 * total + size) // (2 * tl.cast(size, tl.int64))).to(tl.int32)
    factor = magnitude.to(tl.float32)
    blended = (op == BRIGHTNESS) | (op == CONTRAST) | (op == COLOR) | (op == SHARPNESS)
    # Invert levels of at least `limit`: Solarize's threshold, all (Invert) or none.
    limit = tl.minimum(tl.maximum(tl.ceil(magnitude), 0.0), 256.0).to(tl.int32)
    limit = tl.where(op == SOLARIZE, limit, tl.where(op == INVERT, 0, 256))
    bits = tl.minimum(tl.maximum(magnitude, 0.0), 8.0).to(tl.int32)
    dropped = tl.where(op == POSTERIZE, 8 - bits, 0)
    for channel in range(3):
        plane = image + channel * size
        for start in range(0, size, TILE):
            pixel = start + tl.arange(0, TILE)
            mask = pixel < size
            value = tl.load(plane + pixel, mask=mask, other=0).to(tl.int32)
            if blended:
                other = tl.zeros_like(value) + mean
                if op == COLOR:
                    other = _luma(image, pixel, size, mask)
                if op == SHARPNESS:
                    other = _smooth(plane, pixel, value, height, width)
                other = other.to(tl.float32)
                mixed = other + factor * (value.to(tl.float32) - other)
                value = tl.minimum(tl.maximum(mixed, 0.0), 255.0).to(tl.int32)
            else:
                value = (value >> dropped) << dropped
                value = tl.where(value < limit, value, 255 - value)
            tl.store(out + channel * size + pixel, value.to(tl.uint8), mask=mask)


@triton.jit
def _luma(image, pixel, size, mask):
    """ops._luma, 0 outside the image."""
    red = tl.load(image + pixel, mask=mask, other=0).to(tl.int32)
    green = tl.load(image + size + pixel, mask=mask, other=0).to(tl.int32)
    blue = tl.load(image + 2 * size + pixel, mask=mask, other=0).to(tl.int32)
    return (19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16


@triton.jit
def _smooth(plane, pixel, value, height, width):
    """ops._smooth: the 3×3 mean with the centre counted five times; border pixels are unchanged."""
    y, x = pixel // width, pixel % width
    inner = (y > 0) & (y < height - 1) & (x > 0) & (x < width - 1)
    total = 4 * value
    for down in tl.static_range(-1, 2):
        for right in tl.static_range(-1, 2):
            total += tl.load(plane + pixel + (down * width + right), mask=inner, other=0).to(tl.int32)
    return tl.where(inner, (2 * total + 13) // 26, value)


def apply_ops(images: Tensor, parameters: Tensor, row: Tensor) -> Tensor:
    """Apply to each uint8 image the operation in its row, int32 [B], of `parameters` float64 [·, 8]."""
    images = images.contiguous()
    out = torch.empty_like(images)
    launch(
        apply_ops_kernel, (len(images),), images, out, parameters, row, *images.shape[2:],
        TILE=TILE, num_warps=8, enable_fp_fusion=False,
    )  # fmt: skip
    return out
