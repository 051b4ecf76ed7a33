"""Batches of views, made many at once: kernel launches are what small batches pay for."""

from typing import NamedTuple

import torch
from torch import Tensor

from aag.kernels import in_dry_run
from aag.methods import Method
from aag.rng import keys, permutation

CHUNK_PIXELS = 2**22  # per view: 4,096 images of 32×32


class Batch(NamedTuple):
    """The input of a step."""

    views: Tensor  # uint8 [V, n, 3, H, W]
    indices: Tensor  # int64 [n]: the images' positions in their set


class Batches:
    """The batches of an epoch, made in chunks of whole batches.

    A view depends on (seed, epoch, image, view) alone; where the method orders an epoch's images, and may take one
    twice, on the position in that order instead of the image. Chunks start at fixed positions, so that a resumed run
    repeats the arithmetic of an uninterrupted one, bit for bit.
    """

    def __init__(self, images: Tensor, method: Method, batch_size: int, seed: int) -> None:
        self.images, self.method, self.batch_size, self.seed = images, method, batch_size, seed
        self.augmentations = method.augmentations()
        # On a CPU, what the caches hold: 512 images of 32×32, or 128 for each of many cores.
        pixels = (
            CHUNK_PIXELS
            if images.device.type == "cuda"
            else max(CHUNK_PIXELS // 8, CHUNK_PIXELS // 32 * torch.get_num_threads())
        )
        affordable = pixels // (images.shape[2] * images.shape[3]) // batch_size
        self.per_chunk = max(1, min(affordable, len(images) // batch_size))  # batches
        self._order: tuple[int, Tensor, bool] | None = None  # epoch, order, whether it is the method's own
        self._chunk_at: tuple[int, int] | None = None  # epoch and chunk

    def batch(self, epoch: int, step: int) -> Batch:
        """Return the batch of step 0, 1, … of an epoch."""
        chunk, place = divmod(step, self.per_chunk)
        if self._chunk_at != (epoch, chunk):
            self._chunk = self.make_chunk(epoch, chunk)
            self._chunk_at = (epoch, chunk)
        rows = slice(place * self.batch_size, (place + 1) * self.batch_size)
        return Batch(self._chunk.views[:, rows], self._chunk.indices[rows])

    def first(self, epoch: int) -> Batch:
        """Make the first batch of an epoch without keeping its chunk."""
        views, index = self.make_chunk(epoch, 0)
        return Batch(views[:, : self.batch_size], index[: self.batch_size])

    def reset(self) -> None:
        """Drop what was made ahead: the method may have changed its order."""
        self._order = self._chunk_at = None

    def make_chunk(self, epoch: int, chunk: int) -> Batch:
        """Make many batches in one."""
        if self._order is None or self._order[0] != epoch:
            own = self.method.epoch_order(epoch)
            shuffled = permutation(self.seed, epoch, len(self.images), self.images.device) if own is None else own
            self._order = epoch, shuffled, own is not None
        _, order, ordered = self._order
        if in_dry_run():
            self._order = None
        size = self.per_chunk * self.batch_size
        # The last chunk is filled up from the epoch's start: all have one shape.
        place = torch.arange(chunk * size, (chunk + 1) * size, device=order.device) % len(order)
        index = order[place]
        images, number = self.images[index], place if ordered else index
        views = [
            augmentation.views(images, keys(self.seed, epoch, number, view))
            for view, augmentation in enumerate(self.augmentations)
        ]
        return Batch(torch.stack(views), index)
