"""Super-AND: AND on two views, which are to be told from other images' by how they resemble the whole bank.

Han, Xu, Park, Cha, Park: "Super-AND: A Holistic Approach to Unsupervised Embedding Learning" (2019).

    aag train --data cifar10 --method super-and

CIFAR-10, ResNet-18 with a branch for edges, 5 rounds of 200 epochs: kNN 89.2 in the paper; not run here yet, an
hour on one H200 by the speed of its steps. Three losses are added:
AND's on both views; ISIF's on the similarities with the bank as embeddings of N dimensions; and the entropy over the
bank, which draws near images nearer, with a weight that grows within a round.
"""

from typing import Any

import torch
from torch import Tensor

from aag.augment import Augmentation
from aag.config import TrainConfig
from aag.losses import isif_from_similarities, unit
from aag.methods.base import Embeddings, Extract, Outcome, basic
from aag.methods.neighbours import AND

GROWTH = 0.2  # of the entropy's weight, each time that two fifths of a round are over: epochs 80 and 160 of 200


def profile_cosines(v: Tensor, rows: Tensor) -> Tensor:
    """Cosines between views by their similarities with the bank, v Bᵀ [2n, N]; the second operand is constant.

    (v Bᵀ)(v Bᵀ)ᵀ = v (BᵀB) vᵀ: [d, d] in place of [2n, N].
    """
    metric = rows.T @ rows
    u = v / ((v @ metric) * v).sum(dim=1, keepdim=True).sqrt()
    return u @ metric @ u.detach().T


class SuperAND(AND):
    logs = ("positive_probability", "anchors", "entropy", "loss_and", "loss_invariance")
    entropy_weight: Tensor

    def __init__(self, *settings: Any, **named: Any) -> None:
        """As AND."""
        super().__init__(*settings, **named)
        self.register_buffer("entropy_weight", torch.zeros(()))

    @classmethod
    def families(cls, config: TrainConfig) -> tuple[Augmentation, ...]:
        return (basic(config), basic(config))

    def before_epoch(self, epoch: int, extract: Extract) -> None:
        super().before_epoch(epoch, extract)
        self.entropy_weight.fill_(GROWTH * (5 * (epoch % self.round_epochs) // (2 * self.round_epochs)))

    def loss(self, embeddings: Embeddings, index: Tensor) -> Outcome:
        v = unit(torch.cat(list(embeddings)))  # [2n, d]
        positives, taken = (both.repeat(2, 1) for both in self.positives(index))
        log_p, entropy = self.bank.match(v, positives, taken, temperature=self.temperature, entropy=True)
        neighbours, spread = -log_p.mean(), entropy.mean()
        invariant = isif_from_similarities(profile_cosines(v, self.bank.rows) / self.temperature)
        total = neighbours + invariant + self.entropy_weight * spread

        anchors = self.anchor[index].to(log_p.dtype).mean()
        log = [log_p.detach().exp().mean(), anchors, *(part.detach() for part in (spread, neighbours, invariant))]
        # One view is remembered. The authors write both to the same row, so that the one written last stays.
        return Outcome(total, log, (index, v.detach()[len(index) :]))
