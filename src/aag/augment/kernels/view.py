"""The basic view in one launch: crop, colour jitter, grayscale and blur, as the functions of colour do them."""

# mypy: ignore-errors
import torch
import triton
import triton.language as tl
from torch import Tensor

from aag.augment.kernels.crop import TILE, cropped, store
from aag.augment.kernels.draws import COLUMNS
from aag.kernels import launch

CONTRAST = tl.constexpr(1)  # numbers of colour.ORDERS
SATURATION = tl.constexpr(2)
HUE = tl.constexpr(3)

# --- colour ----------------------------------------------------------------------------------------------------------


@triton.jit
def _luma(red, green, blue):
    return 0.2989 * red + 0.587 * green + 0.114 * blue


@triton.jit
def _blend(other, x, factor):
    return tl.minimum(tl.maximum(other + factor * (x - other), 0.0), 1.0)


@triton.jit
def _of_hue(value, chroma, sextant):
    k = sextant - 6 * tl.floor(sextant * (1 / 6))
    return value - chroma * tl.minimum(tl.maximum(tl.minimum(k, 4 - k), 0.0), 1.0)


@triton.jit
def _recolour(draw, order, begin, end, r, g, b):
    """Brightness, saturation and hue, those in the places begin … end − 1 of the image's order."""
    for place in range(begin, end):
        number = (order >> (2 * place)) & 3
        strength = tl.load(draw + 8 + number)
        if number == HUE:
            value = tl.maximum(tl.maximum(r, g), b)
            chroma = value - tl.minimum(tl.minimum(r, g), b)
            safe = tl.where(chroma > 0, chroma, 1.0)
            # One division: the numerator is chosen first.
            of_red, of_green = value == r, value == g
            difference = tl.where(of_red, g - b, tl.where(of_green, b - r, r - g))
            sextant = tl.div_rn(difference, safe) + tl.where(of_red, 0.0, tl.where(of_green, 2.0, 4.0))
            sextant = sextant + 6 * strength
            r = _of_hue(value, chroma, sextant + 5)
            g = _of_hue(value, chroma, sextant + 3)
            b = _of_hue(value, chroma, sextant + 1)
        else:
            other = tl.where(number == SATURATION, _luma(r, g, b), 0.0)  # brightness blends with black
            r, g, b = _blend(other, r, strength), _blend(other, g, strength), _blend(other, b, strength)
    return r, g, b


@triton.jit
def _before_contrast(image, draw, order, contrast, pixel, height, width, rows, columns, TWO: tl.constexpr):
    r, g, b = cropped(image, draw, pixel, height, width, rows, columns, TWO)
    if image.dtype.element_ty == tl.uint8:
        r, g, b = tl.div_rn(r, 255.0), tl.div_rn(g, 255.0), tl.div_rn(b, 255.0)
    return _recolour(draw, order, 0, contrast, r, g, b)


@triton.jit
def _from_contrast(draw, order, contrast, places, mean, r, g, b):
    if places > 0:
        factor = tl.load(draw + 9)
        r, g, b = _blend(mean, r, factor), _blend(mean, g, factor), _blend(mean, b, factor)
    r, g, b = _recolour(draw, order, contrast + 1, places, r, g, b)
    if tl.load(draw + 6) > 0:
        gray = _luma(r, g, b)
        r, g, b = gray, gray, gray
    return r, g, b


# --- blur ------------------------------------------------------------------------------------------------------------


@triton.jit
def _mirrored(place, length, reflect):
    """colour.blur's padding: a mirror at the edges, or the edge repeated."""
    mirrored = tl.abs(place)
    mirrored = tl.where(mirrored >= length, 2 * (length - 1) - mirrored, mirrored)
    return tl.where(reflect, mirrored, tl.minimum(tl.maximum(place, 0), length - 1))


@triton.jit
def _gauss(distance, sigma):
    ratio = tl.div_rn(distance.to(tl.float32), sigma)
    return tl.exp(-0.5 * (ratio * ratio))


