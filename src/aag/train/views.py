"""Views of many batches at once: launches are what small batches pay for."""

import torch
from torch import Tensor

from aag.augment import keys, permutation
from aag.kernels import rehearsing
from aag.methods import Method

PIXELS = 2**22  # of a chunk, a view: 4,096 images of 32×32


class Views:
    """The views of an epoch's batches, made in chunks of whole batches.

    A view depends on (seed, epoch, image, view) alone. Chunks start at fixed places all the same, so that a
    resumed run repeats the arithmetic of the one that was never interrupted, bit for bit.
    """

    def __init__(self, images: Tensor, method: Method, batch_size: int, seed: int) -> None:
        self.images, self.families, self.batch_size, self.seed = images, method.views, batch_size, seed
        pixels = PIXELS if images.device.type == "cuda" else PIXELS // 8  # on a CPU, what the cache holds
        affordable = pixels // (images.shape[2] * images.shape[3]) // batch_size
        self.batches = max(1, min(affordable, len(images) // batch_size))  # of a chunk
        self._order: tuple[int, Tensor] | None = None  # an epoch and its images' order
        self._held: tuple[int, int] | None = None  # epoch and chunk

    def batch(self, epoch: int, step: int) -> Tensor:
        """uint8 [V, n, 3, H, W] for step 0, 1, … of the epoch."""
        chunk, place = divmod(step, self.batches)
        if self._held != (epoch, chunk):
            self._chunk = self.make(epoch, chunk)
            self._held = (epoch, chunk)
        return self._chunk[:, place * self.batch_size : (place + 1) * self.batch_size]

    def make(self, epoch: int, chunk: int) -> Tensor:
        """The views [V, N, 3, H, W] of a chunk."""
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, permutation(self.seed, epoch, len(self.images), self.images.device)
        order = self._order[1]
        if rehearsing():
            self._order = None
        size = self.batches * self.batch_size
        # The last chunk is filled up from the epoch's start: all have one shape.
        index = order[torch.arange(chunk * size, (chunk + 1) * size, device=order.device) % len(order)]
        images = self.images[index]
        views = [family.draw(images, keys(self.seed, epoch, index, v)) for v, family in enumerate(self.families)]
        return torch.stack(views)
