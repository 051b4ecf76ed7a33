"""ISIF: classify each view as its image's other view, and as no other view of the batch.

Ye, Zhang, Yuen, Chang: "Unsupervised Embedding Learning via Invariant and Spreading Instance Feature" (2019).

    aag train --data cifar10 --method isif

CIFAR-10, ResNet-18, 200 epochs: kNN 83.6 in the paper; here 82.3, in 4 minutes on one H200. The recipe has batch norm
groups of 64 images and one drop of the learning rate, like its authors' runs on four GPUs. With batch norm over both
views and two drops: 82.6. `--loss gnt-xent` is Table 5 (kNN 83.3 → 85.5).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from aag.losses import isif
from aag.methods.base import BasicPreset, MultiViewSettings, Recipe
from aag.methods.simclr import SimCLR
from aag.settings import Temperature


@dataclass(frozen=True)
class ISIFSettings(MultiViewSettings):
    basic: BasicPreset = "isif"
    loss: Literal["own", "nt-xent", "gnt-xent", "dcl", "dclw"] = "own"
    """own: the loss of ISIF's authors."""
    temperature: Temperature = 0.1
    """τ: cosine similarities are divided by it."""


class ISIF(SimCLR):
    """SimCLR's two views in one batch, with another loss, temperature and colour jitter."""

    name = "isif"
    settings_type = ISIFSettings
    settings: ISIFSettings  # type: ignore[assignment]
    recipes = {
        "isif": Recipe(
            about="ISIF: each view is classified as its image's other view, among all views of the batch",
            expect="CIFAR-10, ResNet-18, 200 epochs: kNN 83.6 in the paper; 82.3 here, in 4 minutes on one H200",
            # As on its authors' four GPUs: 64 images of one view in each batch norm. Their code dropped the rate once.
            options={"schedule": "step", "decay_at": (0.6,), "bn_group_size": 64},
            demo={"bn_group_size": 0},
        )
    }
    loss_functions: ClassVar[dict[str, Callable[..., Tensor]]] = {"own": isif, **SimCLR.loss_functions}
