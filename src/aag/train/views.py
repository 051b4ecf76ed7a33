"""Views of many batches at once: launches are what small batches pay for."""

import torch
from torch import Tensor

from aag.augment import keys
from aag.methods import Method

PIXELS = 2**22  # of a chunk, a view: 4,096 images of 32×32


class Views:
    """The views of an epoch's batches, made in chunks of whole batches.

    A view depends on (seed, epoch, image, view) alone. Chunks start at fixed places all the same, so that a
    resumed run repeats the arithmetic of the one that was never interrupted, bit for bit.
    """

    def __init__(self, images: Tensor, method: Method, batch_size: int, seed: int, compiled: bool) -> None:
        self.images, self.batch_size, self.seed = images, batch_size, seed
        pixels = PIXELS if images.device.type == "cuda" else PIXELS // 8  # on a CPU, what the cache holds
        affordable = pixels // (images.shape[2] * images.shape[3]) // batch_size
        self.batches = max(1, min(affordable, len(images) // batch_size))
        draws = {family: family.draw for family in method.views}
        if compiled:
            draws = {family: torch.compile(draw, dynamic=False) for family, draw in draws.items()}
        self._draws = [draws[family] for family in method.views]
        self._held: tuple[int, int] | None = None  # epoch and chunk

    def batch(self, order: Tensor, epoch: int, step: int) -> Tensor:
        """uint8 [V, n, 3, H, W] for step 0, 1, … of the epoch whose images come in `order`."""
        chunk, place = divmod(step, self.batches)
        if self._held != (epoch, chunk):
            self._chunk = self._make(order, epoch, chunk)
            self._held = (epoch, chunk)
        return self._chunk[:, place * self.batch_size : (place + 1) * self.batch_size]

    def _make(self, order: Tensor, epoch: int, chunk: int) -> Tensor:
        size = self.batches * self.batch_size
        # The last chunk is filled up from the epoch's start: one shape, one compilation.
        place = torch.arange(chunk * size, (chunk + 1) * size, device=order.device) % len(order)
        index = order[place]
        images = self.images[index]
        views = [draw(images, keys(self.seed, epoch, index, view)) for view, draw in enumerate(self._draws)]
        return torch.stack(views)
