"""The basic augmentation in two launches: the draws; then crop, colour jitter, grayscale and blur."""

# mypy: ignore-errors
import torch
import triton
import triton.language as tl
from torch import Tensor

from aag.augment.base import Augmentation
from aag.augment.basic import BasicAugment
from aag.augment.kernels import is_unchanged
from aag.augment.kernels.crop import TILE, sample_crop, store_pixels
from aag.augment.kernels.draws import COLUMNS, draw
from aag.kernels import launch

CONTRAST = tl.constexpr(1)  # as numbered in colour.ORDERS
SATURATION = tl.constexpr(2)
HUE = tl.constexpr(3)

FIELDS = (
    *("size", "scale", "ratio", "brightness", "contrast", "saturation", "hue"),
    *("jitter", "gray", "flip", "blur", "blur_sigma", "blur_kernel"),
)
KNOWN_FIELDS = {BasicAugment: frozenset(FIELDS)}


def supports(augmentation: Augmentation) -> bool:
    """Return whether `views` gives the augmentation's plain views, up to the last bits of a float."""
    return is_unchanged(augmentation, KNOWN_FIELDS)


def views(augmentation: BasicAugment, images: Tensor, rng_key: Tensor) -> Tensor:
    """Return the views of a batch [B, 3, H, W] with keys [B]."""
    images = images.contiguous()
    height, width = images.shape[2:]
    size = (augmentation.size or height, augmentation.size or width)
    draws = draw_views(augmentation, rng_key, height, width)
    out = images.new_empty(len(images), 3, *size)
    taps = augmentation.blur_kernel if augmentation.blur else 0
    one_tile = size[0] * size[1] <= TILE
    workspace = torch.empty(2 * out.numel() if taps or not one_tile else 0, device=images.device)
    launch(
        view_kernel, (len(images),), images, out, workspace, draws, height, width, *size, taps,
        TWO_TAPS=size[0] >= height and size[1] >= width, ONE_TILE=one_tile, TILE=TILE,
        num_warps=8, enable_fp_fusion=False,
    )  # fmt: skip
    return out


def draw_views(augmentation: BasicAugment, rng_key: Tensor, height: int, width: int) -> Tensor:
    """Return `BasicAugment.draws` as float32 [B, 16], in the columns of `draws.draw_kernel`."""
    a = augmentation
    probabilities = (a.flip, a.jitter, a.gray, a.blur)
    return draw(rng_key, (height, width), a.scale, a.ratio, probabilities, a.jitter_spreads(), a.blur_sigma)


# --- colour ----------------------------------------------------------------------------------------------------------


@triton.jit
def _luma(red, green, blue):
    return 0.2989 * red + 0.587 * green + 0.114 * blue


@triton.jit
def _blend(other, x, factor):
    return tl.minimum(tl.maximum(other + factor * (x - other), 0.0), 1.0)


@triton.jit
def _hue_channel(value, chroma, sextant):
    k = sextant - 6 * tl.floor(sextant * (1 / 6))
    return value - chroma * tl.minimum(tl.maximum(tl.minimum(k, 4 - k), 0.0), 1.0)


@triton.jit
def _jitter(draw, order, begin, end, r, g, b):
    """Apply brightness, saturation and hue at positions begin to end − 1 of the image's order."""
    for position in range(begin, end):
        number = (order >> (2 * position)) & 3
        strength = tl.load(draw + 8 + number)
        if number == HUE:
            value = tl.maximum(tl.maximum(r, g), b)
            chroma = value - tl.minimum(tl.minimum(r, g), b)
            safe = tl.where(chroma > 0, chroma, 1.0)
            # Select the numerator first, to divide once.
            red_is_max, green_is_max = value == r, value == g
            difference = tl.where(red_is_max, g - b, tl.where(green_is_max, b - r, r - g))
            sextant = tl.div_rn(difference, safe) + tl.where(red_is_max, 0.0, tl.where(green_is_max, 2.0, 4.0))
            sextant = sextant + 6 * strength
            r = _hue_channel(value, chroma, sextant + 5)
            g = _hue_channel(value, chroma, sextant + 3)
            b = _hue_channel(value, chroma, sextant + 1)
        else:
            other = tl.where(number == SATURATION, _luma(r, g, b), 0.0)  # brightness blends with black
            r, g, b = _blend(other, r, strength), _blend(other, g, strength), _blend(other, b, strength)
    return r, g, b


@triton.jit
def _before_contrast(image, draw, order, contrast, pixel, height, width, rows, columns, TWO_TAPS: tl.constexpr):
    r, g, b = sample_crop(image, draw, pixel, height, width, rows, columns, TWO_TAPS)
    if image.dtype.element_ty == tl.uint8:
        r, g, b = tl.div_rn(r, 255.0), tl.div_rn(g, 255.0), tl.div_rn(b, 255.0)
    return _jitter(draw, order, 0, contrast, r, g, b)


@triton.jit
def _from_contrast(draw, order, contrast, end, mean, r, g, b):
    if end > 0:
        factor = tl.load(draw + 9)
        r, g, b = _blend(mean, r, factor), _blend(mean, g, factor), _blend(mean, b, factor)
    r, g, b = _jitter(draw, order, contrast + 1, end, r, g, b)
    if tl.load(draw + 6) > 0:
        gray = _luma(r, g, b)
        r, g, b = gray, gray, gray
    return r, g, b


