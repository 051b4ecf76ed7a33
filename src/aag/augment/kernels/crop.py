"""Crops: geometry.resample and a padded shift, each image by its own draw."""

# mypy: ignore-errors
import torch
import triton
import triton.language as tl
from torch import Tensor

from aag.augment.geometry import FILL
from aag.augment.kernels.draws import COLUMNS
from aag.kernels import launch

TILE = 1024  # pixels at once
GRAY = tl.constexpr(FILL)


@triton.jit
def _weight(source, centre, reach, start, end):
    """Of a source pixel, before the weights are made to sum to 1; none outside the box. A reach of 1 is None."""
    middle = source.to(tl.float32) + 0.5
    distance = tl.abs(middle - centre)
    if reach is not None:
        distance = tl.div_rn(distance, reach)
    weight = tl.maximum(1 - distance, 0.0)
    return tl.where((middle > start) & (middle < end), weight, 0.0)


@triton.jit
def _inside(source, start, end):
    return tl.minimum(tl.maximum(source, start.to(tl.int32)), end.to(tl.int32) - 1)


@triton.jit
def cropped(image, draw, pixel, height, width, rows, columns, TWO: tl.constexpr):
    """Three channels of output pixels, in the units of the image. TWO: no side shrinks, so two taps reach all."""
    top, left = tl.load(draw), tl.load(draw + 1)
    box_h, box_w = tl.load(draw + 2), tl.load(draw + 3)
    y, x = pixel // columns, pixel % columns
    x = tl.where(tl.load(draw + 4) > 0, columns - 1 - x, x)
    scale_y, scale_x = tl.div_rn(box_h, tl.cast(rows, tl.float32)), tl.div_rn(box_w, tl.cast(columns, tl.float32))
    centre_y = top + (y.to(tl.float32) + 0.5) * scale_y
    centre_x = left + (x.to(tl.float32) + 0.5) * scale_x
    reach_y, reach_x = tl.maximum(scale_y, 1.0), tl.maximum(scale_x, 1.0)
    first_y = tl.floor(centre_y - reach_y + 0.5).to(tl.int32)
    first_x = tl.floor(centre_x - reach_x + 0.5).to(tl.int32)
    bottom, right = top + box_h, left + box_w
    green, blue = image + height * width, image + 2 * height * width
    if TWO:
        y0, y1 = _weight(first_y, centre_y, None, top, bottom), _weight(first_y + 1, centre_y, None, top, bottom)
        x0, x1 = _weight(first_x, centre_x, None, left, right), _weight(first_x + 1, centre_x, None, left, right)
        y0, y1 = tl.div_rn(y0, y0 + y1), tl.div_rn(y1, y0 + y1)
        x0, x1 = tl.div_rn(x0, x0 + x1), tl.div_rn(x1, x0 + x1)
        up, down = _inside(first_y, top, bottom) * width, _inside(first_y + 1, top, bottom) * width
        near, far = _inside(first_x, left, right), _inside(first_x + 1, left, right)
        r = _mixture(image, up + near, down + near, up + far, down + far, y0, y1, x0, x1)
        g = _mixture(green, up + near, down + near, up + far, down + far, y0, y1, x0, x1)
        b = _mixture(blue, up + near, down + near, up + far, down + far, y0, y1, x0, x1)
    else:
        taps_y, taps_x = (2 * reach_y).to(tl.int32) + 2, (2 * reach_x).to(tl.int32) + 2
        sum_y, sum_x = tl.zeros_like(centre_y), tl.zeros_like(centre_x)
        for i in range(taps_y):
            sum_y += _weight(first_y + i, centre_y, reach_y, top, bottom)
        for j in range(taps_x):
            sum_x += _weight(first_x + j, centre_x, reach_x, left, right)
        r, g, b = tl.zeros_like(centre_y), tl.zeros_like(centre_y), tl.zeros_like(centre_y)
        for j in range(taps_x):
            column = _inside(first_x + j, left, right)
            tall_r, tall_g, tall_b = tl.zeros_like(centre_y), tl.zeros_like(centre_y), tl.zeros_like(centre_y)
            for i in range(taps_y):
                weight = tl.div_rn(_weight(first_y + i, centre_y, reach_y, top, bottom), sum_y)
                index = _inside(first_y + i, top, bottom) * width + column
                tall_r += weight * tl.load(image + index).to(tl.float32)
                tall_g += weight * tl.load(green + index).to(tl.float32)
                tall_b += weight * tl.load(blue + index).to(tl.float32)
            weight = tl.div_rn(_weight(first_x + j, centre_x, reach_x, left, right), sum_x)
            r += weight * tall_r
            g += weight * tall_g
            b += weight * tall_b
    return r, g, b


