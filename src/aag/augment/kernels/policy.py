"""AutoAugment and RandAugment: draw every image's operations in one launch, then one launch per operation."""

# mypy: ignore-errors
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from aag.augment.autoaugment import AutoAugment, OpPolicy, OpSlots, OpTable, RandAugment
from aag.augment.base import Augmentation, to_dtype, to_uint8
from aag.augment.kernels import is_unchanged
from aag.augment.kernels.ops import apply_ops
from aag.augment.ops import op_parameters
from aag.kernels import launch
from aag.kernels.rng import uniform

BLOCK = 64  # images per program
KNOWN_FIELDS = {AutoAugment: frozenset({"policy"}), RandAugment: frozenset({"n", "magnitude", "bins"})}


def supports(augmentation: Augmentation) -> bool:
    """Return whether `views` gives the augmentation's plain views."""
    return is_unchanged(augmentation, KNOWN_FIELDS)


def views(augmentation: OpPolicy, images: Tensor, rng_key: Tensor) -> Tensor:
    """Return the views of a batch [B, 3, H, W] with keys [B]."""
    size = tuple(images.shape[2:])
    parameters, probabilities = _op_parameters(augmentation.op_table(*size), size, images.device)
    out = to_uint8(images)
    for row in choose_ops(rng_key, probabilities, augmentation.op_slots()):
        out = apply_ops(out, parameters, row)
    return to_dtype(out, images.dtype)


@lru_cache(maxsize=32)
def _op_parameters(table: OpTable, size: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the parameters of every operation in the table, float64 [1 + rows · columns · 2, 8], and probabilities.

    Row 0 is the identity; then come (row, column, sign) in order. Computed on the CPU: the same on all devices.
    """
    op, probability, centre, spread = torch.tensor(table, dtype=torch.float64).unbind(2)
    magnitude = torch.stack([centre - spread, centre + spread], dim=2).flatten()
    parameters = op_parameters(op[:, :, None].expand(-1, -1, 2).flatten().long(), magnitude, *size)
    identity = torch.zeros_like(parameters[:1])
    return torch.cat([identity, parameters]).to(device), probability.contiguous().to(device)


@triton.jit(do_not_specialize=["rng_key", "n", "rows", "columns", "row_stride", "gate", "sign"])
def choose_ops_kernel(
    rng_key, probabilities, out, n, rows, columns, row_stride, gate, sign,
    BLOCK: tl.constexpr
):  # fmt: skip
    """Draw the operation of each image at each position: see `choose_ops`."""
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    i = tl.program_id(1)
    mask = lane < n
    key = tl.load(rng_key + lane, mask=mask, other=0)
    cell = (uniform(key, row_stride * i) * rows).to(tl.int32) * columns + i % columns
    applied = uniform(key, gate + i).to(tl.float64) < tl.load(probabilities + cell)
    plus = uniform(key, sign + i) >= 0.5
    tl.store(out + i * n + lane, tl.where(applied, 1 + 2 * cell + plus.to(tl.int32), 0), mask=mask)


def choose_ops(rng_key: Tensor, probabilities: Tensor, slots: OpSlots) -> Tensor:
    """Return rows of `_op_parameters`, int32 [ops, B], given probabilities float64 [rows, columns]."""
    out = torch.empty(slots.ops, len(rng_key), dtype=torch.int32, device=rng_key.device)
    launch(
        choose_ops_kernel, (triton.cdiv(len(rng_key), BLOCK), slots.ops),
        rng_key.contiguous(), probabilities, out, len(rng_key), *probabilities.shape, *slots[1:],
        BLOCK=BLOCK, num_warps=2,
    )  # fmt: skip
    return out
