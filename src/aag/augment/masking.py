"""Apply an operation to some images of a batch, chosen by a mask."""

from collections.abc import Callable

import torch
from torch import Tensor


def needs_static_shapes(images: Tensor) -> bool:
    """Whether to compute an operation for every image and select, rather than gather the chosen images.

    Gathering needs their number on the host: free on a CPU, a synchronisation on a GPU, impossible in a graph.
    """
    return images.device.type != "cpu" or torch.compiler.is_compiling()


def apply_masked(mask: Tensor, operation: Callable[..., Tensor], images: Tensor, *per_image: Tensor) -> Tensor:
    """Return `operation(images, *per_image)` where `mask` [B] is true, and the image itself elsewhere."""
    if needs_static_shapes(images):
        return torch.where(mask[:, None, None, None], operation(images, *per_image), images)
    index = mask.nonzero()[:, 0]
    if len(index) == 0:
        return images
    if len(index) == len(images):
        return operation(images, *per_image)
    out = images.clone()
    out[index] = operation(images[index], *(value[index] for value in per_image))
    return out
