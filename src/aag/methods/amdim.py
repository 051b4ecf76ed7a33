"""AMDIM: predict, from a patch of one view, which patches of other views show the same image, at three scales.

Bachman, Hjelm, Buchwalter: "Learning Representations by Maximizing Mutual Information Across Views" (2019).

    aag train --data cifar10 --method amdim

CIFAR-10: linear 91.2 in the paper, probably with 128 million weights (`--recipe amdim-large`); not trained here. The
first recipe's network has 20 million, the default of the authors' code; not run here yet.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple

import torch
from torch import Tensor

from aag.augment import Augmentation, BasicAugment
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
from aag.settings import Range

FIRST_SLOT = 32  # first slot of the shift's random numbers; the basic augmentation uses the slots before it
FLIP = 2  # random stream of the flips; streams 0 and 1 draw the positions of the two views
CLIP = 20.0  # scores are soft-clipped to ± this
PENALTY_WEIGHT = 0.05  # of the mean square of the scores


class NCELoss(NamedTuple):
    """The loss of predicting the positions of one map from another, and its regularization."""

    nce: Tensor  # scalar
    penalty: Tensor  # scalar, the mean square of the scores before clipping


def nce_loss(source: Tensor, target: Tensor, *, clip: float = CLIP) -> NCELoss:
    """Return the NCE loss of finding an image's p positions in `target` [n, p, R] by its vector in `source` [n, R].

    A vector r and a position r' have the score s = c tanh(r·r' / (√R c)) with c = `clip`. With s_i,jm for image i's
    vector and position m of image j, NCE = −mean over i, l of log(e^s_i,il / (e^s_i,il + Σ_{j≠i,m} e^s_i,jm)).
    """
    n, p, size = target.shape
    if n < 2:
        raise AAGError("AMDIM needs at least two images in a batch: one alone has no negatives")
    raw = (source @ target.flatten(0, 1).T * size**-0.5).view(n, n, p)
    scores = clip * torch.tanh(raw / clip)
    own = torch.eye(n, dtype=torch.bool, device=scores.device)[:, :, None]
    negatives = scores.masked_fill(own, -torch.inf).flatten(1).logsumexp(dim=1)  # [n]
    positive = scores.diagonal(dim1=0, dim2=1)  # [p, n]
    return NCELoss((torch.logaddexp(negatives, positive) - positive).mean(), raw.square().mean())


@dataclass(frozen=True)
class RandomShift(Augmentation):
    """Shift images by up to `pixels` along each axis, reflected at the borders, then apply another augmentation."""

    augmentation: BasicAugment
    pixels: int
    probability: float = 0.8

    def plain_views(self, images: Tensor, rng_key: Tensor) -> Tensor:
        if self.pixels >= min(images.shape[2:]):
            size, most = f"{images.shape[3]}×{images.shape[2]}", min(images.shape[2:]) - 1
            raise AAGError(f"--shift {self.pixels} is too large for images of {size}; use at most {most}")
        u = uniforms(rng_key, FIRST_SLOT + 3)[:, FIRST_SLOT:].double()
        shift = torch.floor(u[:, :2] * (2 * self.pixels + 1)).long() - self.pixels  # [B, 2]
        shift *= (u[:, 2:] < self.probability).long()
        for dim in (2, 3):
            side = images.shape[dim]
            source = (torch.arange(side, device=images.device) + shift[:, dim - 2, None]).abs()
            source = side - 1 - (side - 1 - source).abs()  # [B, side]
            index = source[:, None, :, None] if dim == 2 else source[:, None, None, :]
            images = images.gather(dim, index.expand_as(images))
        return self.augmentation.views(images, rng_key)


@dataclass(frozen=True)
class AMDIMSettings(MultiViewSettings):
    basic: BasicPreset = "amdim"
    forward: Literal["joint", "per-view"] = "per-view"
    shift: Annotated[int, Range(at_least=0)] = 4
    """Shift views by up to this many pixels, reflected at the borders, instead of cropping them. 0: crop."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shift and self.min_crop is not None:
            raise AAGError(f"--min-crop has no effect with --shift {self.shift}; use --shift 0 to crop")


