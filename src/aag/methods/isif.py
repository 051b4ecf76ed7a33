"""ISIF: a view is to be recognised as its image's other view, and as none of the rest of the batch.

Ye, Zhang, Yuen, Chang: "Unsupervised Embedding Learning via Invariant and Spreading Instance Feature" (2019).

    aag train --data cifar10 --method isif

CIFAR-10, ResNet-18: kNN 83.6 in the paper, 82.6 here in 4 minutes on one H200. `--loss gnt-xent` is Table 5 (kNN 83.3 →
85.5; here 84.7).
"""

from collections.abc import Callable, Sequence
from typing import ClassVar

from torch import Tensor

from aag.augment import Augmentation
from aag.losses import isif
from aag.methods.simclr import SimCLR


class ISIF(SimCLR):
    """Two views in one batch, as in SimCLR, which came later: only the loss, its τ and the colours differ."""

    losses: ClassVar[dict[str, Callable[..., Tensor]]] = {"own": isif, **SimCLR.losses}

    def __init__(
        self, views: Sequence[Augmentation], loss: str = "own", temperature: float = 0.1, *, joint: bool = True
    ) -> None:
        super().__init__(views, loss, temperature, joint=joint)
