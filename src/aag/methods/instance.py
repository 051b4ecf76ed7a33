"""Instance discrimination: each image is a class of its own, with its remembered embedding as the class's weights.

Wu, Xiong, Yu, Lin: "Unsupervised Feature Learning via Non-Parametric Instance Discrimination" (2018).

    aag train --data cifar10 --method instance

CIFAR-10, ResNet-18: kNN 80.8 in the paper, 81.3 here in 3 minutes on one H200. `--negatives 4096` takes noise-
contrastive estimation in place of the softmax over all images, which is for sets of a million.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from aag.augment import Augmentation
from aag.config import TrainConfig
from aag.losses import unit
from aag.methods.bank import Bank
from aag.methods.base import Embeddings, Method, Outcome, Setting, basic
from aag.nets import Encoder
from aag.rng import Stream, keys, uniforms


class NCE(NamedTuple):
    """The two parts of the NCE loss, image by image."""

    positive: Tensor  # [n]  −log P(data | the image's own row)
    noise: Tensor  # [n]  −Σ_k log P(noise | the row of sample k)


def nce(s: Tensor, log_z: Tensor, images: int) -> NCE:
    """Own row against K noise rows: s [n, 1 + K] are cosines over τ, the own one first, among so many images.

    With p = exp(s) / Z, a row comes from the data with probability p / (p + K/N), else it is noise: the odds are
    exp(s) / (Z · K/N), so their logarithm under the logistic function says the same without overflow.
    """
    log_odds = s - log_z - math.log((s.shape[1] - 1) / images)
    return NCE(-logsigmoid(log_odds[:, 0]), -logsigmoid(-log_odds[:, 1:]).sum(dim=1))


def log_normaliser(s: Tensor, images: int) -> Tensor:
    """log Z where Z = N · mean of exp(s) over a batch's samples."""
    return s.flatten().logsumexp(dim=0) + math.log(images / s.numel())


class Instance(Method):
    logs: tuple[str, ...] = ("positive_probability",)
    log_z: Tensor  # of the NCE loss: log Z, fixed by the first batch
    step: Tensor  # of the NCE loss: how many batches there were

    def __init__(
        self,
        views: Sequence[Augmentation],
        images: int,
        dim: int,
        temperature: float = 0.1,
        momentum: float = 0.5,
        *,
        negatives: int = 0,
        seed: int = 0,
        joint: bool = True,
    ) -> None:
        """For so many training images and embeddings of so many dimensions. `negatives`: noise samples of NCE."""
        super().__init__(views, joint=joint)
        self.temperature, self.negatives, self.seed = temperature, negatives, seed
        self.bank = Bank(images, dim, momentum, seed)
        if negatives:
            self.register_buffer("log_z", torch.zeros(()))
            self.register_buffer("step", torch.zeros((), dtype=torch.long))

    @classmethod
    def families(cls, config: TrainConfig) -> tuple[Augmentation, ...]:
        return (basic(config),)

    @classmethod
    def from_setting(cls, setting: Setting) -> Self:
        return cls(**cls.shared(setting), negatives=setting.config.negatives)

    @classmethod
    def shared(cls, setting: Setting) -> dict[str, Any]:
        """What all methods with a bank are built from."""
        config = setting.config
        return {
            "views": cls.families(config), "images": setting.images,
            "dim": setting.encoder.embedding_dim, "temperature": config.temperature, "momentum": config.bank_momentum,
            "seed": config.seed, "joint": config.forward == "joint",
        }  # fmt: skip

    def loss(self, embeddings: Embeddings, index: Tensor) -> Outcome:
        (x,) = embeddings
        v = unit(x)
        if self.negatives:
            return self._nce(v, index)
        log_p = self.bank.match(v, index[:, None], temperature=self.temperature).log_share
        return Outcome(-log_p.mean(), [log_p.detach().exp().mean()], (index, v.detach()))

    def _nce(self, v: Tensor, index: Tensor) -> Outcome:
        """The probability that it is told from noise is logged."""
        picked = torch.cat([index[:, None], self.noise(index)], dim=1)  # [n, 1 + K]
        s = torch.bmm(self.bank.rows[picked], v[:, :, None]).squeeze(2) / self.temperature
        log_z = torch.where(self.step == 0, log_normaliser(s.detach(), len(self.bank.rows)), self.log_z)
        losses = nce(s, log_z, len(self.bank.rows))
        told = -losses.positive.detach()
        return Outcome((losses.positive + losses.noise).mean(), [told.exp().mean()], (index, v.detach(), log_z))

    def noise(self, index: Tensor) -> Tensor:
        """The numbers of K images for each of these, drawn uniformly and for this step: int64 [n, K]."""
        key = keys(self.seed, 0, index, Stream.NCE_NOISE) ^ keys(self.seed, 1, self.step[None], Stream.NCE_NOISE)
        # In float64: in float32, a draw just below 1 could be rounded up to N.
        return (uniforms(key, self.negatives).double() * len(self.bank.rows)).long()

    def after_step(self, encoder: Encoder, *kept: Tensor) -> None:
        index, v, *log_z = kept
        self.bank.update(index, v)
        if self.negatives:
            self.log_z.copy_(log_z[0])
            self.step += 1
