"""One operation for some images of a batch, chosen by a mask."""

from collections.abc import Callable

import torch
from torch import Tensor


def dense(images: Tensor) -> bool:
    """Whether to compute an operation for every image and select, rather than gather the chosen ones.

    Gathering needs the number of the chosen on the host: free on a CPU, a wait on a GPU, impossible in a graph.
    """
    return images.device.type != "cpu" or torch.compiler.is_compiling()


def apply_where(chosen: Tensor, operation: Callable[..., Tensor], images: Tensor, *per_image: Tensor) -> Tensor:
    """`operation(images, *per_image)` for the images with `chosen` [B], the others as they were."""
    if dense(images):
        return torch.where(chosen[:, None, None, None], operation(images, *per_image), images)
    index = chosen.nonzero()[:, 0]
    if len(index) == 0:
        return images
    if len(index) == len(images):
        return operation(images, *per_image)
    out = images.clone()
    out[index] = operation(images[index], *(value[index] for value in per_image))
    return out
