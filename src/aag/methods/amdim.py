"""AMDIM: predict, from a patch of one view, which patches of other views show the same image, at three scales.

Bachman, Hjelm, Buchwalter: "Learning Representations by Maximizing Mutual Information Across Views" (2019).

    aag train --data cifar10 --method amdim

CIFAR-10: linear 91.2 in the paper of AAG, for a network far larger than this one; not run here yet, ten minutes on
one H200 by the speed of its steps.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from aag.errors import AAGError
from aag.methods.base import (
    BasicPreset,
    Embeddings,
    Method,
    MethodContext,
    MultiViewSettings,
    Recipe,
    StepOutput,
    check_no_head,
)
from aag.nets import Encoder
from aag.nets.amdim import AMDIMNet
from aag.rng import NO_EPOCH, keys, uniforms


class Prediction(NamedTuple):
    """The loss of predicting one map from another."""

    nce: Tensor  # scalar
    penalty: Tensor  # scalar, the mean square of the scores before clipping


def predict(source: Tensor, target: Tensor, *, clip: float = 20.0) -> Prediction:
    """Tell the p positions of an image in `target` [n, p, R] from those of others, by one vector per image [n, R].

    s = c tanh(r·r' / (√R c)) and NCE = −mean over i, l of log(e^s_i,il / (e^s_i,il + Σ_{j≠i,m} e^s_i,jm)).
    """
    n, p, size = target.shape
    if n < 2:
        raise AAGError("AMDIM needs at least two images in a batch: one alone has no negatives")
    raw = (source @ target.flatten(0, 1).T * size**-0.5).view(n, n, p)
    scores = clip * torch.tanh(raw / clip)
    own = torch.eye(n, dtype=torch.bool, device=scores.device)[:, :, None]
    negatives = scores.masked_fill(own, -torch.inf).flatten(1).logsumexp(dim=1)  # [n]
    positive = scores.diagonal(dim1=0, dim2=1)  # [p, n]
    return Prediction((torch.logaddexp(negatives, positive) - positive).mean(), raw.square().mean())


CLIP = 20.0  # scores are soft-clipped to ± this
PENALTY = 0.05  # weight of the scores' mean square


@dataclass(frozen=True)
class AMDIMSettings(MultiViewSettings):
    basic: BasicPreset = "amdim"


class AMDIM(Method):
    name = "amdim"
    settings_type = AMDIMSettings
    settings: AMDIMSettings
    recipes = {
        "amdim": Recipe(
            about="AMDIM: mutual information between feature maps of two views at several scales, own encoder",
            expect="CIFAR-10: linear 91.2 in the paper, for a far larger network; not run here yet",
            options={
                "network": "amdim",
                "head": "none",
                "epochs": 300,
                "batch_size": 200,
                "optimizer": "adam",
                "lr": 2e-4 * 128 / 200,
                "momentum": 0.8,
                "weight_decay": 1e-5,
                "schedule": "step",
                "decay_at": (250 / 300, 280 / 300),
                "decay_by": 0.2,
                "warmup_epochs": 2,
            },
            demo={"lr": 4e-3},  # Adam's; the demo's own is for SGD
        )
    }
    log_names = ("loss_1_to_5", "loss_1_to_7", "loss_5_to_5", "penalty")
    step: Tensor  # int64 [], batches so far

    def setup(self, context: MethodContext) -> None:
        if not isinstance(context.encoder.backbone, AMDIMNet):
            network = context.encoder.spec.network
            raise AAGError(f"--method amdim compares maps that only --network amdim has, not {network}")
        check_no_head(self, context.encoder)
        self.images, self.seed = context.images, context.train.seed
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    def embed(self, encoder: Encoder, views: Tensor) -> Embeddings:
        """Return the maps r1, r5, r7 of both views, each [2, n, positions, R]."""
        if self.settings.forward == "joint":
            return tuple(r.unflatten(0, views.shape[:2]) for r in _maps(encoder, views.flatten(0, 1)))
        return tuple(torch.stack(maps) for maps in zip(*(_maps(encoder, view) for view in views), strict=True))

    def loss(self, embeddings: Embeddings, index: Tensor) -> StepOutput:
        r1, r5, r7 = (r if r.dtype == torch.float64 else r.float() for r in embeddings)
        position = self.positions(index)[:, :, None, None].expand(-1, -1, 1, r5.shape[-1])
        global_, local = r1.squeeze(2), r5.gather(2, position).squeeze(2)  # [2, n, R]
        pairs = ((global_, r5), (global_, r7), (local, r5))
        terms = [  # each view predicts the other
            [predict(source[view], target[1 - view], clip=CLIP) for view in (0, 1)] for source, target in pairs
        ]
        nce = torch.stack([(a.nce + b.nce) / 2 for a, b in terms])  # [3]
        penalty = PENALTY * torch.stack([(a.penalty + b.penalty) / 2 for a, b in terms]).sum()
        return StepOutput(nce.sum() + penalty, (*nce.detach().unbind(), penalty.detach()))

    def positions(self, index: Tensor) -> Tensor:
        """Draw the one of 25 positions that each view of each image predicts from in this step, int64 [2, n]."""
        # The RNG uses 32 bits of the sum: enough to tell step and image apart for the length of any run.
        draws = [uniforms(keys(self.seed, NO_EPOCH, self.step * self.images + index, view), 1)[:, 0] for view in (0, 1)]
        return (torch.stack(draws) * 25).long()

    def after_step(self, encoder: Encoder, *carry: Tensor) -> None:
        self.step += 1


def _maps(encoder: Encoder, images: Tensor) -> list[Tensor]:
    """[B, positions, R] at each scale: channels last, as convolutions leave them, so nothing is moved."""
    net = encoder.backbone
    assert isinstance(net, AMDIMNet)
    return [r.permute(0, 2, 3, 1).flatten(1, 2) for r in net.maps(encoder.normalise(images))]
