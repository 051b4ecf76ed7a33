"""AAG: two basic views and an auxiliary one, with GNT-Xent.

Tu, Feng, Yang: "AAG: Self-Supervised Representation Learning by Auxiliary Augmentation with GNT-Xent Loss" (2021).

    aag train --data cifar10 --recipe paper

The ablations are settings: `--auxiliary none` (two basic views), `--auxiliary basic` (three basic views),
`--auxiliary randaugment`, `--loss nt-xent`, `--schedule step`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from aag import kernels
from aag.augment import Augmentation, AutoAugment, AuxiliaryAugment, BasicAugment, RandAugment
from aag.config import TrainConfig
from aag.losses import check, components_of, keeps_positive, similarities


@dataclass(frozen=True)
class AAG:
    views: tuple[Augmentation, ...]
    temperature: float = 0.1
    keep_positive: bool = False  # NT-Xent instead of GNT-Xent

    @staticmethod
    def from_config(config: TrainConfig, policy: str) -> "AAG":
        flip = 0.5 if config.flip else 0.0
        basic = BasicAugment.preset(config.basic, flip=flip)

        def auxiliary(policy_family: Augmentation) -> tuple[Augmentation, ...]:
            return (AuxiliaryAugment(policy_family, crop=config.auxiliary_crop, flip=flip),)

        third = {
            "autoaugment": lambda: auxiliary(AutoAugment(policy)),
            "randaugment": lambda: auxiliary(RandAugment(config.rand_n, config.rand_magnitude)),
            "basic": lambda: (basic,),
            "none": lambda: (),
        }[config.auxiliary]()
        return AAG((basic, basic, *third), config.temperature, keeps_positive(config.loss))

    def loss(self, embeddings: Sequence[Tensor] | Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        x, y, *rest = embeddings
        check(x, y, rest[0] if rest else None, self.temperature)
        if kernels.usable(x):
            from aag.kernels.contrast import contrast, takes

            if takes(x):
                total, numbers = contrast(
                    _together(embeddings),
                    len(embeddings),
                    temperature=self.temperature,
                    keep_positive=self.keep_positive,
                )
                logged = LOG if rest else LOG[:-2]
                return total, dict(zip(logged, numbers[1:].unbind(), strict=False))
        s = similarities(x, y, rest[0] if rest else None, temperature=self.temperature)
        parts = components_of(s, self.keep_positive)
        total = sum((part.loss.mean() for part in parts[1:]), start=parts[0].loss.mean())

        # Figure 4: the core pair's similarities (as cosines) and the gradients on them, means over the batch.
        n = len(x)
        core, xy = parts[0], s.xy.detach() * self.temperature
        positive = xy.diagonal().mean()
        negative = (xy.sum() - positive * n) / (n * (n - 1))
        pull = core.pull.mean()
        log = [positive, negative, pull, -pull / (4 * (n - 1)), *(part.loss.detach().mean() for part in parts)]
        return total, dict(zip(LOG, log, strict=False))  # no zx and no zy of two views


def _together(embeddings: Sequence[Tensor] | Tensor) -> Tensor:
    """[V, n, d] or V of [n, d] as [V · n, d]."""
    return embeddings.flatten(0, 1) if isinstance(embeddings, Tensor) else torch.cat(list(embeddings))


LOG = (
    "positive_similarity", "negative_similarity", "positive_gradient", "negative_gradient",
    "loss_xy", "loss_zx", "loss_zy",
)  # fmt: skip
