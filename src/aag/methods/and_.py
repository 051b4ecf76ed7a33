"""AND: instance discrimination in rounds; each round adds images whose nearest neighbour is a second positive.

Huang, Dong, Gong, Zhu: "Unsupervised Deep Learning by Neighbourhood Discovery" (2019).

    aag train --data cifar10 --method and

CIFAR-10, ResNet-18, 5 rounds of 200 epochs: kNN 86.3 in the paper; 86.3 here, in 14 minutes on one H200. The network
and the bank carry over from round to round; the learning rate restarts.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from aag.losses import unit_rows
from aag.methods.base import Embeddings, Extract, MethodContext, Recipe, StepOutput
from aag.methods.instance import BankSettings, Instance

ANCHOR_FRACTION = 0.25  # of all images that become anchors in each further round


@dataclass(frozen=True)
class ANDSettings(BankSettings): ...


class AND(Instance):
    name = "and"
    settings_type: ClassVar[type[BankSettings]] = ANDSettings
    settings: BankSettings  # type: ignore[assignment]
    recipes = {
        "and": Recipe(
            about="AND: Instance in five rounds; each adds a quarter of the images with their nearest neighbours",
            expect="CIFAR-10, ResNet-18, 1000 epochs: kNN 86.3 in the paper; 86.3 here, in 14 minutes on one H200",
            options={"schedule": "step", "nesterov": True, "rounds": 5, "epochs": 1000},
            demo={"epochs": 24, "lr": 0.06, "temperature": 0.2, "rounds": 2},
        )
    }
    log_names: tuple[str, ...] = ("positive_probability", "anchors")
    anchor: Tensor  # bool [N]: images whose neighbour is a positive
    neighbour: Tensor  # int64 [N]

    def setup(self, context: MethodContext) -> None:
        super().setup(context)
        self.round_epochs = context.train.round_epochs
        self.register_buffer("anchor", torch.zeros(context.images, dtype=torch.bool))
        self.register_buffer("neighbour", torch.arange(context.images))

    def before_epoch(self, epoch: int, extract: Extract) -> None:
        if epoch % self.round_epochs == 0:
            self.choose_anchors(epoch // self.round_epochs)

    @torch.no_grad()
    def choose_anchors(self, round_number: int) -> None:
        """Make a quarter of the images per finished round anchors: those whose similarities have the lowest entropy."""
        self.anchor.zero_()
        if count := min(int(ANCHOR_FRACTION * round_number * len(self.anchor)), len(self.anchor)):
            entropy, nearest = self.bank.find_neighbours(self.settings.temperature)
            self.neighbour.copy_(nearest)
            self.anchor[entropy.sort(stable=True).indices[:count]] = True

    def positives(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return each image and its neighbour, int64 [n, 2], and whether they count as positives, bool [n, 2]."""
        anchor = self.anchor[index]
        return torch.stack([index, self.neighbour[index]], dim=1), torch.stack([torch.ones_like(anchor), anchor], dim=1)

    def loss(self, embeddings: Embeddings, index: Tensor) -> StepOutput:
        """Return the mean of −log(p_ii + p_ij) for an anchor i with its neighbour j, and −log p_ii for the others."""
        (x,) = embeddings
        v = unit_rows(x)
        log_p = self.bank.match(v, *self.positives(index), temperature=self.settings.temperature).log_probability
        log = (log_p.detach().exp().mean(), self.anchor[index].to(log_p.dtype).mean())
        return StepOutput(-log_p.mean(), log, (index, v.detach()))
