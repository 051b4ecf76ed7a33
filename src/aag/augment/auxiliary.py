"""The auxiliary family: AutoAugment, RandAugment, and the crop that comes before them."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from aag import kernels
from aag.augment.base import Augmentation, like, to_bytes
from aag.augment.geometry import affine, crop_boxes, resample
from aag.augment.ops import OPS, apply_each
from aag.augment.ops import steps as ops_steps
from aag.augment.policies import POLICIES, Step
from aag.errors import AAGError, unknown
from aag.rng import uniforms

Steps = tuple[tuple[tuple[int, float, float, float], ...], ...]  # [choices, cells] of (op, chance, centre, spread)
MakeSteps = Callable[[Any, Sequence[int]], Steps]  # from a policy's description and (height, width)
TRANSLATE = 150 / 331  # of the side: AutoAugment searched on images of 331 pixels, with up to 150


@dataclass(frozen=True)
class AutoAugment(Augmentation):
    """One of the policy's 25 sub-policies for each image: two operations, each with its probability."""

    policy: str = "cifar10"  # cifar10, svhn or imagenet

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise unknown("AutoAugment policy", self.policy, POLICIES)

    def draw(self, images: Tensor, key: Tensor) -> Tensor:
        policy = POLICIES[self.policy]
        if kernels.enabled(images):
            return _by_kernels(images, key, _auto_steps, policy, places=2, choice=0, gate=1, sign=3)
        u = uniforms(key, 5)
        steps = _auto_steps(policy, images.shape[2:])
        table = torch.tensor(steps, dtype=torch.float64, device=images.device)  # [25, 2, (op, p, centre, spread)]
        op, p, centre, spread = table[(u[:, 0] * len(steps)).long()].unbind(2)  # each [B, 2]
        return _apply(images, torch.where(u[:, 1:3] < p, op, 0).long(), centre, spread, u[:, 3:5])


@dataclass(frozen=True)
class RandAugment(Augmentation):
    """n of 14 operations for each image, each at the same magnitude out of `bins` − 1.

    With 31 bins a magnitude of 10 is a third of each operation's range; `bins=11` makes 10 the whole range.
    """

    n: int = 2
    magnitude: int = 10
    bins: int = 31

    def __post_init__(self) -> None:
        if not 1 <= self.n <= 16:  # an image has 32 random slots for them
            raise AAGError(f"RandAugment takes 1 to 16 operations, not {self.n}")
        if not 0 <= self.magnitude < self.bins:
            raise AAGError(f"RandAugment's magnitude lies in 0 … {self.bins - 1}, not {self.magnitude}")

    def draw(self, images: Tensor, key: Tensor) -> Tensor:
        share = self.magnitude / (self.bins - 1) if self.magnitude else 0.0
        if kernels.enabled(images):
            return _by_kernels(images, key, _rand_steps, share, places=self.n, choice=1, gate=0, sign=self.n)
        u = uniforms(key, 2 * self.n)
        steps = _rand_steps(share, images.shape[2:])
        table = torch.tensor(steps, dtype=torch.float64, device=images.device)[:, 0]  # [14, (op, 1, centre, spread)]
        op, _, centre, spread = table[(u[:, : self.n] * len(steps)).long()].unbind(2)  # each [B, n]
        return _apply(images, op.long(), centre, spread, u[:, self.n :])


