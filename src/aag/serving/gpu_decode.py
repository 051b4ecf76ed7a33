"""Decode JPEGs on the GPU by nvJPEG, through torchvision."""

from contextlib import suppress
from pathlib import Path

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from torchvision.io import ImageReadMode, decode_jpeg

from aag.data.decode import ORIENTATIONS, UnreadableImageError, centre_square, decode, open_image, read_orientation
from aag.data.image_limits import read_jpeg


def decode_batch(paths: list[Path], size: int, device: torch.device) -> tuple[Tensor, dict[int, str]]:
    """Return files as uint8 [n, 3, size, size] on the GPU, and the reasons for those that cannot be read.

    The CPU decodes files other than RGB and grey JPEGs, and those that nvJPEG refuses. The GPU resizes from the full
    resolution, so its pixels differ from the CPU's.
    """
    images = torch.zeros(len(paths), 3, size, size, dtype=torch.uint8, device=device)
    failures: dict[int, str] = {}
    for position, path in enumerate(paths):
        pixels = _decode_jpeg(path, device)
        if pixels is not None:
            images[position] = _resize_square(pixels, size)
            continue
        try:
            images[position] = torch.from_numpy(decode(path, size).copy()).to(device).permute(2, 0, 1)
        except UnreadableImageError as reason:
            failures[position] = str(reason)
    return images, failures


def _decode_jpeg(path: Path, device: torch.device) -> Tensor | None:
    """Return a JPEG as uint8 [3, H, W], upright; None where the CPU should decode it."""
    with suppress(Exception):  # the CPU decoder reports the reason
        with open_image(path, ("JPEG",)) as header:
            limit = Image.MAX_IMAGE_PIXELS or header.width * header.height
            if header.mode not in ("RGB", "L") or header.width * header.height > limit:
                return None
            orientation = read_orientation(header)
        return _upright(
            decode_jpeg(torch.from_numpy(read_jpeg(path)), mode=ImageReadMode.RGB, device=device), orientation
        )
    return None


def _upright(pixels: Tensor, orientation: int) -> Tensor:
    transpose, flip_x, flip_y = ORIENTATIONS.get(orientation, (False, False, False))
    pixels = pixels.transpose(1, 2) if transpose else pixels
    return pixels.flip([axis for axis, wanted in ((2, flip_x), (1, flip_y)) if wanted])


def _resize_square(pixels: Tensor, size: int) -> Tensor:
    """Crop the centre square of [3, H, W] and resize it with an antialiased bicubic filter."""
    top, left, side = centre_square(*pixels.shape[1:])
    square = pixels[:, top : top + side, left : left + side]
    if side == size:
        return square
    resized = F.interpolate(square[None].float(), (size, size), mode="bicubic", antialias=True)
    return resized[0].round().clamp(0, 255).to(torch.uint8)
