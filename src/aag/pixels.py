"""What counts as the pixels of an image."""

import torch
from torch import Tensor

from aag.errors import AAGError


def in_range(images: Tensor) -> Tensor:
    """Catches float images in [0, 255] and images normalised already; lets the overshoot of a bicubic resize pass."""
    if images.is_floating_point() and images.numel() and not _recording(images):
        low, high = (value.item() for value in torch.aminmax(images))
        if not (low >= -0.5 and high <= 1.5):  # also where they are NaN
            raise AAGError(f"float images must lie in [0, 1]; these span [{low:.3g}, {high:.3g}]")
    return images


def _recording(images: Tensor) -> bool:
    """For a compiler or a CUDA graph, when values cannot be looked at."""
    return torch.compiler.is_compiling() or (images.is_cuda and torch.cuda.is_current_stream_capturing())
