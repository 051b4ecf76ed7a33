"""What the training loop asks of a method: views, a loss, and the memory it keeps."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from aag.augment import Augmentation, BasicAugment
from aag.config import TrainConfig
from aag.errors import AAGError
from aag.nets import Encoder

Embeddings = Sequence[Tensor] | Tensor  # of each view [n, d]; one tensor [V, n, d] where they came from one pass
Extract = Callable[[], tuple[Tensor, Tensor]]


class Setting(NamedTuple):
    """What a method is built for."""

    config: TrainConfig
    images: int  # how many are trained on
    encoder: Encoder  # which is to be trained


class Outcome(NamedTuple):
    """What comes of a batch."""

    loss: Tensor  # scalar, to be minimised
    log: Sequence[Tensor] = ()  # scalars under the names of `Method.logs`
    kept: tuple[Tensor, ...] = ()  # what `after_step` is to get


class Method(nn.Module):
    """A method is its views, its loss, and what it remembers.

    Buffers and parameters of its own are what it remembers: they live on the device, go into checkpoints, and are
    changed in place alone, because a step may be replayed as a CUDA graph. For the same reason nothing inside a step
    may depend on a tensor's value, and random numbers are counted (`aag.augment.keys`). Parameters that need a gradient
    are trained along with the encoder's.
    """

    logs: tuple[str, ...] = ()  # names of the scalars that go into metrics.jsonl besides the loss

    def __init__(self, views: Sequence[Augmentation], *, joint: bool = True) -> None:
        super().__init__()
        self.views = tuple(views)  # one family for each view of an image
        self.joint = joint

    @classmethod
    def families(cls, config: TrainConfig) -> tuple[Augmentation, ...]:
        """The views this method takes; unless it says otherwise, two basic ones."""
        return (basic(config), basic(config))

    @classmethod
    def from_setting(cls, setting: Setting) -> Self:
        raise NotImplementedError

    def forward(self, encoder: Encoder, images: Tensor, index: Tensor) -> Outcome:
        """The loss of views uint8 [V, n, 3, H, W] of the images with these numbers, int64 [n].

        Under autocast, which ends before `loss`; the embeddings come in the network's precision.
        """
        embeddings = self.embed(encoder, images)
        with full_precision(images):
            return self.loss(embeddings, index)

    def embed(self, encoder: Encoder, images: Tensor) -> Embeddings:
        """Joint: batch norm sees all views together. Else one pass each."""
        if self.joint:
            return encoder(images.flatten(0, 1))[1].unflatten(0, images.shape[:2])
        return [encoder(view)[1] for view in images]

    def loss(self, embeddings: Embeddings, index: Tensor) -> Outcome:
        raise NotImplementedError

    def before_epoch(self, epoch: int, extract: Extract) -> None:
        """Before the first step of epoch 0, 1, …, outside of any graph.

        `extract()` gives features [N, F] and unit embeddings [N, d] of all training images, un-augmented.
        """

    def order(self, epoch: int) -> Tensor | None:
        """The numbers of the images that make up the epoch, int64 [N]. None: all of them, shuffled."""
        return None

    @property
    def fresh(self) -> tuple[Tensor, ...]:
        """Parameters that `before_epoch` has set anew: what the optimiser remembers of them is forgotten."""
        return ()

    def after_step(self, encoder: Encoder, *kept: Tensor) -> None:
        """After the optimiser's step, without gradients and inside the graph; `kept` is what the loss handed on."""


def basic(config: TrainConfig) -> BasicAugment:
    """The basic family of a configuration."""
    return BasicAugment.preset(config.basic, flip=0.5 if config.flip else 0.0)


def needs_no_head(setting: Setting) -> None:
    """For a method whose loss is of features: a head would stay as it was drawn, and be evaluated."""
    if not isinstance(setting.encoder.head, nn.Identity):
        raise AAGError(f"--method {setting.config.method} trains no head; use --head none")


def full_precision(tensor: Tensor) -> torch.autocast:
    """No autocast: products are computed in what their operands are."""
    return torch.autocast(tensor.device.type, enabled=False)