CIFAR_OPTIONS: dict[str, Any] = {  # as in the authors' code
    "network": "amdim",
    "head": "none",
    "epochs": 300,
    "optimizer": "adam",
    "momentum": 0.8,
    "weight_decay": 1e-5,
    "schedule": "step",
    "decay_at": (251 / 300, 281 / 300),  # the authors count epochs from 0 and drop the rate after epochs 250 and 280
    "decay_by": 0.2,
}
SCALED_LR = 2e-4 * 128  # --lr is per 128 images: this is the authors' 2e-4


class AMDIM(Method):
    name = "amdim"
    settings_type = AMDIMSettings
    settings: AMDIMSettings
    recipes = {
        "amdim": Recipe(
            about="AMDIM: mutual information between feature maps of two views at several scales, own encoder",
            expect="CIFAR-10: linear 91.2 in the paper, for a far larger network; not run here yet",
            options=CIFAR_OPTIONS | {"batch_size": 200, "lr": SCALED_LR / 200, "warmup_epochs": 2},  # 500 steps
            demo={"lr": 4e-3},  # Adam's; the demo's own is for SGD
        ),
        "amdim-large": Recipe(
            about="AMDIM-large: the authors' larger network for CIFAR, 128 million weights",
            expect="CIFAR-10: linear 91.2 in the paper; not trained here",
            options=CIFAR_OPTIONS
            | {"width": 128, "depth": 10, "batch_size": 480, "lr": SCALED_LR / 480, "warmup_epochs": 5},  # 520 steps
        ),
    }
    log_names = ("loss_1_to_5", "loss_1_to_7", "loss_5_to_5", "penalty")
    step: Tensor  # int64 [], batches so far

    def augmentations(self) -> tuple[Augmentation, ...]:
        basic = replace(self.settings.basic_augmentation(), flip=0.0)  # `prepare_views` flips both views of an image
        if not self.settings.shift:
            return basic, basic
        shifted = RandomShift(replace(basic, scale=(1.0, 1.0), ratio=(1.0, 1.0)), self.settings.shift)
        return shifted, shifted

    def setup(self, context: MethodContext) -> None:
        if not isinstance(context.encoder.backbone, AMDIMNet):
            network = context.encoder.spec.network
            raise AAGError(f"--method amdim compares maps that {network} does not have; use --network amdim")
        check_no_head(self, context.encoder)
        self.images, self.seed = context.images, context.train.seed
        self.register_buffer("step", torch.zeros((), dtype=torch.int64))

    def prepare_views(self, views: Tensor, index: Tensor) -> Tensor:
        """Flip both views of some images."""
        if not self.settings.flip:
            return views
        flip = self.draws(index, FLIP) < 0.5
        return torch.where(flip[:, None, None, None], views.flip(-1), views)

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
            [nce_loss(source[view], target[1 - view]) for view in (0, 1)] for source, target in pairs
        ]
        nce = torch.stack([(a.nce + b.nce) / 2 for a, b in terms])  # [3]
        penalty = PENALTY_WEIGHT * torch.stack([(a.penalty + b.penalty) / 2 for a, b in terms]).sum()
        return StepOutput(nce.sum() + penalty, (*nce.detach().unbind(), penalty.detach()))

    def positions(self, index: Tensor) -> Tensor:
        """Draw which of the 25 positions each view of each image predicts from in this step, int64 [2, n]."""
        return (torch.stack([self.draws(index, view) for view in (0, 1)]) * 25).long()

    def draws(self, index: Tensor, stream: int) -> Tensor:
        """Draw a number in [0, 1) for each of these images in this step, float32 [n]."""
        # The RNG uses 32 bits of the sum: enough to distinguish step and image in a run of any length.
        return uniforms(keys(self.seed, NO_EPOCH, self.step * self.images + index, stream), 1)[:, 0]

    def after_step(self, encoder: Encoder, *carry: Tensor) -> None:
        self.step += 1


def _maps(encoder: Encoder, images: Tensor) -> list[Tensor]:
    """Return the maps r1, r5, r7, each [B, positions, R]. Channels are last already, so nothing is copied."""
    net = encoder.backbone
    assert isinstance(net, AMDIMNet)
    return [r.permute(0, 2, 3, 1).flatten(1, 2) for r in net.maps(encoder.normalise(images))]
