"""Super-AND: AND on two views, with an invariance loss on similarities to the memory bank and an entropy term.

Han, Xu, Park, Cha, Park: "Super-AND: A Holistic Approach to Unsupervised Embedding Learning" (2019).

    aag train --data cifar10 --method super-and

CIFAR-10, ResNet-18 with a branch for edges, 5 rounds of 200 epochs: kNN 89.2 in the paper; not run here yet. The loss
is a sum of three: AND's on both views; ISIF's, with the similarities to the bank as embeddings of N dimensions; and the
entropy of the softmax over all other images. A low entropy pulls near images nearer. Its weight grows within a round.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from aag.augment import Augmentation
from aag.losses import isif_from_similarities, unit_rows
from aag.methods.and_ import AND
from aag.methods.base import Embeddings, Extract, Method, MethodContext, Recipe, StepOutput
from aag.methods.instance import BankSettings

ENTROPY_STEP = 0.2  # increase of the entropy's weight after every two fifths of a round: epochs 80 and 160 of 200


def bank_similarity_cosines(v: Tensor, rows: Tensor) -> Tensor:
    """Return the cosines [2n, 2n] between rows of v Bᵀ, the views' similarities to the bank B.

    (v Bᵀ)(v Bᵀ)ᵀ = v (BᵀB) vᵀ needs a [d, d] matrix instead of [2n, N]. The second operand has no gradient.
    """
    metric = rows.T @ rows
    u = v / ((v @ metric) * v).sum(dim=1, keepdim=True).sqrt()
    return u @ metric @ u.detach().T


@dataclass(frozen=True)
class SuperANDSettings(BankSettings):
    flip: bool = True
    forward: Literal["joint", "per-view"] = "joint"
    """joint: all views in one forward pass, batch norm sees them together; per-view: one pass each."""


class SuperAND(AND):
    name = "super-and"
    settings_type = SuperANDSettings
    settings: SuperANDSettings
    recipes = {
        "super-and": Recipe(
            about="Super-AND: AND with the loss of ISIF, an entropy term and a branch that sees edges",
            expect="CIFAR-10, ResNet-18 twice, 1000 epochs: kNN 89.2 in the paper; not run here yet",
            options={
                "network": "resnet18+sobel",
                "schedule": "step",
                "nesterov": True,
                "rounds": 5,
                "epochs": 1000,
            },
            demo={"rounds": 3},
        )
    }
    log_names = ("positive_probability", "anchors", "entropy", "loss_and", "loss_invariance")
    entropy_weight: Tensor

    def augmentations(self) -> tuple[Augmentation, ...]:
        return Method.augmentations(self)

    def setup(self, context: MethodContext) -> None:
        super().setup(context)
        self.register_buffer("entropy_weight", torch.zeros(()))

    def before_epoch(self, epoch: int, extract: Extract) -> None:
        super().before_epoch(epoch, extract)
        self.entropy_weight.fill_(ENTROPY_STEP * (5 * (epoch % self.round_epochs) // (2 * self.round_epochs)))

    def loss(self, embeddings: Embeddings, index: Tensor) -> StepOutput:
        assert isinstance(embeddings, Tensor)
        v = unit_rows(embeddings.flatten(0, 1))  # [2n, d]
        positives, mask = (part.repeat(2, 1) for part in self.positives(index))
        log_p, entropy = self.bank.match(v, positives, mask, temperature=self.settings.temperature, entropy=True)
        and_loss, mean_entropy = -log_p.mean(), entropy.mean()
        invariance = isif_from_similarities(bank_similarity_cosines(v, self.bank.rows) / self.settings.temperature)
        total = and_loss + invariance + self.entropy_weight * mean_entropy

        anchors = self.anchor[index].to(log_p.dtype).mean()
        parts = (mean_entropy.detach(), and_loss.detach(), invariance.detach())
        # The bank keeps the second view. The authors' code writes both to one row, in an order that the GPU chooses.
        log = (log_p.detach().exp().mean(), anchors, *parts)
        return StepOutput(total, log, (index, v.detach()[len(index) :]))
