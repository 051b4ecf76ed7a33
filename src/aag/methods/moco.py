"""MoCo: a view is to find the other, embedded by a slower copy of the encoder, among a queue of earlier such keys.

He, Fan, Wu, Xie, Girshick: "Momentum Contrast for Unsupervised Visual Representation Learning" (2020).

    aag train --data cifar10 --method moco

CIFAR-10, ResNet-18, 200 epochs: kNN 82.6 in its authors' CIFAR demo, 85.3 with `--symmetric`; here 82.6 in 2 minutes on
one H200, 85.5 in 4.
"""

from collections.abc import Sequence
from copy import deepcopy
from math import pi
from typing import Self

import torch
from torch import Tensor

from aag import rng
from aag.augment import Augmentation
from aag.errors import AAGError
from aag.losses import keeps_positive, queue_xent, unit
from aag.methods.base import Embeddings, Method, Outcome, Setting
from aag.nets import Encoder


class MoCo(Method):
    logs = ("positive_similarity", "negative_similarity")  # cosines of queries with their keys and with the queue
    queue: Tensor  # [K, d] unit keys
    steps: Tensor  # int64 [], done so far: where the queue goes on, and how keys are shuffled

    def __init__(
        self,
        views: Sequence[Augmentation],
        encoder: Encoder,
        temperature: float = 0.1,
        keep_positive: bool = True,
        *,
        queue: int = 4096,
        key_momentum: float = 0.99,
        symmetric: bool = False,
        shuffle: bool = False,
        seed: int = 0,
    ) -> None:
        """`symmetric`: each view is a query once and a key once. `shuffle`: keys change their batch norm groups.

        An image's query and key would otherwise be normalised among the same images, which gives them away.
        """
        super().__init__(views)
        self.temperature, self.keep_positive, self.key_momentum = temperature, keep_positive, key_momentum
        self.queries = 2 if symmetric else 1  # views that are
        self.shuffle, self.seed = shuffle, seed
        self.key = deepcopy(encoder).requires_grad_(False).train()
        device = encoder.mean.device
        self.register_buffer("queue", random_units(seed, queue, encoder.embedding_dim).to(device))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64, device=device))

    @classmethod
    def from_setting(cls, setting: Setting) -> Self:
        config = setting.config
        entering = config.batch_size * (2 if config.symmetric else 1)
        if config.queue % entering:
            raise AAGError(
                f"--queue {config.queue} is no multiple of the {entering} keys of a step; "
                f"use --queue {max(1, round(config.queue / entering)) * entering} or another --batch-size"
            )
        return cls(
            cls.families(config),
            setting.encoder,
            config.temperature,
            keeps_positive(config.loss),
            queue=config.queue,
            key_momentum=config.key_momentum,
            symmetric=config.symmetric,
            shuffle=config.norm_images > 0,
            seed=config.seed,
        )

    def embed(self, encoder: Encoder, images: Tensor) -> Embeddings:
        """Queries and, row by row, their keys: of the image's other view."""
        queries, others = images[: self.queries], images.flip(0)[: self.queries]
        return [encoder(queries.flatten(0, 1))[1], self._keys(others)]

    def loss(self, embeddings: Embeddings, index: Tensor) -> Outcome:
        query, key = embeddings
        key = unit(key)
        # Where each view is a query, the sum of both directions, as its authors have it: all rows' mean, twice.
        loss = self.queries * queue_xent(
            query, key, self.queue, temperature=self.temperature, keep_positive=self.keep_positive
        )
        query = unit(query.detach())
        positive, negative = (query * key).sum(dim=1).mean(), query.mean(dim=0) @ self.queue.mean(dim=0)
        return Outcome(loss, (positive, negative), (key,))

    def after_step(self, encoder: Encoder, *kept: Tensor) -> None:
        """The key encoder follows in its weights; its batch norms keep the statistics of what they saw themselves."""
        torch._foreach_lerp_(list(self.key.parameters()), list(encoder.parameters()), 1 - self.key_momentum)
        (key,) = kept
        count = torch.arange(len(key), device=key.device)
        self.queue.index_copy_(0, (self.steps * len(key) + count) % len(self.queue), key)
        self.steps.add_(1)

    @torch.no_grad()
    def _keys(self, images: Tensor) -> Tensor:
        """[V, n, 3, H, W] → [V · n, d]."""
        views, n = images.shape[:2]
        images = images.flatten(0, 1)
        if not self.shuffle:
            return self.key(images)[1]
        order = shuffled(self.seed, self.steps, views, n)
        key = self.key(images[order])[1]
        return torch.empty_like(key).index_copy_(0, order, key)  # back in their places


def shuffled(seed: int, step: Tensor, views: int, n: int) -> Tensor:
    """0 … views · n − 1, those of each view shuffled among themselves: another order for each step int64 []."""
    count = torch.arange(views * n, device=step.device)
    draws = rng.keys(seed, 0, step * (views * n) + count, rng.Stream.KEY_SHUFFLE).unflatten(0, (views, n))
    return (draws.argsort(dim=1, stable=True) + count[::n, None]).flatten()


def random_units(seed: int, count: int, width: int) -> Tensor:
    """[count, width]: normal numbers, by the method of Box and Muller, as unit rows."""
    u, v = (
        rng.uniforms(rng.keys(seed, 0, torch.arange(count), rng.Stream.QUEUE_INIT), 2 * width).double().chunk(2, dim=1)
    )
    return unit((-2 * torch.log1p(-u)).sqrt() * torch.cos(2 * pi * v)).float()