@triton.jit
def _mixture(plane, up_near, down_near, up_far, down_far, y0, y1, x0, x1):
    near = y0 * tl.load(plane + up_near).to(tl.float32) + y1 * tl.load(plane + down_near).to(tl.float32)
    far = y0 * tl.load(plane + up_far).to(tl.float32) + y1 * tl.load(plane + down_far).to(tl.float32)
    return x0 * near + x1 * far


@triton.jit
def crop_resized(images, out, draws, height, width, TILE: tl.constexpr):
    """Each image's crop at the image's size, bytes to bytes."""
    number = tl.program_id(0)
    draw = draws + number * COLUMNS
    size = height * width
    base = number.to(tl.int64) * 3 * size
    for start in range(0, size, TILE):
        pixel = start + tl.arange(0, TILE)
        seen = tl.minimum(pixel, size - 1)
        r, g, b = cropped(images + base, draw, seen, height, width, height, width, True)
        r, g, b = tl.div_rn(r, 255.0), tl.div_rn(g, 255.0), tl.div_rn(b, 255.0)
        store(out + base, pixel, size, r, g, b, pixel < size)


@triton.jit(do_not_specialize=["pad"])
def crop_padded(images, out, draws, height, width, pad, TILE: tl.constexpr):
    """Each image moved by up to `pad` pixels and flipped, bytes to bytes, gray where none was."""
    number = tl.program_id(0)
    draw = draws + number * COLUMNS
    size = height * width
    base = number.to(tl.int64) * 3 * size
    right = (tl.load(draw + 14).to(tl.float64) * (2 * pad + 1)).to(tl.int32) - pad
    down = (tl.load(draw + 15).to(tl.float64) * (2 * pad + 1)).to(tl.int32) - pad
    flipped = tl.load(draw + 4) > 0
    for start in range(0, size, TILE):
        pixel = start + tl.arange(0, TILE)
        x = pixel % width
        x = tl.where(flipped, width - 1 - x, x) + right
        y = pixel // width + down
        mask = pixel < size
        inside = mask & (x >= 0) & (x < width) & (y >= 0) & (y < height)
        for channel in tl.static_range(3):
            value = tl.load(images + base + channel * size + y * width + x, mask=inside, other=GRAY)
            tl.store(out + base + channel * size + pixel, value, mask=mask)


@triton.jit
def _byte(x):
    """base.to_bytes: x in [0, 1], rounded half to even."""
    x = tl.minimum(tl.maximum(x * 255, 0.0), 255.0)
    return (x + 12582912.0 - 12582912.0).to(tl.int32).to(tl.uint8)  # 1.5 · 2^23


@triton.jit
def _cast(x, like):
    if like.dtype.element_ty == tl.uint8:
        x = _byte(x)
    return x.to(like.dtype.element_ty)


@triton.jit
def store(out, pixel, size, red, green, blue, mask):
    tl.store(out + pixel, _cast(red, out), mask=mask)
    tl.store(out + size + pixel, _cast(green, out), mask=mask)
    tl.store(out + 2 * size + pixel, _cast(blue, out), mask=mask)


def crop(images: Tensor, draws: Tensor, pad: int | None) -> Tensor:
    """uint8 images cropped to their boxes and resized to their own size; with `pad`, moved by up to so many pixels."""
    images = images.contiguous()
    out = torch.empty_like(images)
    if pad is None:
        launch(
            crop_resized,
            (len(images),),
            images,
            out,
            draws,
            *images.shape[2:],
            TILE=TILE,
            num_warps=8,
            enable_fp_fusion=False,
        )
    else:
        launch(crop_padded, (len(images),), images, out, draws, *images.shape[2:], pad, TILE=TILE, num_warps=8)
    return out
