"""What the training loop asks of a method."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from aag.augment import Augmentation


class Method(Protocol):
    """Which views of an image it wants, and the loss of their embeddings."""

    @property
    def views(self) -> tuple[Augmentation, ...]:
        """One augmentation for each view."""
        ...

    def loss(self, embeddings: Sequence[Tensor] | Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The scalar loss of the views' embeddings, each [n, d], and scalars to log, always the same names."""
        ...
