"""Colour jitter, grayscale and blur of float images in [0, 1], with a strength and an order per image."""

from functools import reduce
from itertools import permutations

import torch
from torch import Tensor
from torch.nn.functional import pad

from aag.augment.base import apply_masked

ORDERS = tuple(permutations(range(4)))  # of brightness, contrast, saturation, hue


def jitter(images: Tensor, mask: Tensor, order: Tensor, strength: Tensor) -> Tensor:
    """Apply the four operations in the order [B] (an index into ORDERS) with strength [B, 4], where mask [B]."""
    sequence = torch.tensor(ORDERS, device=images.device)[order]  # [B, 4]
    for position in range(4):
        for number, operation in enumerate((brightness, contrast, saturation, hue)):
            images = apply_masked(mask & (sequence[:, position] == number), operation, images, strength[:, number])
    return images


def brightness(images: Tensor, factor: Tensor) -> Tensor:
    return (images * _per_image(factor)).clamp(0, 1)


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    # Row by row: threads would split the sum over a large image, and its last bit would depend on the batch size.
    mean = gray(images).mean(dim=3, keepdim=True).mean(dim=2, keepdim=True)
    return _blend(mean, images, factor)


def saturation(images: Tensor, factor: Tensor) -> Tensor:
    return _blend(gray(images), images, factor)


def hue(images: Tensor, shift: Tensor) -> Tensor:
    """Shift the hue of HSV by `shift` [B], a fraction of the colour circle; keep value and saturation."""
    red, green, blue = images.unbind(1)
    value = images.amax(dim=1)
    chroma = value - images.amin(dim=1)
    safe = torch.where(chroma > 0, chroma, 1)
    sextant = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, (blue - red) / safe + 2, (red - green) / safe + 4),
    )
    sextant = sextant + 6 * shift[:, None, None]
    channels = []
    for offset in (5, 3, 1):
        k = torch.remainder(sextant + offset, 6)
        channels.append(value - chroma * torch.minimum(k, 4 - k).clamp(0, 1))
    return torch.stack(channels, dim=1)


def gray(images: Tensor) -> Tensor:
    """Return luma [B, 1, H, W]."""
    red, green, blue = images.unbind(1)
    return (0.2989 * red + 0.587 * green + 0.114 * blue)[:, None]


def grayscale(images: Tensor) -> Tensor:
    return gray(images).expand_as(images)


def blur(images: Tensor, sigma: Tensor, kernel: int = 3) -> Tensor:
    """Blur by a Gaussian of odd width `kernel` and standard deviation `sigma` [B], with reflected borders."""
    reach = kernel // 2
    distance = torch.arange(-reach, reach + 1, device=images.device)
    weight = torch.exp(-0.5 * (distance / sigma[:, None]) ** 2)
    weight = (weight / weight.sum(dim=1, keepdim=True))[:, :, None, None, None]  # [B, kernel, 1, 1, 1]
    h, w = images.shape[2:]
    mode = "reflect" if reach < min(h, w) else "replicate"  # reflection needs more pixels than the reach
    padded = pad(images, (reach, reach, reach, reach), mode=mode)
    # One after the other: the order of a sum over stacked terms, and so its last bit, would depend on the batch size.
    vertical = reduce(Tensor.add_, (weight[:, i] * padded[:, :, i : i + h] for i in range(kernel)))
    return reduce(Tensor.add_, (weight[:, i] * vertical[:, :, :, i : i + w] for i in range(kernel)))


def _blend(other: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    return (other + _per_image(factor) * (images - other)).clamp(0, 1)


def _per_image(value: Tensor) -> Tensor:
    return value[:, None, None, None]
