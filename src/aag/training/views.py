"""Views of many batches at once: launches are what small batches pay for."""

from typing import NamedTuple

import torch
from torch import Tensor

from aag.augment import keys, permutation
from aag.kernels import in_dry_run
from aag.methods import Method

PIXELS = 2**22  # of a chunk, a view: 4,096 images of 32×32


class Batch(NamedTuple):
    """What a step takes."""

    views: Tensor  # uint8 [V, n, 3, H, W]
    ids: Tensor  # int64 [n]: the images' numbers in their set


class Views:
    """The views of an epoch's batches, made in chunks of whole batches.

    A view depends on (seed, epoch, image, view) alone; where the method orders an epoch's images, and may take one
    twice, on the place in that order instead of the image. Chunks start at fixed places all the same, so that a resumed
    run repeats the arithmetic of the one that was never interrupted, bit for bit.
    """

    def __init__(self, images: Tensor, method: Method, batch_size: int, seed: int) -> None:
        self.images, self.method, self.batch_size, self.seed = images, method, batch_size, seed
        # On a CPU, what the caches hold: 512 images of 32×32, or 128 for each of many cores.
        pixels = PIXELS if images.device.type == "cuda" else max(PIXELS // 8, PIXELS // 32 * torch.get_num_threads())
        affordable = pixels // (images.shape[2] * images.shape[3]) // batch_size
        self.batches = max(1, min(affordable, len(images) // batch_size))  # of a chunk
        self._order: tuple[int, Tensor, bool] | None = None  # an epoch, its images' order, and whether the method's own
        self._held: tuple[int, int] | None = None  # epoch and chunk

    def batch(self, epoch: int, step: int) -> Batch:
        """For step 0, 1, … of the epoch."""
        chunk, place = divmod(step, self.batches)
        if self._held != (epoch, chunk):
            self._chunk = self.make(epoch, chunk)
            self._held = (epoch, chunk)
        rows = slice(place * self.batch_size, (place + 1) * self.batch_size)
        return Batch(self._chunk.views[:, rows], self._chunk.ids[rows])

    def first(self, epoch: int) -> Batch:
        """The epoch's first batch, freshly made and not kept."""
        views, ids = self.make(epoch, 0)
        return Batch(views[:, : self.batch_size], ids[: self.batch_size])

    def forget(self) -> None:
        """After the method has changed its mind about the order."""
        self._order = self._held = None

    def make(self, epoch: int, chunk: int) -> Batch:
        """A chunk: many batches in one."""
        if self._order is None or self._order[0] != epoch:
            own = self.method.order(epoch)
            shuffled = permutation(self.seed, epoch, len(self.images), self.images.device) if own is None else own
            self._order = epoch, shuffled, own is not None
        _, order, ordered = self._order
        if in_dry_run():
            self._order = None
        size = self.batches * self.batch_size
        # The last chunk is filled up from the epoch's start: all have one shape.
        place = torch.arange(chunk * size, (chunk + 1) * size, device=order.device) % len(order)
        ids = order[place]
        images, number = self.images[ids], place if ordered else ids
        views = [family.views(images, keys(self.seed, epoch, number, v)) for v, family in enumerate(self.method.views)]
        return Batch(torch.stack(views), ids)
