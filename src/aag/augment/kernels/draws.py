"""Random draws of a crop, colour jitter and blur, for a whole batch in one small launch."""

# mypy: ignore-errors
import math
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from aag.augment.colour import ORDERS
from aag.augment.geometry import largest_central_box
from aag.kernels import launch
from aag.kernels.rng import uniform

COLUMNS = tl.constexpr(16)  # numbers per image
BLOCK = 16  # images per program, each in 16 lanes
HALF_EVEN = tl.constexpr(1.5 * 2.0**52)  # adding and subtracting it rounds a float64 to an integer


@triton.jit
def _store_column(draw, column, value, mask):
    tl.store(draw + column, value.to(tl.float32), mask=mask)


@triton.jit(do_not_specialize=["rng_key", "n", "first_slot", "height", "width"])
def draw_kernel(rng_key, settings, out, n, first_slot, height, width, BLOCK: tl.constexpr):
    """Write float32 [n, 16], drawn from slot `first_slot` on; `_settings` defines the layout of `settings`.

    Columns: the crop's (top, left, height, width); flip, jitter, gray, blur as 0 or 1; the strengths of brightness,
    contrast, saturation and hue; their order in base 4; the blur's sigma; the first two uniforms.
    """
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = lane < n
    key = tl.load(rng_key + lane, mask=mask, other=0)
    draw = out + lane * COLUMNS

    # geometry.crop_boxes, with the ten attempts side by side.
    attempt = tl.arange(0, 16)[None, :]
    u = uniform(key[:, None], first_slot + 2 * attempt).to(tl.float64)
    area = (height * width).to(tl.float64) * (tl.load(settings + 0) + tl.load(settings + 1) * u)
    u = uniform(key[:, None], first_slot + 2 * attempt + 1).to(tl.float64)
    aspect = tl.exp(tl.load(settings + 2) + tl.load(settings + 3) * u)
    w = tl.sqrt(area * aspect) + HALF_EVEN - HALF_EVEN
    h = tl.sqrt(area / aspect) + HALF_EVEN - HALF_EVEN
    fits = (attempt < 10) & (w >= 1) & (w <= width) & (h >= 1) & (h <= height)
    chosen_attempt = tl.min(tl.where(fits, attempt, 16), axis=1)
    found = chosen_attempt < 16
    chosen = attempt == chosen_attempt[:, None]
    box_w = tl.where(found, tl.sum(tl.where(chosen, w, 0.0), axis=1), tl.load(settings + 4))
    box_h = tl.where(found, tl.sum(tl.where(chosen, h, 0.0), axis=1), tl.load(settings + 5))
    room_h, room_w = height - box_h, width - box_w
    top = tl.where(found, uniform(key, first_slot + 20).to(tl.float64) * (room_h + 1), room_h * 0.5)
    left = tl.where(found, uniform(key, first_slot + 21).to(tl.float64) * (room_w + 1), room_w * 0.5)
    _store_column(draw, 0, tl.floor(top), mask)
    _store_column(draw, 1, tl.floor(left), mask)
    _store_column(draw, 2, box_h, mask)
    _store_column(draw, 3, box_w, mask)

    for number in range(4):
        probability = tl.load(settings + 6 + number).to(tl.float32)
        _store_column(draw, 4 + number, uniform(key, first_slot + 22 + number) < probability, mask)
        spread = tl.load(settings + 10 + number).to(tl.float32)
        centre = tl.where(number < 3, tl.maximum(spread, 1.0), 0.0)  # hue is a shift around 0
        strength = centre + spread * (2 * uniform(key, first_slot + 26 + number) - 1)
        _store_column(draw, 8 + number, strength, mask)
    order = (uniform(key, first_slot + 30) * 24).to(tl.int32)
    _store_column(draw, 12, tl.load(settings + 16 + order), mask)
    sigma_low, sigma_spread = tl.load(settings + 14).to(tl.float32), tl.load(settings + 15).to(tl.float32)
    _store_column(draw, 13, sigma_low + sigma_spread * uniform(key, first_slot + 31), mask)
    _store_column(draw, 14, uniform(key, first_slot), mask)
    _store_column(draw, 15, uniform(key, first_slot + 1), mask)


def draw(
    rng_key: Tensor,
    size: tuple[int, int],
    scale: tuple[float, float],
    ratio: tuple[float, float],
    probabilities: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0),  # of flip, jitter, gray, blur
    spreads: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0),  # of brightness, contrast, saturation, hue
    sigma: tuple[float, float] = (1.0, 1.0),
    first_slot: int = 0,
) -> Tensor:
    """Return the draws for images of size (height, width), float32 [B, 16]: see `draw_kernel` for the columns."""
    settings = _settings(size, scale, ratio, probabilities, spreads, sigma, rng_key.device)
    out = torch.empty(len(rng_key), COLUMNS.value, device=rng_key.device)
    launch(
        draw_kernel, (triton.cdiv(len(rng_key), BLOCK),),
        rng_key.contiguous(), settings, out, len(rng_key), first_slot, *size,
        BLOCK=BLOCK, num_warps=2, enable_fp_fusion=False,
    )  # fmt: skip
    return out


@lru_cache(maxsize=32)
def _settings(size, scale, ratio, probabilities, spreads, sigma, device) -> Tensor:
    """Return what `draw_kernel` draws from, float64 [40]."""
    orders = [sum(number << 2 * position for position, number in enumerate(order)) for order in ORDERS]
    numbers = (
        *_low_and_width(scale),
        *_low_and_width((math.log(ratio[0]), math.log(ratio[1]))),
        *largest_central_box(*size, ratio),
        *probabilities,
        *spreads,
        *_low_and_width(sigma),
        *orders,
    )
    return torch.tensor(numbers, dtype=torch.float64, device=device)


def _low_and_width(pair: tuple[float, float]) -> tuple[float, float]:
    return pair[0], pair[1] - pair[0]
