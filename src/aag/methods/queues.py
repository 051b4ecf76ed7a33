"""Queues of the newest embeddings, as in MoCo: buffers of a method, so that checkpoints hold them."""

from math import pi

import torch
from torch import Tensor

from aag import rng
from aag.errors import AAGError
from aag.losses import unit_rows


def new_queue(size: int, width: int, rows_per_step: int, seed: int) -> Tensor:
    """Return a queue of random unit rows [size, width]: normalised normal numbers, by the Box–Muller method."""
    if size % rows_per_step:
        nearest = max(1, round(size / rows_per_step)) * rows_per_step
        raise AAGError(
            f"--queue {size} is not a multiple of the {rows_per_step} embeddings per step; use --queue {nearest} or "
            f"another --batch-size"
        )
    rng_keys = rng.keys(seed, 0, torch.arange(size), rng.Stream.QUEUE_INIT)
    u, v = rng.uniforms(rng_keys, 2 * width).double().chunk(2, dim=1)
    return unit_rows((-2 * torch.log1p(-u)).sqrt() * torch.cos(2 * pi * v)).float()


def enqueue(queue: Tensor, rows: Tensor, step: Tensor) -> None:
    """Replace the oldest rows of a queue by those of this step, int64 [] from 0 on."""
    position = (step * len(rows) + torch.arange(len(rows), device=rows.device)) % len(queue)
    queue.index_copy_(0, position, rows.to(queue.dtype))
