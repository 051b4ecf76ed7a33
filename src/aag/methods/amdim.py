"""AMDIM: from a patch of one view, tell which patches of other views show the same image, across three scales.

Bachman, Hjelm, Buchwalter: "Learning Representations by Maximizing Mutual Information Across Views" (2019).

    aag train --data cifar10 --method amdim

CIFAR-10: linear 91.2 in the paper of AAG, for a network far larger than this one; not run here yet, ten minutes on
one H200 by the speed of its steps.
"""

from collections.abc import Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor

from aag.augment import Augmentation
from aag.errors import AAGError
from aag.methods.base import Embeddings, Method, Outcome, Setting, needs_no_head
from aag.nets import Encoder
from aag.nets.amdim import AMDIMNet
from aag.rng import NO_EPOCH, keys, uniforms


class Prediction(NamedTuple):
    """One map predicts another."""

    nce: Tensor  # scalar
    penalty: Tensor  # scalar, the mean square of the scores before clipping


def predict(source: Tensor, target: Tensor, *, clip: float = 20.0) -> Prediction:
    """From one vector of each image, [n, R], tell its p positions in `target` [n, p, R] from all of other images.

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


class AMDIM(Method):
    step: Tensor
    logs = ("loss_1_to_5", "loss_1_to_7", "loss_5_to_5", "penalty")

    def __init__(
        self,
        views: Sequence[Augmentation],
        images: int,
        *,
        clip: float = 20.0,
        penalty: float = 0.05,
        seed: int = 0,
        joint: bool = True,
    ) -> None:
        super().__init__(views, joint=joint)
        self.images, self.clip, self.penalty, self.seed = images, clip, penalty, seed
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    @classmethod
    def from_setting(cls, setting: Setting) -> Self:
        config = setting.config
        if not isinstance(setting.encoder.backbone, AMDIMNet):
            raise AAGError(f"--method amdim compares maps that only --network amdim has, not {config.network}")
        needs_no_head(setting)
        views = cls.families(config)
        return cls(views, setting.images, seed=config.seed, joint=config.forward == "joint")

    def embed(self, encoder: Encoder, images: Tensor) -> Embeddings:
        """Maps r1, r5, r7 of both views, [2, n, positions, R] each."""
        if self.joint:
            return [r.unflatten(0, images.shape[:2]) for r in _maps(encoder, images.flatten(0, 1))]
        return [torch.stack(views) for views in zip(*(_maps(encoder, view) for view in images), strict=True)]

    def loss(self, embeddings: Embeddings, index: Tensor) -> Outcome:
        r1, r5, r7 = (r if r.dtype == torch.float64 else r.float() for r in embeddings)
        place = self.places(index)[:, :, None, None].expand(-1, -1, 1, r5.shape[-1])
        global_, local = r1.squeeze(2), r5.gather(2, place).squeeze(2)  # [2, n, R]
        pairs = ((global_, r5), (global_, r7), (local, r5))
        terms = [  # each view predicts the other
            [predict(source[view], target[1 - view], clip=self.clip) for view in (0, 1)] for source, target in pairs
        ]
        nce = torch.stack([(a.nce + b.nce) / 2 for a, b in terms])  # [3]
        penalty = self.penalty * torch.stack([(a.penalty + b.penalty) / 2 for a, b in terms]).sum()
        return Outcome(nce.sum() + penalty, (*nce.detach().unbind(), penalty.detach()))

    def places(self, index: Tensor) -> Tensor:
        """Which of the 25 positions each view of each image predicts from in this step, int64 [2, n]."""
        # 32 bits of the sum count: the step and the image are told apart for as long as any run lasts.
        draws = [uniforms(keys(self.seed, NO_EPOCH, self.step * self.images + index, view), 1)[:, 0] for view in (0, 1)]
        return (torch.stack(draws) * 25).long()

    def after_step(self, encoder: Encoder, *kept: Tensor) -> None:
        self.step += 1


def _maps(encoder: Encoder, images: Tensor) -> list[Tensor]:
    """[B, positions, R] at each scale: channels last, as convolutions leave them, so nothing is moved."""
    net = encoder.backbone
    assert isinstance(net, AMDIMNet)
    return [r.permute(0, 2, 3, 1).flatten(1, 2) for r in net.maps(encoder.normalise(images))]
