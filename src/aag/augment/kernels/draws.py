"""The random draws of the augmentations, one small launch for a whole batch."""

# mypy: ignore-errors
import math
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from aag.augment.colour import ORDERS
from aag.augment.geometry import largest_central
from aag.kernels import launch
from aag.kernels.rng import uniform

COLUMNS = tl.constexpr(16)  # of a draw
BLOCK = 64  # images of a program
VIEWS = 16  # of a program that draws them, each in 16 lanes
HALF_EVEN = tl.constexpr(1.5 * 2.0**52)  # added and taken away again, it rounds a float64


@triton.jit
def _column(draw, number, value, mask):
    tl.store(draw + number, value.to(tl.float32), mask=mask)


@triton.jit(do_not_specialize=["key", "n", "first", "height", "width"])
def draw_views(key, settings, out, n, first, height, width, BLOCK: tl.constexpr):
    """float32 [n, 16] from the slots `first` and after; `settings` as `view_settings` lays them out.

    Columns: the crop's (top, left, height, width), flipped, jittered, gray, blurred, the strengths of brightness,
    contrast, saturation and hue, their order in base 4, the blur's sigma, and the first two uniforms.
    """
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = lane < n
    key = tl.load(key + lane, mask=mask, other=0)
    draw = out + lane * COLUMNS

    # geometry.crop_boxes, its tries side by side.
    attempt = tl.arange(0, 16)[None, :]
    drawn = uniform(key[:, None], first + 2 * attempt).to(tl.float64)
    area = (height * width).to(tl.float64) * (tl.load(settings + 0) + tl.load(settings + 1) * drawn)
    drawn = uniform(key[:, None], first + 2 * attempt + 1).to(tl.float64)
    aspect = tl.exp(tl.load(settings + 2) + tl.load(settings + 3) * drawn)
    w = tl.sqrt(area * aspect) + HALF_EVEN - HALF_EVEN
    h = tl.sqrt(area / aspect) + HALF_EVEN - HALF_EVEN
    fits = (attempt < 10) & (w >= 1) & (w <= width) & (h >= 1) & (h <= height)
    first_fit = tl.min(tl.where(fits, attempt, 16), axis=1)
    found = first_fit < 16
    taken = attempt == first_fit[:, None]
    box_w = tl.where(found, tl.sum(tl.where(taken, w, 0.0), axis=1), tl.load(settings + 4))
    box_h = tl.where(found, tl.sum(tl.where(taken, h, 0.0), axis=1), tl.load(settings + 5))
    room_h, room_w = height - box_h, width - box_w
    top = tl.where(found, uniform(key, first + 20).to(tl.float64) * (room_h + 1), room_h * 0.5)
    left = tl.where(found, uniform(key, first + 21).to(tl.float64) * (room_w + 1), room_w * 0.5)
    _column(draw, 0, tl.floor(top), mask)
    _column(draw, 1, tl.floor(left), mask)
    _column(draw, 2, box_h, mask)
    _column(draw, 3, box_w, mask)

    for number in range(4):
        probability = tl.load(settings + 6 + number).to(tl.float32)
        _column(draw, 4 + number, uniform(key, first + 22 + number) < probability, mask)
        away = tl.load(settings + 10 + number).to(tl.float32) * (2 * uniform(key, first + 26 + number) - 1)
        _column(draw, 8 + number, tl.where(number < 3, tl.maximum(away + 1, 0.0), away), mask)  # hue turns from 0
    order = (uniform(key, first + 30) * 24).to(tl.int32)
    _column(draw, 12, tl.load(settings + 16 + order), mask)
    sigma_low, sigma_spread = tl.load(settings + 14).to(tl.float32), tl.load(settings + 15).to(tl.float32)
    _column(draw, 13, sigma_low + sigma_spread * uniform(key, first + 31), mask)
    _column(draw, 14, uniform(key, first), mask)
    _column(draw, 15, uniform(key, first + 1), mask)


@triton.jit(do_not_specialize=["key", "n", "choices", "cells", "choice", "gate", "sign"])
def pick_steps(key, chances, out, n, choices, cells, choice, gate, sign, BLOCK: tl.constexpr):
    """Which step of a policy's table each image takes in each place: see `pick`."""
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    place = tl.program_id(1)
    mask = lane < n
    key = tl.load(key + lane, mask=mask, other=0)
    cell = (uniform(key, choice * place) * choices).to(tl.int32) * cells + place % cells
    taken = uniform(key, gate + place).to(tl.float64) < tl.load(chances + cell)
    plus = uniform(key, sign + place) >= 0.5
    tl.store(out + place * n + lane, tl.where(taken, 1 + 2 * cell + plus.to(tl.int32), 0), mask=mask)


# --- from the host ---------------------------------------------------------------------------------------------------


@lru_cache(maxsize=32)
def view_settings(
    size: tuple[int, int],
    scale: tuple[float, float],
    ratio: tuple[float, float],
    probabilities: tuple[float, float, float, float],  # of flip, jitter, gray, blur
    spreads: tuple[float, float, float, float],  # of brightness, contrast, saturation, hue
    sigma: tuple[float, float],
    device: torch.device,
) -> Tensor:
    """What `draw_views` draws from, float64 [40]."""
    orders = [sum(number << 2 * place for place, number in enumerate(order)) for order in ORDERS]
    numbers = (
        *_low_and_spread(scale),
        *_low_and_spread((math.log(ratio[0]), math.log(ratio[1]))),
        *largest_central(*size, ratio),
        *probabilities,
        *spreads,
        *_low_and_spread(sigma),
        *orders,
    )
    return torch.tensor(numbers, dtype=torch.float64, device=device)


def _low_and_spread(pair: tuple[float, float]) -> tuple[float, float]:
    return pair[0], pair[1] - pair[0]


def view_draws(key: Tensor, settings: Tensor, size: tuple[int, int], first: int) -> Tensor:
    """float32 [B, 16], see `draw_views`, for images of (height, width) = size."""
    out = torch.empty(len(key), COLUMNS.value, device=key.device)
    launch(
        draw_views,
        (triton.cdiv(len(key), VIEWS),),
        key.contiguous(),
        settings,
        out,
        len(key),
        first,
        *size,
        BLOCK=VIEWS,
        num_warps=2,
        enable_fp_fusion=False,
    )
    return out


def pick(key: Tensor, chances: Tensor, places: int, choice: int, gate: int, sign: int) -> Tensor:
    """int32 [places, B]: 0 for nothing, else the row of the step, from `chances` float64 [choices, cells].

    An image's choice comes from the slot `choice`·place, whether it is taken from `gate` + place, and its sign from
    `sign` + place. Rows are (choice, cell, sign) counted from 1; a choice has a cell for each place, or one for all.
    """
    out = torch.empty(places, len(key), dtype=torch.int32, device=key.device)
    launch(
        pick_steps,
        (triton.cdiv(len(key), BLOCK), places),
        key.contiguous(),
        chances,
        out,
        len(key),
        *chances.shape,
        choice,
        gate,
        sign,
        BLOCK=BLOCK,
        num_warps=2,
    )
    return out