# --- blur ------------------------------------------------------------------------------------------------------------


@triton.jit
def _padded_index(index, length, reflect):
    """Return the source of a padded index as in colour.blur: reflected, or replicated from the border."""
    reflected = tl.abs(index)
    reflected = tl.where(reflected >= length, 2 * (length - 1) - reflected, reflected)
    return tl.where(reflect, reflected, tl.minimum(tl.maximum(index, 0), length - 1))


@triton.jit
def _gaussian(distance, sigma):
    ratio = tl.div_rn(distance.to(tl.float32), sigma)
    return tl.exp(-0.5 * (ratio * ratio))


@triton.jit
def _blur_axis(source, out, rows, columns, taps, sigma, VERTICAL: tl.constexpr, TILE: tl.constexpr):
    """Blur the three planes of an image along one axis."""
    size = rows * columns
    middle = taps // 2
    reflect = middle < tl.minimum(rows, columns)
    total = 0.0
    for tap in range(taps):
        total += _gaussian(tap - middle, sigma)
    for start in range(0, size, TILE):
        pixel = start + tl.arange(0, TILE)
        mask = pixel < size
        valid_pixel = tl.minimum(pixel, size - 1)
        y, x = valid_pixel // columns, valid_pixel % columns
        r = tl.zeros([TILE], tl.float32)
        g = tl.zeros([TILE], tl.float32)
        b = tl.zeros([TILE], tl.float32)
        for tap in range(taps):
            weight = tl.div_rn(_gaussian(tap - middle, sigma), total)
            if VERTICAL:
                index = _padded_index(y + (tap - middle), rows, reflect) * columns + x
            else:
                index = y * columns + _padded_index(x + (tap - middle), columns, reflect)
            r += weight * tl.load(source + index)
            g += weight * tl.load(source + size + index)
            b += weight * tl.load(source + 2 * size + index)
        store_pixels(out, pixel, size, r, g, b, mask)


# --- the whole view --------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["taps"])
def view_kernel(
    images, out, workspace, draws, height, width, rows, columns, taps,
    TWO_TAPS: tl.constexpr, ONE_TILE: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """Make each image's view. ONE_TILE: a view fits into one tile. `workspace`: float32, twice the size of `out`.

    Contrast needs the mean over all pixels, so there are two passes: the steps before contrast, and the rest.
    """
    number = tl.program_id(0)
    draw = draws + number * COLUMNS
    size = rows * columns
    image = images + number.to(tl.int64) * 3 * (height * width)
    view = out + number.to(tl.int64) * 3 * size
    unblurred = workspace + number.to(tl.int64) * 6 * size
    half_blurred = unblurred + 3 * size

    order = tl.load(draw + 12).to(tl.int32)
    end = tl.where(tl.load(draw + 5) > 0, 4, 0)
    contrast = 0
    for position in tl.static_range(1, 4):
        contrast = tl.where((order >> (2 * position)) & 3 == CONTRAST, position, contrast)
    contrast = tl.minimum(contrast, end)
    blurred = tl.load(draw + 7) > 0

    if ONE_TILE:
        pixel = tl.arange(0, TILE)
        mask = pixel < size
        valid_pixel = tl.minimum(pixel, size - 1)
        r, g, b = _before_contrast(image, draw, order, contrast, valid_pixel, height, width, rows, columns, TWO_TAPS)
        mean = tl.div_rn(tl.sum(tl.where(mask, _luma(r, g, b), 0.0)), tl.cast(size, tl.float32))
        r, g, b = _from_contrast(draw, order, contrast, end, mean, r, g, b)
        if blurred:
            store_pixels(unblurred, pixel, size, r, g, b, mask)
        else:
            store_pixels(view, pixel, size, r, g, b, mask)
    else:
        total = 0.0
        for start in range(0, size, TILE):
            pixel = start + tl.arange(0, TILE)
            mask = pixel < size
            valid_pixel = tl.minimum(pixel, size - 1)
            r, g, b = _before_contrast(
                image, draw, order, contrast, valid_pixel, height, width, rows, columns, TWO_TAPS
            )
            total += tl.sum(tl.where(mask, _luma(r, g, b), 0.0))
            store_pixels(unblurred, pixel, size, r, g, b, mask)
        mean = tl.div_rn(total, tl.cast(size, tl.float32))
        tl.debug_barrier()
        for start in range(0, size, TILE):
            pixel = start + tl.arange(0, TILE)
            mask = pixel < size
            r = tl.load(unblurred + pixel, mask=mask, other=0.0)
            g = tl.load(unblurred + size + pixel, mask=mask, other=0.0)
            b = tl.load(unblurred + 2 * size + pixel, mask=mask, other=0.0)
            r, g, b = _from_contrast(draw, order, contrast, end, mean, r, g, b)
            if blurred:
                store_pixels(unblurred, pixel, size, r, g, b, mask)
            else:
                store_pixels(view, pixel, size, r, g, b, mask)

    if blurred:
        sigma = tl.load(draw + 13)
        tl.debug_barrier()
        _blur_axis(unblurred, half_blurred, rows, columns, taps, sigma, True, TILE)
        tl.debug_barrier()
        _blur_axis(half_blurred, view, rows, columns, taps, sigma, False, TILE)
