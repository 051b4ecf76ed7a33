"""Moving pixels: crop and resize as two small matrix products, affine maps as one gather, for a whole batch."""

import math

import torch
from torch import Tensor

FILL = 128  # what AutoAugment shows where an affine map finds no pixel


def crop_boxes(u: Tensor, height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float]) -> Tensor:
    """RandomResizedCrop's boxes, float32 [B, 4] of whole (top, left, height, width), from u [B, 22] in [0, 1).

    Ten tries at an area and an aspect ratio, the first that fits; else the largest central box in `ratio`. In
    float64: exponentials of two devices differ in the last bit, which float32 would let decide on a box.
    """
    u = u.double()
    tries = u[:, :20].view(-1, 10, 2)
    area = height * width * (scale[0] + (scale[1] - scale[0]) * tries[..., 0])
    low, high = math.log(ratio[0]), math.log(ratio[1])
    aspect = torch.exp(low + (high - low) * tries[..., 1])
    w = torch.round(torch.sqrt(area * aspect))
    h = torch.round(torch.sqrt(area / aspect))
    fits = (w >= 1) & (w <= width) & (h >= 1) & (h <= height)
    first = fits.int().argmax(dim=1, keepdim=True)  # the first of equal maxima; try 0 where none fits
    found = fits.any(dim=1)
    spare_w, spare_h = largest_central(height, width, ratio)
    w = torch.where(found, w.gather(1, first)[:, 0], spare_w)
    h = torch.where(found, h.gather(1, first)[:, 0], spare_h)
    top = torch.where(found, torch.floor(u[:, 20] * (height - h + 1)), (height - h) // 2)
    left = torch.where(found, torch.floor(u[:, 21] * (width - w + 1)), (width - w) // 2)
    return torch.stack([top, left, h, w], dim=1).float()


def largest_central(height: int, width: int, ratio: tuple[float, float]) -> tuple[float, float]:
    """(width, height) of the largest box of an image with an aspect in `ratio`."""
    if width / height < ratio[0]:
        return width, max(1, round(width / ratio[0]))
    if width / height > ratio[1]:
        return max(1, round(height * ratio[1])), height
    return width, height


def resample(images: Tensor, box: Tensor, flip: Tensor, size: tuple[int, int]) -> Tensor:
    """Each image's box [B, 4] resized to `size` by an antialiased triangle filter, as Pillow's BILINEAR.

    Flipped left to right where `flip` [B]. float32 [B, C, *size], in the units of the images. Resizing is linear
    and separable, so it is one matrix from the left and one from the right for each image; a flip is the order of
    the matrix's rows and costs nothing.
    """
    b, c, h, w = images.shape
    rows = _triangle(box[:, 0], box[:, 2], h, size[0])  # [B, size_h, H]
    columns = _triangle(box[:, 1], box[:, 3], w, size[1])  # [B, size_w, W]
    columns = torch.where(flip[:, None, None], columns.flip(1), columns)
    pixels = images.permute(0, 2, 1, 3).float().reshape(b, h, c * w)
    tall = torch.bmm(rows, pixels).view(b, size[0] * c, w)
    out = torch.bmm(tall, columns.transpose(1, 2))
    return out.view(b, size[0], c, size[1]).permute(0, 2, 1, 3).contiguous()


def _triangle(start: Tensor, length: Tensor, pixels: int, out: int) -> Tensor:
    """Weights [B, out, pixels] of each source pixel in each output pixel; rows sum to 1, none outside the box."""
    scale = (length / out)[:, None, None]
    position = torch.arange(out, device=start.device)[:, None] + 0.5
    source = torch.arange(pixels, device=start.device) + 0.5
    centre = start[:, None, None] + position * scale
    weight = (1 - (source - centre).abs() / scale.clamp(min=1)).clamp(min=0)
    inside = (source > start[:, None, None]) & (source < (start + length)[:, None, None])
    weight = weight * inside
    return weight / weight.sum(dim=2, keepdim=True)


def affine(images: Tensor, matrix: Tensor, fill: int = FILL) -> Tensor:
    """Output pixel (x, y) shows input pixel (ax + by + c, dx + ey + f), the nearest; matrix float64 [B, 6].

    In 16.16 fixed point like Pillow's, so that which pixel is nearest is integer arithmetic, alike everywhere.
    """
    b, channels, h, w = images.shape
    a, bb, c, d, e, f = fixed_point(matrix)[:, :, None, None].unbind(1)  # each [B, 1, 1]
    y = torch.arange(h, device=images.device)[:, None]
    x = torch.arange(w, device=images.device)
    from_x = (a * x + bb * y + c) >> 16  # [B, H, W]
    from_y = (d * x + e * y + f) >> 16
    inside = (from_x >= 0) & (from_x < w) & (from_y >= 0) & (from_y < h)
    index = (from_y * w + from_x).where(inside, 0).view(b, 1, h * w).expand(-1, channels, -1)
    out = images.reshape(b, channels, h * w).gather(2, index).view(images.shape)
    return out.where(inside[:, None], fill)


def fixed_point(matrix: Tensor) -> Tensor:
    """16.16 numbers, int64 [B, 6], of maps [B, 6] that start from the middle of a pixel."""
    a, b, c, d, e, f = matrix.unbind(1)
    half_pixel = torch.stack([a, b, c + 0.5 * (a + b), d, e, f + 0.5 * (d + e)], dim=1)
    return torch.floor(half_pixel * 65536 + 0.5).long()
