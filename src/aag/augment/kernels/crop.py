"""Crops: geometry.resample and a padded shift, by the draws of each image."""

# mypy: ignore-errors
import torch
import triton
import triton.language as tl
from torch import Tensor

from aag.augment.auxiliary import FIRST_SLOT, AuxiliaryAugment
from aag.augment.base import Augmentation
from aag.augment.geometry import FILL
from aag.augment.kernels import is_unchanged
from aag.augment.kernels.draws import COLUMNS, draw
from aag.kernels import launch

TILE = 1024  # pixels per iteration
GRAY = tl.constexpr(FILL)
KNOWN_FIELDS = {AuxiliaryAugment: frozenset({"policy", "crop", "flip", "scale", "ratio", "pad", "size"})}


def supports(augmentation: Augmentation) -> bool:
    """Return whether `crop_batch` gives the augmentation's plain crops. Its policy may be any augmentation."""
    return is_unchanged(augmentation, KNOWN_FIELDS)


def crop_batch(augmentation: AuxiliaryAugment, images: Tensor, rng_key: Tensor) -> Tensor:
    """Crop and flip uint8 images [B, 3, H, W] by an augmentation's settings, a resized or a padded crop."""
    images = images.contiguous()
    size = tuple(images.shape[2:])
    probabilities = (augmentation.flip, 0.0, 0.0, 0.0)
    draws = draw(rng_key, size, augmentation.scale, augmentation.ratio, probabilities, first_slot=FIRST_SLOT)
    grid = (len(images),)
    if augmentation.crop == "padded":
        out = torch.empty_like(images)
        launch(crop_padded, grid, images, out, draws, *size, augmentation.pad, TILE=TILE, num_warps=8)
    else:
        rows, columns = augmentation.size or size[0], augmentation.size or size[1]
        out = images.new_empty(len(images), 3, rows, columns)
        launch(
            crop_resized, grid, images, out, draws, *size, rows, columns,
            TWO_TAPS=rows >= size[0] and columns >= size[1], TILE=TILE, num_warps=8, enable_fp_fusion=False,
        )  # fmt: skip
    return out


@triton.jit
def _weight(source, centre, reach, start, end):
    """Weight of a source pixel before normalisation, 0 outside the box. Pass a reach of 1 as None."""
    middle = source.to(tl.float32) + 0.5
    distance = tl.abs(middle - centre)
    if reach is not None:
        distance = tl.div_rn(distance, reach)
    weight = tl.maximum(1 - distance, 0.0)
    return tl.where((middle > start) & (middle < end), weight, 0.0)


@triton.jit
def _clamp_to_box(source, start, end):
    return tl.minimum(tl.maximum(source, start.to(tl.int32)), end.to(tl.int32) - 1)


@triton.jit
def sample_crop(image, draw, pixel, height, width, rows, columns, TWO_TAPS: tl.constexpr):
    """Return the three channels of output pixels. TWO_TAPS: no side shrinks, so two taps per axis are enough."""
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
    if TWO_TAPS:
        y0, y1 = _weight(first_y, centre_y, None, top, bottom), _weight(first_y + 1, centre_y, None, top, bottom)
        x0, x1 = _weight(first_x, centre_x, None, left, right), _weight(first_x + 1, centre_x, None, left, right)
        y0, y1 = tl.div_rn(y0, y0 + y1), tl.div_rn(y1, y0 + y1)
        x0, x1 = tl.div_rn(x0, x0 + x1), tl.div_rn(x1, x0 + x1)
        up, down = _clamp_to_box(first_y, top, bottom) * width, _clamp_to_box(first_y + 1, top, bottom) * width
        near, far = _clamp_to_box(first_x, left, right), _clamp_to_box(first_x + 1, left, right)
        r = _bilinear(image, up + near, down + near, up + far, down + far, y0, y1, x0, x1)
        g = _bilinear(green, up + near, down + near, up + far, down + far, y0, y1, x0, x1)
        b = _bilinear(blue, up + near, down + near, up + far, down + far, y0, y1, x0, x1)
    else:
        taps_y, taps_x = (2 * reach_y).to(tl.int32) + 2, (2 * reach_x).to(tl.int32) + 2
        sum_y, sum_x = tl.zeros_like(centre_y), tl.zeros_like(centre_x)
        for i in range(taps_y):
            sum_y += _weight(first_y + i, centre_y, reach_y, top, bottom)
        for j in range(taps_x):
            sum_x += _weight(first_x + j, centre_x, reach_x, left, right)
        r, g, b = tl.zeros_like(centre_y), tl.zeros_like(centre_y), tl.zeros_like(centre_y)
        for j in range(taps_x):
            source_x = _clamp_to_box(first_x + j, left, right)
            column_r, column_g, column_b = tl.zeros_like(centre_y), tl.zeros_like(centre_y), tl.zeros_like(centre_y)
            for i in range(taps_y):
                weight = tl.div_rn(_weight(first_y + i, centre_y, reach_y, top, bottom), sum_y)
                index = _clamp_to_box(first_y + i, top, bottom) * width + source_x
                column_r += weight * tl.load(image + index).to(tl.float32)
                column_g += weight * tl.load(green + index).to(tl.float32)
                column_b += weight * tl.load(blue + index).to(tl.float32)
            weight = tl.div_rn(_weight(first_x + j, centre_x, reach_x, left, right), sum_x)
            r += weight * column_r
            g += weight * column_g
            b += weight * column_b
    return r, g, b


