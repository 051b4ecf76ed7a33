"""Decode one image file to a square of 8-bit RGB.

- Transparent pixels become white, the background that most transparent images are drawn for.
- 16-bit, 32-bit and float greys are scaled to 8 bits, not clipped (see `to_8_bits`).
- The EXIF orientation is applied. Of an animation, the first frame is used.
- The centre square is cropped and resized with an antialiased bicubic filter. A square of the right size keeps its
  exact pixels.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from aag.errors import first_line

# EPS would run Ghostscript on the file's content. For the others, Pillow has only stubs that cannot decode.
_EXCLUDED = {"EPS", "BUFR", "GRIB", "HDF5", "MPEG", "WMF"}


class UnreadableImageError(Exception):
    """A file cannot be used; the message is the reason."""


@cache
def readable_formats() -> tuple[str, ...]:
    """Return the names of the formats that Pillow may open."""
    Image.init()
    return tuple(sorted(set(Image.OPEN) - _EXCLUDED))


@cache
def readable_extensions() -> frozenset[str]:
    """Return the file extensions of those formats, in lower case and with the dot."""
    formats = set(readable_formats())
    return frozenset(ext for ext, name in Image.registered_extensions().items() if name in formats)


def decode(path: Path, size: int) -> np.ndarray:
    """Return the image as uint8 [size, size, 3]. Raises UnreadableImageError with a short reason."""
    with _open(path) as image:
        # A JPEG can be decoded at a fraction of its size; twice the target is enough for the filter.
        image.draft(None, (2 * size, 2 * size))
        # Pillow only warns up to twice its limit, but every core may hold such an image.
        limit = Image.MAX_IMAGE_PIXELS
        if limit is not None and image.width * image.height > limit:
            raise UnreadableImageError(f"{image.width}×{image.height} exceeds Pillow's limit of {limit:,} pixels")
        image.load()
        upright: Image.Image = image
        with suppress(Exception):  # an image with damaged EXIF data is still usable
            upright = ImageOps.exif_transpose(image)
        return np.asarray(resize_square(to_rgb(upright), size))


def read_size(path: Path) -> tuple[int, int]:
    """Return width and height from the header, without decoding. Raises UnreadableImageError with a short reason."""
    with _open(path) as image:
        return image.size


@contextmanager
def _open(path: Path) -> Iterator[Image.Image]:
    """Open an image file; whatever goes wrong until it is closed is raised as an UnreadableImageError."""
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise UnreadableImageError("not a regular file")  # opening a pipe would block
        if status.st_size == 0:
            raise UnreadableImageError("empty file")
        with Image.open(path, formats=readable_formats()) as image:
            yield image
    except UnreadableImageError:
        raise
    except UnidentifiedImageError:
        raise UnreadableImageError("not an image Pillow can read") from None
    except Image.DecompressionBombError:
        raise UnreadableImageError(f"exceeds Pillow's limit of {Image.MAX_IMAGE_PIXELS:,} pixels") from None
    except FileNotFoundError:
        raise UnreadableImageError("no such file, or a broken link") from None
    except Exception as error:  # damaged files make the decoders raise nearly anything
        raise UnreadableImageError(first_line(error)[:120]) from None


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert any of Pillow's modes to 8-bit RGB."""
    mode = image.mode
    if mode == "RGB" and "transparency" not in image.info:
        return image
    if mode in ("I", "F") or mode.startswith("I;"):
        return Image.fromarray(to_8_bits(np.asarray(image), at_least_12=mode.startswith("I;"))).convert("RGB")
    if mode in ("RGBA", "RGBa", "LA", "La", "PA") or "transparency" in image.info:
        # Pillow cannot convert premultiplied grey to RGBA directly.
        rgba = (image.convert("LA") if mode == "La" else image).convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    return image.convert("RGB")


def to_8_bits(values: np.ndarray, *, at_least_12: bool) -> np.ndarray:
    """Scale grey values of more than 8 bits to uint8.

    Files do not say which value is white: cameras and scanners store 12 or 14 bits in 16-bit files. So white is the
    largest value of the smallest of 8, 12, 14 and 16 bits that holds the image's maximum, found for each file. With
    `at_least_12`, for 16-bit formats, it is one of 12, 14 and 16. Floats up to 1 are scaled from 0..1. Values below 0
    or above 65535 are scaled from the image's own minimum and maximum.
    """
    grey = np.nan_to_num(values.astype(np.float64), posinf=0.0, neginf=0.0)
    low, high = float(grey.min()), float(grey.max())
    if low < 0 or high > 65535:
        grey, white = grey - low, high - low or 1.0
    elif values.dtype.kind == "f" and high <= 1:
        white = 1.0
    else:
        white = next(2.0**bits - 1 for bits in ((12, 14, 16) if at_least_12 else (8, 12, 14, 16)) if high < 2**bits)
    return np.rint(grey * (255.0 / white)).astype(np.uint8)


def resize_square(image: Image.Image, size: int) -> Image.Image:
    """Crop the centre square and resize it to `size`.

    The result is that of resizing the shorter side and cropping, without a huge intermediate image for thin strips.
    """
    width, height = image.size
    if width == height == size:
        return image
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    box = (left, top, left + side, top + side)
    return image.resize((size, size), Image.Resampling.BICUBIC, box=box, reducing_gap=3.0)
