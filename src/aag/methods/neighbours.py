"""AND: instance discrimination in rounds, where ever more images count their nearest neighbour as themselves.

Huang, Dong, Gong, Zhu: "Unsupervised Deep Learning by Neighbourhood Discovery" (2019).

    aag train --data cifar10 --method and

CIFAR-10, ResNet-18, 5 rounds of 200 epochs: kNN 86.3 in the paper; here 84.4 after two rounds, which take 6 minutes on
one H200. The network and the bank go on from round to round; the learning rate starts anew.
"""

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from aag.augment import Augmentation
from aag.losses import unit
from aag.methods.base import Embeddings, Extract, Outcome, Setting
from aag.methods.instance import Instance

SHARE = 0.25  # of all images, by which the anchors grow each round


class AND(Instance):
    logs: tuple[str, ...] = ("positive_probability", "anchors")
    anchor: Tensor  # bool [N]: whose neighbour counts
    neighbour: Tensor  # int64 [N]

    def __init__(
        self,
        views: Sequence[Augmentation],
        images: int,
        dim: int,
        temperature: float = 0.1,
        momentum: float = 0.5,
        *,
        round_epochs: int = 200,
        seed: int = 0,
        joint: bool = True,
    ) -> None:
        super().__init__(views, images, dim, temperature, momentum, seed=seed, joint=joint)
        self.round_epochs = round_epochs
        self.register_buffer("anchor", torch.zeros(images, dtype=torch.bool))
        self.register_buffer("neighbour", torch.arange(images))

    @classmethod
    def from_setting(cls, setting: Setting) -> Self:
        return cls(**cls.shared(setting), round_epochs=setting.config.epochs // setting.config.rounds)

    def before_epoch(self, epoch: int, extract: Extract) -> None:
        number, within = divmod(epoch, self.round_epochs)
        if within == 0:
            self.discover(number)

    @torch.no_grad()
    def discover(self, number: int) -> None:
        """Round `number`, from 0: of the images, so many quarters become anchors, whose place is the clearest."""
        self.anchor.zero_()
        if count := min(int(SHARE * number * len(self.anchor)), len(self.anchor)):
            entropy, nearest = self.bank.survey(self.temperature)
            self.neighbour.copy_(nearest)
            self.anchor[entropy.sort(stable=True).indices[:count]] = True

    def positives(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Of each image itself and its neighbour, int64 [n, 2], and whether they count, bool [n, 2]."""
        anchor = self.anchor[index]
        return torch.stack([index, self.neighbour[index]], dim=1), torch.stack([torch.ones_like(anchor), anchor], dim=1)

    def loss(self, embeddings: Embeddings, index: Tensor) -> Outcome:
        """−log(p_ii + p_ij) for an anchor i with its neighbour j, −log p_ii for the others."""
        (x,) = embeddings
        v = unit(x)
        log_p = self.bank.match(v, *self.positives(index), temperature=self.temperature).log_share
        log = [log_p.detach().exp().mean(), self.anchor[index].to(log_p.dtype).mean()]
        return Outcome(-log_p.mean(), log, (index, v.detach()))