@triton.jit
def _bilinear(plane, up_near, down_near, up_far, down_far, y0, y1, x0, x1):
    near = y0 * tl.load(plane + up_near).to(tl.float32) + y1 * tl.load(plane + down_near).to(tl.float32)
    far = y0 * tl.load(plane + up_far).to(tl.float32) + y1 * tl.load(plane + down_far).to(tl.float32)
    return x0 * near + x1 * far


@triton.jit
def crop_resized(
    images, out, draws, height, width, rows, columns, TWO_TAPS: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """Crop each image to its box and resize it to rows × columns, uint8 to uint8."""
    number = tl.program_id(0)
    draw = draws + number * COLUMNS
    size = rows * columns
    image = images + number.to(tl.int64) * 3 * (height * width)
    view = out + number.to(tl.int64) * 3 * size
    for start in range(0, size, TILE):
        pixel = start + tl.arange(0, TILE)
        valid_pixel = tl.minimum(pixel, size - 1)
        r, g, b = sample_crop(image, draw, valid_pixel, height, width, rows, columns, TWO_TAPS)
        r, g, b = tl.div_rn(r, 255.0), tl.div_rn(g, 255.0), tl.div_rn(b, 255.0)
        store_pixels(view, pixel, size, r, g, b, pixel < size)


@triton.jit(do_not_specialize=["pad"])
def crop_padded(images, out, draws, height, width, pad, TILE: tl.constexpr):
    """Shift each image by up to `pad` pixels and flip it, uint8 to uint8, gray outside the image."""
    number = tl.program_id(0)
    draw = draws + number * COLUMNS
    size = height * width
    base = number.to(tl.int64) * 3 * size
    right = (tl.load(draw + 14).to(tl.float64) * (2 * pad + 1)).to(tl.int32) - pad
    down = (tl.load(draw + 15).to(tl.float64) * (2 * pad + 1)).to(tl.int32) - pad
    flip = tl.load(draw + 4) > 0
    for start in range(0, size, TILE):
        pixel = start + tl.arange(0, TILE)
        x = pixel % width
        x = tl.where(flip, width - 1 - x, x) + right
        y = pixel // width + down
        mask = pixel < size
        inside = mask & (x >= 0) & (x < width) & (y >= 0) & (y < height)
        for channel in tl.static_range(3):
            value = tl.load(images + base + channel * size + y * width + x, mask=inside, other=GRAY)
            tl.store(out + base + channel * size + pixel, value, mask=mask)


@triton.jit
def _to_uint8(x):
    """base.to_uint8 of x in [0, 1]: rounded half to even."""
    x = tl.minimum(tl.maximum(x * 255, 0.0), 255.0)
    return (x + 12582912.0 - 12582912.0).to(tl.int32).to(tl.uint8)  # adding 1.5 · 2^23 rounds


@triton.jit
def _cast(x, pointer):
    if pointer.dtype.element_ty == tl.uint8:
        x = _to_uint8(x)
    return x.to(pointer.dtype.element_ty)


@triton.jit
def store_pixels(out, pixel, size, red, green, blue, mask):
    tl.store(out + pixel, _cast(red, out), mask=mask)
    tl.store(out + size + pixel, _cast(green, out), mask=mask)
    tl.store(out + 2 * size + pixel, _cast(blue, out), mask=mask)
