"""MoCo: match a view with its image's other view, encoded by a momentum encoder, against a queue of earlier keys.

He, Fan, Wu, Xie, Girshick: "Momentum Contrast for Unsupervised Visual Representation Learning" (2020).

    aag train --data cifar10 --method moco

CIFAR-10, ResNet-18, 200 epochs: kNN 82.6 in its authors' CIFAR demo, 85.3 with `--symmetric`; here 82.6 in 2 minutes on
one H200, 85.5 in 4.
"""

from copy import deepcopy
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from aag import rng
from aag.distributed import gather_batch, rank
from aag.losses import queue_xent, unit_rows
from aag.methods.base import BasicPreset, Embeddings, Method, MethodContext, MethodSettings, Recipe, StepOutput
from aag.methods.queues import enqueue, new_queue
from aag.nets import Encoder
from aag.settings import Momentum, Range, Temperature


@dataclass(frozen=True)
class MoCoSettings(MethodSettings):
    basic: BasicPreset = "simclr"
    loss: Literal["nt-xent", "gnt-xent"] = "nt-xent"
    """gnt-xent leaves the positive out of the denominator."""
    temperature: Temperature = 0.1
    """τ: cosine similarities are divided by it."""
    queue: Annotated[int, Range(at_least=1)] = 4096
    """Number of keys that a query is contrasted with."""
    key_momentum: Momentum = 0.99
    """EMA factor of the key encoder."""
    symmetric: bool = False
    """Make each view a query once and a key once."""


class MoCo(Method):
    name = "moco"
    settings_type = MoCoSettings
    settings: MoCoSettings
    recipes = {
        "moco": Recipe(
            about="MoCo with its authors' CIFAR settings: a queue of 4096 keys from a momentum encoder, batch 512",
            expect="CIFAR-10, ResNet-18, 200 epochs: kNN 82.6 by its authors; 82.6 here, in 2 minutes on one H200",
            options={"batch_size": 512, "lr": 0.015, "warmup_epochs": 0, "bn_group_size": 64},
            demo={"queue": 512, "bn_group_size": 0},
        )
    }
    log_names = ("positive_similarity", "negative_similarity")  # cosines of queries with their keys and with the queue
    queue: Tensor  # [K, d] unit keys
    steps: Tensor  # int64 [], batches so far; they give the position in the queue and the shuffle of the keys

    def setup(self, context: MethodContext) -> None:
        settings, encoder = self.settings, context.encoder
        self.queries = 2 if settings.symmetric else 1  # views that are queries
        keys_per_step = context.train.batch_size * self.queries
        # Shuffling BN: a key in the batch norm group of its query would share its statistics, which leaks the match.
        self.shuffle = encoder.spec.bn_group_size > 0
        self.seed = context.train.seed
        # `after_step` runs once per batch: with --accumulate, the batches of one optimizer step are one update.
        self.key_momentum = settings.key_momentum ** (1 / context.train.accumulate)
        self.key = deepcopy(encoder).requires_grad_(False).train()
        self.register_buffer("queue", new_queue(settings.queue, encoder.embedding_dim, keys_per_step, self.seed))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def embed(self, encoder: Encoder, views: Tensor) -> Embeddings:
        """Return queries [Q, n, d] and their keys [Q, n, d], of the images' other view."""
        queries, other_views = views[: self.queries], views.flip(0)[: self.queries]
        shape = (self.queries, views.shape[1])
        return encoder(queries.flatten(0, 1))[1].unflatten(0, shape), self._keys(other_views).unflatten(0, shape)

    def loss(self, embeddings: Embeddings, index: Tensor) -> StepOutput:
        query, key = (part.flatten(0, 1) for part in embeddings)
        key = unit_rows(key)
        # With --symmetric, the sum over both directions, as in the authors' code: twice the mean over all rows.
        loss = self.queries * queue_xent(
            query, key, self.queue, temperature=self.settings.temperature, keep_positive=self.settings.loss == "nt-xent"
        )
        query = unit_rows(query.detach())
        positive, negative = (query * key).sum(dim=1).mean(), query.mean(dim=0) @ self.queue.mean(dim=0)
        return StepOutput(loss, (positive, negative), (key,))

    def after_step(self, encoder: Encoder, *carry: Tensor) -> None:
        """Update the key encoder's weights and the queue; its batch norms keep their own running statistics."""
        torch._foreach_lerp_(list(self.key.parameters()), list(encoder.parameters()), 1 - self.key_momentum)
        (key,) = carry
        enqueue(self.queue, key, self.steps)
        self.steps.add_(1)

    @torch.no_grad()
    def _keys(self, images: Tensor) -> Tensor:
        """Return the keys [V · n, d] of views [V, n, 3, H, W]. The shuffle goes over the images of all processes."""
        if not self.shuffle:
            return self.key(images.flatten(0, 1))[1]
        own = slice(rank() * images.shape[1], (rank() + 1) * images.shape[1])
        images = gather_batch(images, dim=1)
        views, n = images.shape[:2]
        order = shuffled_order(self.seed, self.steps, views, n)
        key = self.key(images.flatten(0, 1)[order.view(views, n)[:, own].flatten()])[1]
        key = gather_batch(key.unflatten(0, (views, -1)), dim=1).flatten(0, 1)
        key = torch.empty_like(key).index_copy_(0, order, key)  # undo the shuffle
        return key.view(views, n, -1)[:, own].flatten(0, 1)


def shuffled_order(seed: int, step: Tensor, views: int, n: int) -> Tensor:
    """Return 0 … views · n − 1, shuffled within each view, in a different order for each step int64 []."""
    position = torch.arange(views * n, device=step.device)
    draws = rng.keys(seed, 0, step * (views * n) + position, rng.Stream.KEY_SHUFFLE).unflatten(0, (views, n))
    return (draws.argsort(dim=1, stable=True) + position[::n, None]).flatten()
