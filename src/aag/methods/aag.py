"""AAG: two basic views and an auxiliary one, with GNT-Xent.

Tu, Feng, Yang: "AAG: Self-Supervised Representation Learning by Auxiliary Augmentation with GNT-Xent Loss" (2021).

    aag train --data cifar10 --recipe paper

CIFAR-10, ResNet-18: kNN 88.3 in the paper, 89.0 here in 5 minutes on one H200. The ablations are settings: `--auxiliary
none` (two basic views), `--auxiliary basic` (three basic views), `--auxiliary randaugment`, `--loss nt-xent`,
`--schedule step`.
"""

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from aag import kernels
from aag.augment import Augmentation, AutoAugment, AuxiliaryAugment, RandAugment
from aag.config import TrainConfig
from aag.losses import check, components_from_similarities, keeps_positive, similarities
from aag.methods.base import Embeddings, Method, Outcome, Setting, basic

LOG = (
    "positive_similarity", "negative_similarity", "positive_gradient", "negative_gradient",
    "loss_xy", "loss_zx", "loss_zy",
)  # fmt: skip


class AAG(Method):
    def __init__(
        self,
        views: Sequence[Augmentation],
        temperature: float = 0.1,
        keep_positive: bool = False,
        *,
        joint: bool = True,
    ) -> None:
        """`keep_positive`: NT-Xent instead of GNT-Xent."""
        super().__init__(views, joint=joint)
        self.temperature, self.keep_positive = temperature, keep_positive
        self.logs = LOG if len(self.views) == 3 else LOG[:-2]

    @classmethod
    def from_setting(cls, setting: Setting) -> Self:
        config = setting.config
        views = cls.families(config)
        return cls(views, config.temperature, keeps_positive(config.loss), joint=config.forward == "joint")

    @classmethod
    def families(cls, config: TrainConfig) -> tuple[Augmentation, ...]:
        def auxiliary(family: Augmentation) -> tuple[Augmentation, ...]:
            return (AuxiliaryAugment(family, crop=config.auxiliary_crop, flip=0.5 if config.flip else 0.0),)

        third = {
            "autoaugment": lambda: auxiliary(AutoAugment(config.autoaugment_policy())),
            "randaugment": lambda: auxiliary(RandAugment(config.rand_n, config.rand_magnitude)),
            "basic": lambda: (basic(config),),
            "none": lambda: (),
        }[config.auxiliary]()
        return (basic(config), basic(config), *third)

    def loss(self, embeddings: Embeddings, index: Tensor) -> Outcome:
        x, y, *rest = embeddings
        check(x, y, rest[0] if rest else None, self.temperature)
        if kernels.enabled(x):
            from aag.kernels.contrast import contrast, supports

            if supports(x):
                total, numbers = contrast(
                    _together(embeddings),
                    len(embeddings),
                    temperature=self.temperature,
                    keep_positive=self.keep_positive,
                )
                return Outcome(total, numbers[1 : 1 + len(self.logs)].unbind())
        s = similarities(x, y, rest[0] if rest else None, temperature=self.temperature)
        parts = components_from_similarities(s, self.keep_positive)
        total = sum((part.loss.mean() for part in parts[1:]), start=parts[0].loss.mean())

        # Figure 4: the core pair's similarities (as cosines) and the gradients on them, means over the batch.
        n = len(x)
        core, xy = parts[0], s.xy.detach() * self.temperature
        positive = xy.diagonal().mean()
        negative = (xy.sum() - positive * n) / (n * (n - 1))
        pull = core.pull.mean()
        log = [positive, negative, pull, -pull / (4 * (n - 1)), *(part.loss.detach().mean() for part in parts)]
        return Outcome(total, log)


def _together(embeddings: Embeddings) -> Tensor:
    """[V, n, d] or V of [n, d] as [V · n, d]."""
    return embeddings.flatten(0, 1) if isinstance(embeddings, Tensor) else torch.cat(list(embeddings))
