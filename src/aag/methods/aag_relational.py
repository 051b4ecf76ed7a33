"""AAG with relations: an image's views should be as similar to other images as a weak view of it is.

Zheng, You, Wang, Qian, Zhang, Wang, Xu: "ReSSL: Relational Self-Supervised Learning with Weak Augmentation" (2021).

    aag train --data cifar10 --method aag-relational

GNT-Xent pushes every other image away, also those that show the same thing. Here, the similarities of a weak view (crop
and flip) to the images of a queue are the target of the strong views. `relational_loss` is the loss of ReSSL, with its
τ of 0.1 and 0.04. Weak views join the queue after the loss, also as in ReSSL. Two things differ from ReSSL:

- It is added to AAG's loss, for each of AAG's views; ReSSL has it alone, for one strong view.
- The encoder itself embeds weak views, without a gradient, since the contrastive loss prevents a collapse. ReSSL has a
  momentum encoder for them.

The queue has MoCo's size for CIFAR, 4096; the code of ReSSL for ImageNet has 131,072.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from aag.augment import Augmentation, BasicAugment
from aag.losses import check_embeddings, unit_rows
from aag.methods.aag import AAG, AAGSettings
from aag.methods.base import Embeddings, Method, MethodContext, MethodSettings, Recipe, StepOutput
from aag.methods.queues import enqueue, new_queue
from aag.nets import Encoder
from aag.settings import Range, Temperature


@dataclass(frozen=True)
class RelationalAAGSettings(AAGSettings):
    queue: Annotated[int, Range(at_least=1)] = 4096
    """Number of weak views of earlier images that each view is compared with."""
    relation_weight: Annotated[float, Range(at_least=0)] = 1.0
    """Weight of the relations in the loss."""
    relation_temperature: Temperature = 0.1
    """τ of the strong views' similarities to the queue."""
    target_temperature: Temperature = 0.04
    """τ of the weak view's similarities to the queue; smaller is sharper."""


class RelationalAAG(AAG):
    name = "aag-relational"
    settings_type = RelationalAAGSettings
    settings: RelationalAAGSettings
    queue: Tensor  # [K, d] unit rows
    steps: Tensor  # int64 [], batches so far
    recipes = {
        "aag-relational": Recipe(
            about="AAG with one more view, a weak one, whose similarities to other images all views learn (ReSSL)",
            expect="not run here yet",
            demo={"queue": 512},
        )
    }

    def __init__(self, settings: MethodSettings | None = None) -> None:
        super().__init__(settings)
        self.log_names = (*self.log_names, "loss_relations")

    def augmentations(self) -> tuple[Augmentation, ...]:
        weak = BasicAugment.preset("crop", flip=0.5 if self.settings.flip else 0.0)
        return (*super().augmentations(), weak)

    def describe_views(self) -> str:
        return f"{super().describe_views()} + 1 weak view"

    def setup(self, context: MethodContext) -> None:
        super().setup(context)
        size, width, train = self.settings.queue, context.encoder.embedding_dim, context.train
        self.register_buffer("queue", new_queue(size, width, train.batch_size, train.seed))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def loss(self, embeddings: Embeddings, index: Tensor) -> StepOutput:
        """Return AAG's loss + relation_weight · the mean of `relational_loss` over AAG's views."""
        assert isinstance(embeddings, Tensor)
        strong, weak = embeddings[:-1], unit_rows(embeddings[-1].detach())
        plain = super().loss(strong, index)
        temperatures = self.settings.relation_temperature, self.settings.target_temperature
        relations = relational_loss(strong, weak, self.queue, *temperatures)
        total = plain.loss + self.settings.relation_weight * relations
        return StepOutput(total, (*plain.log, relations.detach()), (weak,))

    # The queue needs the weak views of all processes, whatever the size of the batch.
    distributed_loss = Method.distributed_loss

    def after_step(self, encoder: Encoder, *carry: Tensor) -> None:
        (weak,) = carry
        enqueue(self.queue, weak, self.steps)
        self.steps.add_(1)


def relational_loss(
    strong: Tensor, weak: Tensor, queue: Tensor, temperature: float = 0.1, target_temperature: float = 0.04
) -> Tensor:
    """Return the mean cross-entropy of strong views [V, n, d] with targets of weak ones [n, d], over a queue [K, d].

    Target and prediction are softmaxes over the queue of cosines over their τ. Only strong views get a gradient.
    """
    check_embeddings((*strong, weak), temperature)
    queue = unit_rows(queue.detach())
    target = (unit_rows(weak.detach()) @ queue.T / target_temperature).softmax(dim=1)  # [n, K]
    similarities = unit_rows(strong.flatten(0, 1)) @ queue.T / temperature
    return -(target * similarities.log_softmax(dim=1).unflatten(0, strong.shape[:2])).sum(dim=2).mean()
