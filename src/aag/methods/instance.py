"""Instance discrimination: each image is its own class, and its row in the memory bank is the class's weight.

Wu, Xiong, Yu, Lin: "Unsupervised Feature Learning via Non-Parametric Instance Discrimination" (2018).

    aag train --data cifar10 --method instance

CIFAR-10, ResNet-18: kNN 80.8 in the paper, 81.3 here in 3 minutes on one H200. `--negatives 4096` uses noise-
contrastive estimation instead of the softmax over all images, for sets of a million.
"""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from aag.augment import Augmentation
from aag.losses import unit_rows
from aag.methods.bank import Bank
from aag.methods.base import BasicPreset, Embeddings, Method, MethodContext, MethodSettings, Recipe, StepOutput
from aag.nets import Encoder
from aag.rng import Stream, keys, uniforms
from aag.settings import Momentum, Range, Temperature


class NCE(NamedTuple):
    """The two terms of the NCE loss, per image."""

    positive: Tensor  # [n]  −log P(data | the image's own row)
    noise: Tensor  # [n]  −Σ_k log P(noise | the row of sample k)


def nce(s: Tensor, log_z: Tensor, images: int) -> NCE:
    """Return the NCE loss of each image's own row against K noise rows, of N = `images` rows in all.

    s [n, 1 + K] are cosines over τ, the own row first. With p = exp(s) / Z, a row comes from the data with probability
    p / (p + K/N). This is the logistic function of the log-odds log(exp(s) / (Z · K/N)), which do not overflow.
    """
    log_odds = s - log_z - math.log((s.shape[1] - 1) / images)
    return NCE(-logsigmoid(log_odds[:, 0]), -logsigmoid(-log_odds[:, 1:]).sum(dim=1))


def log_normaliser(s: Tensor, images: int) -> Tensor:
    """Return log Z, where Z = N · mean of exp(s) over a batch's samples and N = `images`."""
    return s.flatten().logsumexp(dim=0) + math.log(images / s.numel())


@dataclass(frozen=True)
class BankSettings(MethodSettings):
    """Settings of methods with a memory bank."""

    basic: BasicPreset = "isif"
    flip: bool = False
    temperature: Temperature = 0.1
    """τ: cosine similarities are divided by it."""
    bank_momentum: Momentum = 0.5
    """Fraction of the old embedding that the memory bank keeps."""


@dataclass(frozen=True)
class InstanceSettings(BankSettings):
    negatives: Annotated[int, Range(at_least=0)] = 0
    """Noise samples of the NCE loss. 0: the softmax over all images."""


class Instance(Method):
    name = "instance"
    settings_type: ClassVar[type[BankSettings]] = InstanceSettings
    settings: InstanceSettings
    recipes = {
        "instance": Recipe(
            about="Instance discrimination: one view against a memory bank of all images, full softmax",
            expect="CIFAR-10, ResNet-18: kNN 80.8 in the paper; 81.3 here, in 3 minutes on one H200",
            options={"schedule": "step"},
            # With one view per image, epochs are cheap, and a bank needs many. At this lr, τ 0.1 ends 2 points lower.
            demo={"epochs": 24, "lr": 0.06, "temperature": 0.2},
        )
    }
    log_names: tuple[str, ...] = ("positive_probability",)
    log_z: Tensor  # log Z of the NCE loss, fixed by the first batch
    step: Tensor  # batches so far, for the NCE loss's noise

    def augmentations(self) -> tuple[Augmentation, ...]:
        return (self.settings.basic_augmentation(),)

    def setup(self, context: MethodContext) -> None:
        self.seed = context.train.seed
        self.bank = Bank(context.images, context.encoder.embedding_dim, self.settings.bank_momentum, self.seed)
        self.negatives = getattr(self.settings, "negatives", 0)  # AND has no such setting
        if self.negatives:
            self.register_buffer("log_z", torch.zeros(()))
            self.register_buffer("step", torch.zeros((), dtype=torch.long))

    def loss(self, embeddings: Embeddings, index: Tensor) -> StepOutput:
        (x,) = embeddings
        v = unit_rows(x)
        if self.negatives:
            return self._nce(v, index)
        log_p = self.bank.match(v, index[:, None], temperature=self.settings.temperature).log_probability
        return StepOutput(-log_p.mean(), (log_p.detach().exp().mean(),), (index, v.detach()))

    def _nce(self, v: Tensor, index: Tensor) -> StepOutput:
        """Return the NCE loss, and log the mean probability that an image's own row is recognized as data."""
        rows = torch.cat([index[:, None], self.noise(index)], dim=1)  # [n, 1 + K]
        s = torch.bmm(self.bank.rows[rows], v[:, :, None]).squeeze(2) / self.settings.temperature
        log_z = torch.where(self.step == 0, log_normaliser(s.detach(), len(self.bank.rows)), self.log_z)
        losses = nce(s, log_z, len(self.bank.rows))
        probability = (-losses.positive.detach()).exp().mean()
        return StepOutput((losses.positive + losses.noise).mean(), (probability,), (index, v.detach(), log_z))

    def noise(self, index: Tensor) -> Tensor:
        """Draw K image indices uniformly for each of these images in this step, int64 [n, K]."""
        key = keys(self.seed, 0, index, Stream.NCE_NOISE) ^ keys(self.seed, 1, self.step[None], Stream.NCE_NOISE)
        # In float64: in float32, a draw just below 1 could be rounded up to N.
        return (uniforms(key, self.negatives).double() * len(self.bank.rows)).long()

    def after_step(self, encoder: Encoder, *carry: Tensor) -> None:
        index, v, *log_z = carry
        self.bank.update(index, v)
        if self.negatives:
            self.log_z.copy_(log_z[0])
            self.step += 1