@triton.jit
def _smear(source, out, rows, columns, taps, sigma, DOWN: tl.constexpr, TILE: tl.constexpr):
    """One direction of the blur, from one image's three planes into another's."""
    size = rows * columns
    middle = taps // 2
    reflect = middle < tl.minimum(rows, columns)
    total = 0.0
    for tap in range(taps):
        total += _gauss(tap - middle, sigma)
    for start in range(0, size, TILE):
        pixel = start + tl.arange(0, TILE)
        mask = pixel < size
        seen = tl.minimum(pixel, size - 1)
        y, x = seen // columns, seen % columns
        r = tl.zeros([TILE], tl.float32)
        g = tl.zeros([TILE], tl.float32)
        b = tl.zeros([TILE], tl.float32)
        for tap in range(taps):
            weight = tl.div_rn(_gauss(tap - middle, sigma), total)
            if DOWN:
                index = _mirrored(y + (tap - middle), rows, reflect) * columns + x
            else:
                index = y * columns + _mirrored(x + (tap - middle), columns, reflect)
            r += weight * tl.load(source + index)
            g += weight * tl.load(source + size + index)
            b += weight * tl.load(source + 2 * size + index)
        store(out, pixel, size, r, g, b, mask)


# --- the basic view --------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["taps"])
def basic_view(
    images, out, work, draws, height, width, rows, columns, taps,
    TWO: tl.constexpr, ONE: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """Each image's whole view. ONE: an image is one tile. `work`: float32, twice the size of `out` where it is used.

    The mean that contrast needs parts the work in two: what comes before it, for all pixels, and the rest.
    """
    number = tl.program_id(0)
    draw = draws + number * COLUMNS
    size = rows * columns
    image = images + number.to(tl.int64) * 3 * (height * width)
    view = out + number.to(tl.int64) * 3 * size
    sharp = work + number.to(tl.int64) * 6 * size
    tall = sharp + 3 * size

    order = tl.load(draw + 12).to(tl.int32)
    places = tl.where(tl.load(draw + 5) > 0, 4, 0)
    contrast = 0
    for place in tl.static_range(1, 4):
        contrast = tl.where((order >> (2 * place)) & 3 == CONTRAST, place, contrast)
    contrast = tl.minimum(contrast, places)
    blurred = tl.load(draw + 7) > 0

    if ONE:
        pixel = tl.arange(0, TILE)
        mask = pixel < size
        seen = tl.minimum(pixel, size - 1)
        r, g, b = _before_contrast(image, draw, order, contrast, seen, height, width, rows, columns, TWO)
        mean = tl.div_rn(tl.sum(tl.where(mask, _luma(r, g, b), 0.0)), tl.cast(size, tl.float32))
        r, g, b = _from_contrast(draw, order, contrast, places, mean, r, g, b)
        if blurred:
            store(sharp, pixel, size, r, g, b, mask)
        else:
            store(view, pixel, size, r, g, b, mask)
    else:
        total = 0.0
        for start in range(0, size, TILE):
            pixel = start + tl.arange(0, TILE)
            mask = pixel < size
            seen = tl.minimum(pixel, size - 1)
            r, g, b = _before_contrast(image, draw, order, contrast, seen, height, width, rows, columns, TWO)
            total += tl.sum(tl.where(mask, _luma(r, g, b), 0.0))
            store(sharp, pixel, size, r, g, b, mask)
        mean = tl.div_rn(total, tl.cast(size, tl.float32))
        tl.debug_barrier()
        for start in range(0, size, TILE):
            pixel = start + tl.arange(0, TILE)
            mask = pixel < size
            r = tl.load(sharp + pixel, mask=mask, other=0.0)
            g = tl.load(sharp + size + pixel, mask=mask, other=0.0)
            b = tl.load(sharp + 2 * size + pixel, mask=mask, other=0.0)
            r, g, b = _from_contrast(draw, order, contrast, places, mean, r, g, b)
            if blurred:
                store(sharp, pixel, size, r, g, b, mask)
            else:
                store(view, pixel, size, r, g, b, mask)

    if blurred:
        sigma = tl.load(draw + 13)
        tl.debug_barrier()
        _smear(sharp, tall, rows, columns, taps, sigma, True, TILE)
        tl.debug_barrier()
        _smear(tall, view, rows, columns, taps, sigma, False, TILE)


def basic(images: Tensor, draws: Tensor, size: tuple[int, int], blur: int) -> Tensor:
    """Views [B, 3, *size] in the dtype of the images; `blur` is the width of its kernel, 0 for none."""
    images = images.contiguous()
    height, width = images.shape[2:]
    out = images.new_empty(len(images), 3, *size)
    one = size[0] * size[1] <= TILE
    work = torch.empty(2 * out.numel() if blur or not one else 0, device=images.device)
    launch(
        basic_view, (len(images),), images, out, work, draws, height, width, *size, blur,
        TWO=size[0] >= height and size[1] >= width, ONE=one, TILE=TILE, num_warps=8, enable_fp_fusion=False
    )  # fmt: skip
    return out
