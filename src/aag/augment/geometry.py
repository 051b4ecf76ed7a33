"""Crop and resize by two small matrix products, and affine maps by one gather, for a whole batch."""

import math

import torch
from torch import Tensor

FILL = 128  # AutoAugment's gray where an affine map reads outside the image


def crop_boxes(u: Tensor, height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float]) -> Tensor:
    """Return RandomResizedCrop's boxes, float32 [B, 4] of integers (top, left, height, width), from u [B, 22].

    Each box is the first of ten random areas and aspect ratios that fits, else the largest central box in `ratio`.
    Computed in float64: exponentials differ between devices in the last bit, which in float32 could change a box.
    """
    u = u.double()
    tries = u[:, :20].view(-1, 10, 2)
    area = height * width * (scale[0] + (scale[1] - scale[0]) * tries[..., 0])
    low, high = math.log(ratio[0]), math.log(ratio[1])
    aspect = torch.exp(low + (high - low) * tries[..., 1])
    w = torch.round(torch.sqrt(area * aspect))
    h = torch.round(torch.sqrt(area / aspect))
    fits = (w >= 1) & (w <= width) & (h >= 1) & (h <= height)
    first = fits.int().argmax(dim=1, keepdim=True)  # the first of equal maxima; 0 where none fits
    found = fits.any(dim=1)
    fallback_w, fallback_h = largest_central_box(height, width, ratio)
    w = torch.where(found, w.gather(1, first)[:, 0], fallback_w)
    h = torch.where(found, h.gather(1, first)[:, 0], fallback_h)
    top = torch.where(found, torch.floor(u[:, 20] * (height - h + 1)), (height - h) // 2)
    left = torch.where(found, torch.floor(u[:, 21] * (width - w + 1)), (width - w) // 2)
    return torch.stack([top, left, h, w], dim=1).float()


def largest_central_box(height: int, width: int, ratio: tuple[float, float]) -> tuple[float, float]:
    """Return (width, height) of the largest box in an image with an aspect ratio in `ratio`."""
    if width / height < ratio[0]:
        return width, max(1, round(width / ratio[0]))
    if width / height > ratio[1]:
        return max(1, round(height * ratio[1])), height
    return width, height


def resample(images: Tensor, box: Tensor, flip: Tensor, size: tuple[int, int]) -> Tensor:
    """Resize each image's box [B, 4] to `size` (height, width) by an antialiased triangle filter: Pillow's BILINEAR.

    Flip left to right where `flip` [B]. Return float32 [B, C, *size] in the units of the images. Resizing is linear
    and separable: a matrix from the left and one from the right. A flip reverses a matrix's rows at no cost.
    """
    b, c, h, w = images.shape
    rows = _triangle_weights(box[:, 0], box[:, 2], h, size[0])  # [B, size_h, H]
    columns = _triangle_weights(box[:, 1], box[:, 3], w, size[1])  # [B, size_w, W]
    columns = torch.where(flip[:, None, None], columns.flip(1), columns)
    pixels = images.permute(0, 2, 1, 3).float().reshape(b, h, c * w)
    resized_rows = torch.bmm(rows, pixels).view(b, size[0] * c, w)
    out = torch.bmm(resized_rows, columns.transpose(1, 2))
    return out.view(b, size[0], c, size[1]).permute(0, 2, 1, 3).contiguous()


def _triangle_weights(start: Tensor, length: Tensor, pixels: int, out: int) -> Tensor:
    """Return the weights [B, out, pixels] of source pixels: they sum to 1 and are 0 outside the box."""
    scale = (length / out)[:, None, None]
    position = torch.arange(out, device=start.device)[:, None] + 0.5
    source = torch.arange(pixels, device=start.device) + 0.5
    centre = start[:, None, None] + position * scale
    weight = (1 - (source - centre).abs() / scale.clamp(min=1)).clamp(min=0)
    inside = (source > start[:, None, None]) & (source < (start + length)[:, None, None])
    weight = weight * inside
    return weight / weight.sum(dim=2, keepdim=True)


def affine(images: Tensor, matrix: Tensor) -> Tensor:
    """Map images: output pixel (x, y) is the input pixel nearest to (ax + by + c, dx + ey + f); matrix float64 [B, 6].

    In 16.16 fixed point like Pillow, so that integer arithmetic finds the nearest pixel, the same on every device.
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
    return out.where(inside[:, None], FILL)


def fixed_point(matrix: Tensor) -> Tensor:
    """Return affine maps [B, 6] as 16.16 fixed point, int64, moved to start from the centre of a pixel."""
    a, b, c, d, e, f = matrix.unbind(1)
    half_pixel = torch.stack([a, b, c + 0.5 * (a + b), d, e, f + 0.5 * (d + e)], dim=1)
    return torch.floor(half_pixel * 65536 + 0.5).long()
