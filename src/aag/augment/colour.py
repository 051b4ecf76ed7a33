"""Colour jitter, grayscale and blur on float images in [0, 1], each image with its own strength and order."""

from itertools import permutations

import torch
from torch import Tensor
from torch.nn.functional import pad

from aag.augment.select import apply_where

ORDERS = tuple(permutations(range(4)))  # of brightness, contrast, saturation, hue


def jitter(images: Tensor, chosen: Tensor, order: Tensor, strength: Tensor) -> Tensor:
    """The four operations in each image's own order [B] (an index into ORDERS), with `strength` [B, 4]."""
    sequence = torch.tensor(ORDERS, device=images.device)[order]  # [B, 4]
    for place in range(4):
        for number, operation in enumerate((brightness, contrast, saturation, hue)):
            images = apply_where(chosen & (sequence[:, place] == number), operation, images, strength[:, number])
    return images


def brightness(images: Tensor, factor: Tensor) -> Tensor:
    return (images * _each(factor)).clamp(0, 1)


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    # Row by row: threads share the sum over one large image, and its last bit would depend on the batch's size.
    mean = gray(images).mean(dim=3, keepdim=True).mean(dim=2, keepdim=True)
    return _blend(mean, images, factor)


def saturation(images: Tensor, factor: Tensor) -> Tensor:
    return _blend(gray(images), images, factor)


def hue(images: Tensor, turn: Tensor) -> Tensor:
    """The hue of HSV turned by `turn` [B] of a full circle; value and saturation stay."""
    red, green, blue = images.unbind(1)
    value = images.amax(dim=1)
    chroma = value - images.amin(dim=1)
    safe = torch.where(chroma > 0, chroma, 1)
    sextant = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, (blue - red) / safe + 2, (red - green) / safe + 4),
    )
    sextant = sextant + 6 * turn[:, None, None]
    channels = []
    for offset in (5, 3, 1):
        k = torch.remainder(sextant + offset, 6)
        channels.append(value - chroma * torch.minimum(k, 4 - k).clamp(0, 1))
    return torch.stack(channels, dim=1)


def gray(images: Tensor) -> Tensor:
    """Luma, [B, 1, H, W]."""
    red, green, blue = images.unbind(1)
    return (0.2989 * red + 0.587 * green + 0.114 * blue)[:, None]


def grayscale(images: Tensor) -> Tensor:
    return gray(images).expand_as(images)


def blur(images: Tensor, sigma: Tensor, kernel: int = 3) -> Tensor:
    """A Gaussian of odd width `kernel` with each image's own `sigma` [B], mirrored at the edges."""
    reach = kernel // 2
    distance = torch.arange(-reach, reach + 1, device=images.device)
    weight = torch.exp(-0.5 * (distance / sigma[:, None]) ** 2)
    weight = (weight / weight.sum(dim=1, keepdim=True))[:, :, None, None, None]  # [B, kernel, 1, 1, 1]
    h, w = images.shape[2:]
    mode = "reflect" if reach < min(h, w) else "replicate"  # too few pixels have no mirror image that long
    mirrored = pad(images, (reach, reach, reach, reach), mode=mode)
    tall = torch.stack([weight[:, i] * mirrored[:, :, i : i + h] for i in range(kernel)]).sum(dim=0)
    return torch.stack([weight[:, i] * tall[:, :, :, i : i + w] for i in range(kernel)]).sum(dim=0)


def _blend(other: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    return (other + _each(factor) * (images - other)).clamp(0, 1)


def _each(value: Tensor) -> Tensor:
    return value[:, None, None, None]
