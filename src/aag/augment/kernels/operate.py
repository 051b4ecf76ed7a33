"""The operations of AutoAugment and RandAugment, each image its own: the pixels of `aag.augment.ops`, bit for bit."""

# mypy: ignore-errors
import torch
import triton
import triton.language as tl
from torch import Tensor

from aag.augment.geometry import FILL
from aag.augment.ops import MATRICES, OPS
from aag.kernels import launch

TILE = 1024  # pixels at once
GRAY = tl.constexpr(FILL)
FIRST_MOVE = tl.constexpr(min(map(OPS.index, MATRICES)))
LAST_MOVE = tl.constexpr(max(map(OPS.index, MATRICES)))
BRIGHTNESS = tl.constexpr(OPS.index("Brightness"))
CONTRAST = tl.constexpr(OPS.index("Contrast"))
POSTERIZE = tl.constexpr(OPS.index("Posterize"))
SOLARIZE = tl.constexpr(OPS.index("Solarize"))
AUTO_CONTRAST = tl.constexpr(OPS.index("AutoContrast"))
EQUALIZE = tl.constexpr(OPS.index("Equalize"))
INVERT = tl.constexpr(OPS.index("Invert"))
COLOR = tl.constexpr(OPS.index("Color"))
SHARPNESS = tl.constexpr(OPS.index("Sharpness"))


@triton.jit(do_not_specialize=["index"])
def operate_each(images, out, steps, index, height, width, TILE: tl.constexpr):
    """The step `index` [B] of `steps` [·, 8] (see `ops.steps`) for each image."""
    number = tl.program_id(0)
    step = steps + tl.load(index + number) * 8
    op = tl.load(step).to(tl.int32)
    magnitude = tl.load(step + 1)
    base = number.to(tl.int64) * 3 * (height * width)
    if (op >= FIRST_MOVE) & (op <= LAST_MOVE):
        _move(images + base, out + base, step, height, width, TILE)
    elif (op == AUTO_CONTRAST) | (op == EQUALIZE):
        _stretch(images + base, out + base, op, height * width, TILE)
    else:
        _recolour(images + base, out + base, op, magnitude, height, width, TILE)


@triton.jit
def _move(image, out, step, height, width, TILE: tl.constexpr):
    """geometry.affine: 16.16 fixed point, in 64 bits."""
    a, b, c = tl.load(step + 2).to(tl.int64), tl.load(step + 3).to(tl.int64), tl.load(step + 4).to(tl.int64)
    d, e, f = tl.load(step + 5).to(tl.int64), tl.load(step + 6).to(tl.int64), tl.load(step + 7).to(tl.int64)
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
def _stretch(image, out, op, size, TILE: tl.constexpr):
    """AutoContrast and Equalize: a table of 256 for each channel, from its histogram."""
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
def _recolour(image, out, op, magnitude, height, width, TILE: tl.constexpr):
    """The operations that need a pixel, its neighbours and, for Contrast, the mean luma. Nothing, for Identity."""
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
    # Values of `limit` and more are inverted: none, all of them, or those that Solarize names.
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
    """ops._luma, 0 beyond the image."""
    red = tl.load(image + pixel, mask=mask, other=0).to(tl.int32)
    green = tl.load(image + size + pixel, mask=mask, other=0).to(tl.int32)
    blue = tl.load(image + 2 * size + pixel, mask=mask, other=0).to(tl.int32)
    return (19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16


@triton.jit
def _smooth(plane, pixel, value, height, width):
    """ops._smooth: the 3×3 mean with the centre counted five times; the outermost pixels as they are."""
    y, x = pixel // width, pixel % width
    inner = (y > 0) & (y < height - 1) & (x > 0) & (x < width - 1)
    total = 4 * value
    for down in tl.static_range(-1, 2):
        for right in tl.static_range(-1, 2):
            total += tl.load(plane + pixel + (down * width + right), mask=inner, other=0).to(tl.int32)
    return tl.where(inner, (2 * total + 13) // 26, value)


def operate(images: Tensor, steps: Tensor, index: Tensor) -> Tensor:
    """To each of the uint8 images its own step: `index` int32 or int64 [B] into `steps` float64 [·, 8]."""
    images = images.contiguous()
    out = torch.empty_like(images)
    launch(
        operate_each,
        (len(images),),
        images,
        out,
        steps,
        index,
        *images.shape[2:],
        TILE=TILE,
        num_warps=8,
        enable_fp_fusion=False,
    )
    return out