@dataclass(frozen=True)
class AuxiliaryAugment(Augmentation):
    """The auxiliary view: a crop and a flip, then a policy. The paper leaves the crop open."""

    policy: Augmentation = AutoAugment()
    crop: str = (
        "resized"  # resized: RandomResizedCrop; padded: shifted by up to `pad` pixels; none: neither crop nor flip
    )
    flip: float = 0.5
    scale: tuple[float, float] = (0.2, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    pad: int = 4

    def __post_init__(self) -> None:
        if self.crop not in CROPS:
            raise unknown("auxiliary crop", self.crop, CROPS)

    def draw(self, images: Tensor, key: Tensor) -> Tensor:
        out = to_bytes(images)
        if self.crop != "none":
            # The policy's slots start at 0, so the crop's are taken from behind them.
            out = self._kernel_cropped(out, key) if kernels.enabled(out) else self._cropped(out, key)
        return like(self.policy.draw(out, key), images.dtype)

    def _cropped(self, out: Tensor, key: Tensor) -> Tensor:
        height, width = out.shape[2:]
        u = uniforms(key, 64)[:, 32:55]
        flip = u[:, 22] < self.flip
        if self.crop == "resized":
            box = crop_boxes(u[:, :22], height, width, self.scale, self.ratio)
            # Rounded as it is: a GPU divides by 255 by way of 1/255, and what lies halfway would no longer do so.
            return resample(out, box, flip, (height, width)).round().to(torch.uint8)
        shift = torch.floor(u[:, :2].double() * (2 * self.pad + 1)) - self.pad
        sign = torch.where(flip, -1.0, 1.0).double()
        zero, one = torch.zeros_like(sign), torch.ones_like(sign)
        left = shift[:, 0] + torch.where(flip, width - 1.0, 0.0)
        return affine(out, torch.stack([sign, zero, left + (one - sign) / 2, zero, one, shift[:, 1]], dim=1))

    def _kernel_cropped(self, out: Tensor, key: Tensor) -> Tensor:
        from aag.augment.kernels import crop, draws

        size = (out.shape[2], out.shape[3])
        chances, none = (self.flip, 0.0, 0.0, 0.0), (0.0,) * 4
        settings = draws.view_settings(size, self.scale, self.ratio, chances, none, (1.0, 1.0), key.device)
        drawn = draws.view_draws(key, settings, size, first=32)
        return crop.crop(out, drawn, self.pad if self.crop == "padded" else None)


CROPS = ("resized", "padded", "none")
RAND_OPS = (
    *("Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color"),
    *("Contrast", "Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize"),
)


def _apply(images: Tensor, op: Tensor, centre: Tensor, spread: Tensor, u: Tensor) -> Tensor:
    """The operations op [B, n] in turn, at centre ± spread: half of the images get the plus."""
    magnitude = centre + torch.where(u < 0.5, -spread, spread)
    out = to_bytes(images)
    for place in range(op.shape[1]):
        out = apply_each(op[:, place], out, magnitude[:, place])
    return like(out, images.dtype)


def _by_kernels(
    images: Tensor, key: Tensor, steps: MakeSteps, of: Hashable, *, places: int, choice: int, gate: int, sign: int
) -> Tensor:
    """Steps drawn and applied by kernels; `choice`, `gate` and `sign` say which slots decide (see `draws.pick`)."""
    from aag.augment.kernels.draws import pick
    from aag.augment.kernels.operate import operate

    table, chances = _table(steps, of, tuple(images.shape[2:]), images.device)
    out = to_bytes(images)
    for index in pick(key, chances, places, choice, gate, sign):
        out = operate(out, table, index)
    return like(out, images.dtype)


@lru_cache(maxsize=32)
def _table(steps: MakeSteps, of: Hashable, size: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Every step there is, float64 [1 + choices·cells·2, 8] (see `ops.steps`), and their chances [choices, cells].

    The first is nothing; then each with its minus and its plus. Made on the CPU, so all devices have the same.
    """
    op, chance, centre, spread = torch.tensor(steps(of, size), dtype=torch.float64).unbind(2)
    magnitude = torch.stack([centre - spread, centre + spread], dim=2).flatten()
    known = ops_steps(op[:, :, None].expand(-1, -1, 2).flatten().long(), magnitude, *size)
    nothing = torch.zeros_like(known[:1])
    return torch.cat([nothing, known]).to(device), chance.contiguous().to(device)


def _auto_steps(policy: tuple[tuple[Step, Step], ...], size: Sequence[int]) -> Steps:
    """Each sub-policy's two."""
    return tuple(tuple((OPS.index(op), p, *_at_level(op, level, size)) for op, p, level in sub) for sub in policy)


def _rand_steps(share: float, size: Sequence[int]) -> Steps:
    """Each operation's one."""
    strengths = {name: _at_share(name, share, size) for name in RAND_OPS}
    for name in ("TranslateX", "TranslateY"):
        strengths[name] = (0, int(strengths[name][1]))  # torchvision's RandAugment moves by whole pixels
    return tuple(((OPS.index(name), 1.0, *strength),) for name, strength in strengths.items())


def _at_level(op: str, level: int, size: Sequence[int]) -> tuple[float, float]:
    """AutoAugment's meaning of a level 0 … 9, as (centre, spread) of the magnitude."""
    if op == "Posterize":
        return (8, 8, 7, 7, 6, 6, 5, 5, 4, 4)[level], 0
    if op == "Solarize":
        return 256 * (9 - level) / 9, 0
    return _at_share(op, level / 9, size)


def _at_share(op: str, share: float, size: Sequence[int]) -> tuple[float, float]:
    """The magnitude at a share of the operation's range, as (centre, spread)."""
    height, width = size
    if op in ("Brightness", "Color", "Contrast", "Sharpness"):
        return 1, 0.9 * share
    if op == "Posterize":
        return 8 - round(4 * share), 0
    if op == "Solarize":
        return 255 - 255 * share, 0  # 255 · (1 − share) would miss 170, and other whole thresholds, by a rounding
    widest = {
        "ShearX": 0.3, "ShearY": 0.3, "Rotate": 30, "TranslateX": TRANSLATE * width, "TranslateY": TRANSLATE * height
    }  # fmt: skip
    return 0, widest.get(op, 0) * share
