"""Batches of views. Many are made at once, because kernel launches dominate the time of small batches."""

from typing import NamedTuple

import torch
from torch import Tensor

from aag.augment import Augmentation
from aag.data.early import Decoding
from aag.distributed import rank, world_size
from aag.kernels import in_dry_run
from aag.methods import Method
from aag.rng import keys, permutation
from aag.training.prefetch import HostReader

CHUNK_PIXELS = 2**22  # per view: 4,096 images of 32×32


class Batch(NamedTuple):
    """The input of a step."""

    views: Tensor  # uint8 [V, n, 3, H, W]
    indices: Tensor  # int64 [n]: the images' positions in their set


class _EpochOrder(NamedTuple):
    """The images of an epoch in the order in which batches take them."""

    epoch: int
    indices: Tensor  # int64 [N]
    by_method: bool  # chosen by the method's `epoch_order`; else all images, shuffled


def sized_augmentations(method: Method, images: Tensor, view_size: int | None) -> tuple[Augmentation, ...]:
    """Return a method's augmentations for views of `view_size` pixels a side; None: of the images' size."""
    if view_size in (None, images.shape[2]):
        return method.augmentations()
    return tuple(augmentation.at_size(view_size) for augmentation in method.augmentations())


class Batches:
    """The batches of an epoch, made in chunks of whole batches.

    A view depends on (seed, epoch, image, view) only. If the method chooses the order of an epoch, an image may occur
    twice in it, so its position replaces the image. Chunks start at fixed positions, so that a resumed run repeats the
    arithmetic of an uninterrupted one, bit for bit. Images on another device than `device` are prefetched chunk by
    chunk. Views have `view_size` pixels a side, by default the images'. With several processes, each makes its share of
    every batch; `batch_size` counts the images of all shares.

    While images are still being decoded (`decoding`), ask `rows_needed` before a batch. The first epoch is then
    shuffled within blocks only.
    """

    def __init__(
        self,
        images: Tensor,
        method: Method,
        batch_size: int,
        seed: int,
        *,
        view_size: int | None = None,
        device: torch.device | None = None,
        decoding: Decoding | None = None,
    ) -> None:
        self.decoding = decoding
        self.images, self.method, self.seed = images, method, seed
        self.batch_size, self.share_size = batch_size, batch_size // world_size()
        self.augmentations = sized_augmentations(method, images, view_size)
        self.device = images.device if device is None else device
        self._reader = None if images.device == self.device else HostReader(images, self.device)
        # On a CPU, what the caches hold: 512 images of 32×32, or 128 for each of many cores.
        pixels = (
            CHUNK_PIXELS
            if self.device.type == "cuda"
            else max(CHUNK_PIXELS // 8, CHUNK_PIXELS // 32 * torch.get_num_threads())
        )
        affordable = pixels // (images.shape[2] * images.shape[3]) // self.share_size
        self.per_chunk = max(1, min(affordable, len(images) // batch_size))  # batches
        self._order: _EpochOrder | None = None
        self._chunk_at: tuple[int, int] | None = None  # epoch and chunk

    def batch(self, epoch: int, step: int) -> Batch:
        """Return the batch of step 0, 1, … of an epoch."""
        chunk, position = divmod(step, self.per_chunk)
        if self._chunk_at != (epoch, chunk):
            self._chunk = self.make_chunk(epoch, chunk)
            self._chunk_at = (epoch, chunk)
        rows = slice(position * self.share_size, (position + 1) * self.share_size)
        return Batch(self._chunk.views[:, rows], self._chunk.indices[rows])

    def first_batch(self, epoch: int) -> Batch:
        """Make the first batch of an epoch without keeping its chunk."""
        views, index = self.make_chunk(epoch, 0)
        return Batch(views[:, : self.share_size], index[: self.share_size])

    def rows_needed(self, epoch: int, step: int) -> int:
        """Return how many images, from the first, must be decoded for the chunk of a step."""
        cls = type(self.method)
        needs_all = cls.before_epoch is not Method.before_epoch or cls.epoch_order is not Method.epoch_order
        if epoch or needs_all or self.decoding is None:
            return len(self.images)
        block, end = self.decoding.block, (step // self.per_chunk + 1) * self.per_chunk * self.batch_size
        return min(len(self.images), -(-end // block) * block)

    def reset(self) -> None:
        """Drop prefetched batches, because the method may have changed its order."""
        self._order = self._chunk_at = None

    def close(self) -> None:
        if self._reader:
            self._reader.close()

    def make_chunk(self, epoch: int, chunk: int) -> Batch:
        """Return `per_chunk` batches as one."""
        order = self._epoch_order(epoch)
        self._order = None if in_dry_run() else order  # in a dry run its numbers mean nothing
        position = self._positions(chunk, len(order.indices))
        index = order.indices[position]
        if self._reader:
            images = self._reader.read(index, self._next_index(order, chunk))
            position, index = position.to(self.device), index.to(self.device)
        else:
            images = self.images[index]
        key_index = position if order.by_method else index
        views = [
            augmentation.views(images, keys(self.seed, epoch, key_index, view))
            for view, augmentation in enumerate(self.augmentations)
        ]
        return Batch(torch.stack(views), index)

    def _epoch_order(self, epoch: int) -> _EpochOrder:
        if self._order is not None and self._order.epoch == epoch:
            return self._order
        chosen = self.method.epoch_order(epoch)
        if chosen is None:
            return _EpochOrder(epoch, self._shuffle(epoch), by_method=False)
        return _EpochOrder(epoch, chosen.to(self.images.device), by_method=True)

    def _shuffle(self, epoch: int) -> Tensor:
        block = self.decoding.block if self.decoding and epoch == 0 else None
        return permutation(self.seed, epoch, len(self.images), self.images.device, block=block)

    def _positions(self, chunk: int, count: int) -> Tensor:
        """Return the positions of a chunk in an epoch of `count` images. The last chunk wraps around to full size."""
        device = self.images.device
        batch = torch.arange(chunk * self.per_chunk, (chunk + 1) * self.per_chunk, device=device)
        within = torch.arange(self.share_size, device=device) + rank() * self.share_size
        return (batch[:, None] * self.batch_size + within).flatten() % count

    def _next_index(self, order: _EpochOrder, chunk: int) -> Tensor | None:
        """Return the image indices of the chunk after this one, to prefetch it.

        None if the method has not chosen them yet, or if not all of them are decoded.
        """
        count, next_step = len(order.indices), (chunk + 1) * self.per_chunk
        is_last = next_step >= count // self.batch_size
        if self.decoding and not self.decoding.is_ready(self.rows_needed(order.epoch + is_last, next_step)):
            return None
        if not is_last:
            return order.indices[self._positions(chunk + 1, count)]
        if order.by_method:
            return None
        shuffled = self._shuffle(order.epoch + 1)
        return shuffled[self._positions(0, len(shuffled))]
