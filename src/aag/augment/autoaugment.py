"""AutoAugment and RandAugment: a sequence of operations for each image, chosen at random."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from aag import kernels
from aag.augment.base import Augmentation, PositiveInt, check_name, to_dtype, to_uint8
from aag.augment.ops import OPS, apply_ops
from aag.augment.policies import POLICIES, SubPolicy
from aag.errors import AAGError
from aag.rng import uniforms
from aag.settings import Range, check_fields

# [rows][columns] of (index into OPS, probability, centre of the magnitude, its spread): the magnitude is one of
# centre ± spread. Each image draws a row; its i-th operation is in column i, or in the only column.
OpTable = tuple[tuple[tuple[int, float, float, float], ...], ...]

MAX_TRANSLATE = 150 / 331  # of the side: AutoAugment was searched on images of 331 pixels, shifted by up to 150
RAND_OPS = (
    *("Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color"),
    *("Contrast", "Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize"),
)


class OpSlots(NamedTuple):
    """The slots of the random numbers that decide an image's i-th operation."""

    ops: int  # number of operations
    row_stride: int  # slot row_stride · i draws the row of the table: 0 draws one row for all
    gate: int  # slot gate + i decides whether the operation is applied
    sign: int  # slot sign + i decides between centre − spread and centre + spread


class OpPolicy(Augmentation):
    """Apply operations drawn from a table: what AutoAugment and RandAugment share."""

    def op_table(self, height: int, width: int) -> OpTable:
        """Return the operations to draw from, for images of a size."""
        raise NotImplementedError

    def op_slots(self) -> OpSlots:
        """Return the slots of the random numbers that the operations use."""
        raise NotImplementedError

    def views(self, images: Tensor, rng_key: Tensor) -> Tensor:
        if kernels.enabled(images):
            from aag.augment.kernels import policy as policy_kernel  # imports triton

            if policy_kernel.supports(self):
                return policy_kernel.views(self, images, rng_key)
        return self.plain_views(images, rng_key)

    def plain_views(self, images: Tensor, rng_key: Tensor) -> Tensor:
        slots = self.op_slots()
        u = uniforms(rng_key, slots.sign + slots.ops)
        table = torch.tensor(self.op_table(*images.shape[2:]), dtype=torch.float64, device=images.device)
        rows, columns = table.shape[:2]
        out = to_uint8(images)
        for i in range(slots.ops):
            row = (u[:, slots.row_stride * i] * rows).long()
            op, probability, centre, spread = table[row, i % columns].unbind(1)  # each [B]
            op = torch.where(u[:, slots.gate + i] < probability, op, 0).long()
            out = apply_ops(op, out, centre + torch.where(u[:, slots.sign + i] < 0.5, -spread, spread))
        return to_dtype(out, images.dtype)


@dataclass(frozen=True)
class AutoAugment(OpPolicy):
    """Apply one of the policy's 25 sub-policies to each image: two operations, each with its probability."""

    policy: str = "cifar10"  # cifar10, svhn or imagenet

    def __post_init__(self) -> None:
        check_name("AutoAugment policy", self.policy, POLICIES)

    def op_table(self, height: int, width: int) -> OpTable:
        return _auto_table(POLICIES[self.policy], height, width)

    def op_slots(self) -> OpSlots:
        return OpSlots(ops=2, row_stride=0, gate=1, sign=3)


@dataclass(frozen=True)
class RandAugment(OpPolicy):
    """Apply n of 14 operations to each image, all at the same magnitude, an integer below `bins`.

    With 31 bins, magnitude 10 is a third of each operation's range; with `bins=11`, it is the whole range.
    """

    n: Annotated[int, Range(at_least=1, at_most=16)] = 2  # each image has 32 random numbers, two per operation
    magnitude: Annotated[int, Range(at_least=0)] = 10
    bins: PositiveInt = 31

    def __post_init__(self) -> None:
        check_fields(self, spell=str)
        if self.magnitude >= self.bins:
            raise AAGError(f"magnitude must be below {self.bins}, the number of bins, not {self.magnitude}")

    def op_table(self, height: int, width: int) -> OpTable:
        return _rand_table(self.magnitude / (self.bins - 1) if self.magnitude else 0.0, height, width)

    def op_slots(self) -> OpSlots:
        return OpSlots(ops=self.n, row_stride=1, gate=0, sign=self.n)  # the gate always opens: its probability is 1


@lru_cache(maxsize=32)
def _auto_table(policy: tuple[SubPolicy, ...], height: int, width: int) -> OpTable:
    """Return a row per sub-policy with its two operations."""
    return tuple(
        tuple((OPS.index(op), p, *_level_magnitude(op, level, height, width)) for op, p, level in sub_policy)
        for sub_policy in policy
    )


@lru_cache(maxsize=32)
def _rand_table(fraction: float, height: int, width: int) -> OpTable:
    """Return a row per operation."""
    magnitudes = {op: _range_magnitude(op, fraction, height, width) for op in RAND_OPS}
    for op in ("TranslateX", "TranslateY"):
        magnitudes[op] = (0, int(magnitudes[op][1]))  # like torchvision's RandAugment: whole pixels
    return tuple(((OPS.index(op), 1.0, *magnitude),) for op, magnitude in magnitudes.items())


def _level_magnitude(op: str, level: int, height: int, width: int) -> tuple[float, float]:
    """Return the magnitude of an AutoAugment level, 0 to 9, as (centre, spread)."""
    if op == "Posterize":
        return (8, 8, 7, 7, 6, 6, 5, 5, 4, 4)[level], 0
    if op == "Solarize":
        return 256 * (9 - level) / 9, 0
    return _range_magnitude(op, level / 9, height, width)


def _range_magnitude(op: str, fraction: float, height: int, width: int) -> tuple[float, float]:
    """Return the magnitude at a fraction of the operation's range, as (centre, spread)."""
    if op in ("Brightness", "Color", "Contrast", "Sharpness"):
        return 1, 0.9 * fraction
    if op == "Posterize":
        return 8 - round(4 * fraction), 0
    if op == "Solarize":
        return 255 - 255 * fraction, 0  # 255 · (1 − fraction) would miss whole thresholds such as 170 by a rounding
    largest = {
        "ShearX": 0.3, "ShearY": 0.3, "Rotate": 30,
        "TranslateX": MAX_TRANSLATE * width, "TranslateY": MAX_TRANSLATE * height,
    }  # fmt: skip
    return 0, largest.get(op, 0) * fraction
