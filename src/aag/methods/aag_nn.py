"""AAG with neighbours: later in training, an image's nearest neighbours are further auxiliary views of it.

Dwibedi, Aytar, Tompson, Sermanet, Zisserman: "With a Little Help from My Friends" (2021), whose NNCLR has the idea.

    aag train --data cifar10 --method aag-nn

A nearest neighbour is another image, most often of the same class: a positive that no augmentation can make. Early in
training the neighbours are often wrong, so the term starts late. Neighbours come from a memory bank of all training
images; NNCLR uses a queue.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from aag.errors import AAGError
from aag.large_batch import contrast, gnt_xent_pairs
from aag.losses import unit_rows
from aag.methods.aag import AAG, AAGSettings
from aag.methods.bank import Bank
from aag.methods.base import Embeddings, Extract, Method, MethodContext, MethodSettings, Recipe, StepOutput
from aag.nets import Encoder
from aag.settings import AddedLater, Momentum, Range


@dataclass(frozen=True)
class NeighbourAAGSettings(AAGSettings):
    neighbour_weight: Annotated[float, Range(at_least=0)] = 1.0
    """Weight of the neighbours' terms in the loss; --auxiliary-weight is that of the auxiliary views."""
    neighbour_start: Annotated[float, Range(at_least=0, at_most=1)] = 0.4
    """Fraction of the epochs after which the neighbours' terms are added to the loss."""
    neighbours: Annotated[int, Range(at_least=1, at_most=30), AddedLater] = 1
    """Nearest neighbours per image; they share --neighbour-weight."""
    bank_momentum: Momentum = 0.5
    """Fraction of the old embedding that the memory bank keeps."""


class NeighbourAAG(AAG):
    name = "aag-nn"
    settings_type = NeighbourAAGSettings
    settings: NeighbourAAGSettings
    recipes = {
        "aag-nn": Recipe(
            about="AAG with an image's nearest neighbour as one more auxiliary view, from 40 % of the epochs on",
            expect="not run here yet",
        )
    }
    weight: Tensor  # float []: 0 in epochs before --neighbour-start, then --neighbour-weight

    def __init__(self, settings: MethodSettings | None = None) -> None:
        super().__init__(settings)
        self.log_names = (*self.log_names, "loss_neighbour")

    def setup(self, context: MethodContext) -> None:
        super().setup(context)
        count, images = self.settings.neighbours, context.images
        if count >= images:
            raise AAGError(
                f"--neighbours {count} of an image need at least {count + 1} images, not {images}; use a smaller number"
            )
        self.first_epoch = round(self.settings.neighbour_start * context.train.epochs)
        self.bank = Bank(images, context.encoder.embedding_dim, self.settings.bank_momentum, context.train.seed)
        self.register_buffer("weight", torch.zeros(()))

    def before_epoch(self, epoch: int, extract: Extract) -> None:
        self.weight.fill_(self.settings.neighbour_weight if epoch >= self.first_epoch else 0.0)

    def loss(self, embeddings: Embeddings, index: Tensor) -> StepOutput:
        """Return AAG's loss + weight · the mean of L_px + L_py over the neighbours p of each image in the bank.

        Neighbours get no gradient, and --hard-negatives does not change their terms.
        """
        assert isinstance(embeddings, Tensor)
        base = super().loss(embeddings, index)
        x, y, neighbours = *embeddings[:2], self.settings.neighbours
        v = unit_rows(unit_rows(x.detach()) + unit_rows(y.detach()))  # one embedding per image
        term = contrast(
            [x, y, *self.find_neighbours(v, index).to(x.dtype)],
            gnt_xent_pairs(neighbours, 1 / neighbours)[1:],  # without L_xy
            temperature=self.settings.temperature,
            keep_positive=self.settings.keep_positive,
        )
        return StepOutput(base.loss + self.weight * term.loss, (*base.log, term.loss.detach()), (index, v))

    # Neighbours need the embeddings of all processes, whatever the size of the batch.
    distributed_loss = Method.distributed_loss

    def find_neighbours(self, v: Tensor, index: Tensor) -> Tensor:
        """Return the K rows of the bank nearest to each v [n, d], without the image's own: float32 [K, n, d]."""
        cosines = v.to(self.bank.rows.dtype) @ self.bank.rows.T  # [n, N]
        return self.bank.rows[cosines.scatter_(1, index[:, None], -torch.inf).topk(self.settings.neighbours).indices.T]

    def after_step(self, encoder: Encoder, *carry: Tensor) -> None:
        index, v = carry
        self.bank.update(index, v.to(self.bank.rows.dtype))
