"""Decode one image file to a square of 8-bit RGB.

- Transparent pixels become white, the background that most transparent images are drawn for.
- 16-bit, 32-bit and float greys are scaled to 8 bits, not clipped (see `to_8_bits`).
- The EXIF orientation is applied. Of an animation, the first frame is used.
- The centre square is cropped and resized with an antialiased bicubic filter. A square of the right size keeps its
  exact pixels.
"""

import io
import os
import re
import stat
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch.nn import functional as F

from aag.errors import first_line

# EPS would run Ghostscript on the file's content. For the others, Pillow has only stubs that cannot decode.
_EXCLUDED = {"EPS", "BUFR", "GRIB", "HDF5", "MPEG", "WMF"}
_COMMON = ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF")
_ORIENTATION = 0x0112  # EXIF tag


class UnreadableImageError(Exception):
    """A file cannot be read as an image; the message is the reason."""


@cache
def readable_formats() -> tuple[str, ...]:
    """Return the names of the formats that Pillow may open, common ones first: it tries them in this order."""
    Image.init()
    return tuple(sorted(set(Image.OPEN) - _EXCLUDED, key=lambda name: (name not in _COMMON, name)))


@cache
def readable_extensions() -> frozenset[str]:
    """Return the file extensions of those formats, in lower case and with the dot."""
    formats = set(readable_formats())
    return frozenset(ext for ext, name in Image.registered_extensions().items() if name in formats)


def decode(source: Path | bytes, size: int) -> np.ndarray:
    """Return an image file, or the content of one, as uint8 [size, size, 3].

    Raises UnreadableImageError with a short reason.
    """
    with _open(source) as image:
        whole = image.size
        # A JPEG can be decoded at a fraction of its size; twice the target is enough for the filter.
        image.draft(None, (2 * size, 2 * size))
        # Pillow only warns up to twice its limit, but every core may hold such an image.
        limit = Image.MAX_IMAGE_PIXELS
        if limit is not None and image.width * image.height > limit:
            raise UnreadableImageError(f"{image.width}×{image.height} exceeds Pillow's limit of {limit:,} pixels")
        decoder = _fast_jpeg_decoder() if image.format == "JPEG" and image.size == whole else None
        if decoder and image.mode in ("RGB", "L"):
            pixels = _decode_jpeg(source, decoder)
        else:
            image.load()
            pixels = np.asarray(to_rgb(image))
        pixels = resize_square(pixels, size)
        turn = None
        with suppress(Exception):  # an image with damaged EXIF data is still usable
            turn = image.getexif().get(_ORIENTATION)
        # Rotating the small square is the same as rotating the image before.
        return _TURNS[turn](pixels) if turn in _TURNS else pixels


# How to make an image upright, by its EXIF orientation.
_TURNS: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    2: np.fliplr,
    3: lambda pixels: np.rot90(pixels, 2),
    4: np.flipud,
    5: lambda pixels: pixels.transpose(1, 0, 2),
    6: lambda pixels: np.rot90(pixels, 3),
    7: lambda pixels: np.rot90(pixels, 2).transpose(1, 0, 2),
    8: np.rot90,
}


@cache
def _fast_jpeg_decoder() -> Callable[[torch.Tensor, int, bool], torch.Tensor] | None:
    """Return torchvision's JPEG decoder, which is faster than Pillow's at full size; None if torchvision lacks it."""
    with suppress(ImportError, OSError, RuntimeError, AttributeError):
        # Load only its library: importing torchvision takes seconds.
        for folder in getattr(find_spec("torchvision"), "submodule_search_locations", None) or ():
            for library in sorted(Path(folder).glob("image*.so")):
                torch.ops.load_library(library)
        decoder: Callable[[torch.Tensor, int, bool], torch.Tensor] = torch.ops.image.decode_jpeg.default
        return decoder
    return None


def _decode_jpeg(source: Path | bytes, decoder: Callable[[torch.Tensor, int, bool], torch.Tensor]) -> np.ndarray:
    """Return uint8 [H, W, 3]."""
    rgb = 3
    # The copy is writable, as torch expects it.
    content = np.frombuffer(source, np.uint8).copy() if isinstance(source, bytes) else np.fromfile(source, np.uint8)
    try:
        return decoder(torch.from_numpy(content), rgb, False).permute(1, 2, 0).numpy()
    except RuntimeError as error:  # "decode_jpeg, FILE.cpp:171, Image is incomplete or truncated"
        raise UnreadableImageError(re.sub(r"^.*\.cpp:\d+, ", "", first_line(error))[:120]) from None


@contextmanager
def ignore_warnings() -> Iterator[None]:
    """Ignore Pillow's warnings: a file that it warns about is either decoded or listed as skipped."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def read_size(source: Path | bytes) -> tuple[int, int]:
    """Return width and height from the header, without decoding. Raises UnreadableImageError with a short reason."""
    with _open(source) as image:
        return image.size


@contextmanager
def _open(source: Path | bytes) -> Iterator[Image.Image]:
    """Open an image file or its content. Raise any error until it is closed as an UnreadableImageError."""
    try:
        if isinstance(source, bytes):
            length = len(source)
        else:
            status = os.stat(source)
            length = status.st_size
            if not stat.S_ISREG(status.st_mode):
                raise UnreadableImageError("not a regular file")  # opening a pipe would block
        if length == 0:
            raise UnreadableImageError("empty file")
        opened = io.BytesIO(source) if isinstance(source, bytes) else source
        with Image.open(opened, formats=readable_formats()) as image:
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


def resize_square(pixels: np.ndarray, size: int) -> np.ndarray:
    """Crop the centre square of uint8 [H, W, C] and resize it to [size, size, C].

    PyTorch's antialiased bicubic filter gives Pillow's pixels, up to rounding, in a fifth of the time.
    """
    side = min(pixels.shape[:2])
    top, left = (pixels.shape[0] - side) // 2, (pixels.shape[1] - side) // 2
    square = pixels[top : top + side, left : left + side]
    if side == size:
        return square
    planes = torch.from_numpy(np.require(square, requirements=["C", "W"])).permute(2, 0, 1)[None]
    resized = F.interpolate(planes, (size, size), mode="bicubic", antialias=True)
    return resized[0].permute(1, 2, 0).numpy()
