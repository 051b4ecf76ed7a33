"""Check the range of pixel values."""

import torch
from torch import Tensor

from aag.errors import AAGError


def check_pixel_range(images: Tensor) -> Tensor:
    """Return the images; refuse float images that are not in [0, 1].

    This catches float images in [0, 255] and images that are already normalised. The limits are -0.5 and 1.5, because
    a bicubic resize overshoots [0, 1].
    """
    if images.is_floating_point() and images.numel() and not _is_tracing(images):
        low, high = (value.item() for value in torch.aminmax(images))
        if not (low >= -0.5 and high <= 1.5):  # written so that NaN fails, too
            raise AAGError(f"float images must lie in [0, 1]; these span [{low:.3g}, {high:.3g}]")
    return images


def _is_tracing(images: Tensor) -> bool:
    """Return whether a compiler or a CUDA graph is recording, so that values cannot be read."""
    return torch.compiler.is_compiling() or (images.is_cuda and torch.cuda.is_current_stream_capturing())
