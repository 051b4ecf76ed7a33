"""Decode one image file to a square of 8-bit RGB.

- Transparent pixels become white, the background that most transparent images are drawn for.
- 16-bit, 32-bit and float greys are scaled to 8 bits, not clipped (see `to_8_bits`).
- The EXIF orientation is applied. Of an animation, the first frame is used.
- The centre square is cropped and resized with an antialiased bicubic filter. A square of the right size keeps its
  exact pixels.
"""

import os
import re
import stat
import threading
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

from aag.data.image_limits import TimedBytes, TimedFile, is_tiff, read_jpeg
from aag.data.image_limits import UnreadableImageError as UnreadableImageError
from aag.data.memory import OverBudgetError, decoding_budget
from aag.errors import first_line
from aag.text import readable_bytes

# EPS would run Ghostscript on the file's content. BLP, icons and IPTC contain files of other formats, even EPS, whose
# size is not in their own header. For the others, Pillow has only stubs that cannot decode.
_EXCLUDED = {"EPS", "BLP", "ICNS", "ICO", "IPTC", "BUFR", "GRIB", "HDF5", "MPEG", "WMF"}
_COMMON = ("JPEG", "PNG", "WEBP", "TIFF", "BMP", "GIF")
_ORIENTATION = 0x0112  # EXIF tag
# How to make an image upright, by its EXIF orientation: transpose it, then flip it left to right and top to bottom.
ORIENTATIONS = {
    2: (False, True, False), 3: (False, True, True), 4: (False, False, True), 5: (True, False, False),
    6: (True, True, False), 7: (True, True, True), 8: (True, False, True),
}  # fmt: skip
# Peak memory while decoding, in bytes per pixel (measured; docs/images.md). A progressive JPEG needs its share at the
# full size, also if it is decoded at a fraction of it.
_BYTES_PER_PIXEL = {"WEBP": 18, "JPEG2000": 26, "AVIF": 16}
_OTHER_BYTES_PER_PIXEL = 12
_PROGRESSIVE_BYTES_PER_PIXEL = 8
_SLOW_PIXELS = 16_000_000  # at most, for formats that Pillow decodes in Python
_STRIP_PIXELS = 1 << 20  # that are converted at a time


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

    Large images wait for each other, so that together they stay within the memory budget of this process.
    """
    with open_image(source) as image:
        whole = image.size
        # A JPEG can be decoded at a fraction of its size; twice the target is enough for the filter.
        image.draft(None, (2 * size, 2 * size))
        with _reserve_memory(image, whole, source):
            content = read_jpeg(source) if image.format in ("JPEG", "MPO") else None
            decoder = _fast_jpeg_decoder() if image.format == "JPEG" and image.size == whole else None
            if decoder and content is not None and image.mode in ("RGB", "L"):
                pixels = _decode_jpeg(content, decoder)
            else:
                image.load()
                pixels = _rgb_square(image)
            pixels = resize_square(pixels, size)
        # Rotating the small square is the same as rotating the image before.
        transposed, flipped_x, flipped_y = ORIENTATIONS.get(read_orientation(image), (False, False, False))
        pixels = pixels.transpose(1, 0, 2) if transposed else pixels
        return pixels[:: -1 if flipped_y else 1, :: -1 if flipped_x else 1]


def read_orientation(image: Image.Image) -> int:
    """Return the EXIF orientation; 1, which is upright, if there is none."""
    with suppress(Exception):  # an image with damaged EXIF data is still usable
        return int(image.getexif().get(_ORIENTATION, 1))
    return 1


@contextmanager
def _reserve_memory(image: Image.Image, whole: tuple[int, int], source: Path | bytes) -> Iterator[None]:
    """Reserve the memory that decoding needs. Raise if the header says that the image is too large."""
    width, height = image.size
    pixels = width * height
    # Pillow only warns up to twice its limit, but every core may hold such an image.
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and pixels > limit:
        raise UnreadableImageError(f"{width}×{height} exceeds Pillow's limit of {limit:,} pixels")
    if pixels > _SLOW_PIXELS and any(tile[0] in Image.DECODERS for tile in getattr(image, "tile", ())):
        raise UnreadableImageError(f"{width}×{height} exceeds the limit of {_SLOW_PIXELS:,} pixels of this format")
    needed = pixels * _BYTES_PER_PIXEL.get(image.format or "", _OTHER_BYTES_PER_PIXEL)
    if image.info.get("progressive") or image.info.get("progression"):
        needed += whole[0] * whole[1] * _PROGRESSIVE_BYTES_PER_PIXEL
    if image.format != "TIFF":  # of a TIFF only the first picture is read, of others often the whole file
        needed += len(source) if isinstance(source, bytes) else os.stat(source).st_size
    budget = decoding_budget()
    try:
        with budget.reserve(needed):
            yield
    except OverBudgetError:
        what = f"decoding {width}×{height} pixels takes {readable_bytes(needed)} of memory"
        raise UnreadableImageError(f"{what}, more than the {readable_bytes(budget.total)} that may be used") from None


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


def _decode_jpeg(content: np.ndarray, decoder: Callable[[torch.Tensor, int, bool], torch.Tensor]) -> np.ndarray:
    """Return uint8 [H, W, 3]."""
    rgb = 3
    try:
        return decoder(torch.from_numpy(content), rgb, False).permute(1, 2, 0).numpy()
    except RuntimeError as error:  # "decode_jpeg, FILE.cpp:171, Image is incomplete or truncated"
        raise UnreadableImageError(re.sub(r"^.*\.cpp:\d+, ", "", first_line(error))[:120]) from None


@contextmanager
def ignore_warnings() -> Iterator[None]:
    """Ignore Pillow's warnings: a file that it warns about is either decoded or listed as skipped.

    Warning filters are global, so only the main thread changes them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def read_size(source: Path | bytes) -> tuple[int, int]:
    """Return width and height from the header, without decoding. Raises UnreadableImageError with a short reason."""
    with open_image(source) as image:
        return image.size


@contextmanager
def open_image(source: Path | bytes, formats: tuple[str, ...] | None = None) -> Iterator[Image.Image]:
    """Open an image file, or its content, of these formats, by default any. Errors become UnreadableImageError."""
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
        with TimedBytes(source) if isinstance(source, bytes) else TimedFile(source) as file:
            if not is_tiff(file) and length > (largest := decoding_budget().total):
                # Some formats are read into memory as soon as they are opened.
                found, limit = readable_bytes(length), readable_bytes(largest)
                raise UnreadableImageError(f"the file has {found}, more than the {limit} of memory that may be used")
            with Image.open(file, formats=formats or readable_formats()) as image:
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


def _rgb_square(image: Image.Image) -> np.ndarray:
    """Return the centre square as uint8 RGB [S, S, 3]. It is converted strip by strip, to save memory."""
    top, left, side = centre_square(image.height, image.width)
    if image.mode == "RGB" and "transparency" not in image.info and image.width * image.height <= _STRIP_PIXELS:
        return np.array(image)[top : top + side, left : left + side]  # a crop would cost more than the pixels
    square = np.empty((side, side, 3), np.uint8)
    if image.mode in ("I", "F") or image.mode.startswith("I;"):
        grey = to_8_bits(np.asarray(image), at_least_12=image.mode.startswith("I;"))
        square[:] = grey[top : top + side, left : left + side, None]
        return square
    rows = max(1, _STRIP_PIXELS // side)
    for start in range(0, side, rows):
        strip = (left, top + start, left + side, top + min(start + rows, side))
        square[start : start + rows] = np.asarray(to_rgb(image.crop(strip)))
    return square


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert an image of 8-bit channels, of any of Pillow's modes, to RGB."""
    mode = image.mode
    if mode == "RGB" and "transparency" not in image.info:
        return image
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
    rows = max(1, _STRIP_PIXELS // max(1, values[:1].size))
    strips = [slice(start, start + rows) for start in range(0, len(values), rows)]

    def clean(strip: slice) -> np.ndarray:
        return np.nan_to_num(values[strip].astype(np.float64), posinf=0.0, neginf=0.0)

    ranges = [(part.min(), part.max()) for part in map(clean, strips)]
    low, high = float(min(low for low, _ in ranges)), float(max(high for _, high in ranges))
    black = 0.0
    if low < 0 or high > 65535:
        black, white = low, high - low or 1.0
    elif values.dtype.kind == "f" and high <= 1:
        white = 1.0
    else:
        white = next(2.0**bits - 1 for bits in ((12, 14, 16) if at_least_12 else (8, 12, 14, 16)) if high < 2**bits)
    grey = np.empty(values.shape, np.uint8)
    for strip in strips:
        grey[strip] = np.rint((clean(strip) - black) * (255.0 / white))
    return grey


def centre_square(height: int, width: int) -> tuple[int, int, int]:
    """Return the first row, the first column and the side of the centre square."""
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side


def resize_square(pixels: np.ndarray, size: int) -> np.ndarray:
    """Crop the centre square of uint8 [H, W, C] and resize it to [size, size, C].

    PyTorch's antialiased bicubic filter gives Pillow's pixels, up to rounding, in a fifth of the time.
    """
    top, left, side = centre_square(*pixels.shape[:2])
    square = pixels[top : top + side, left : left + side]
    if side == size:
        return square
    planes = torch.from_numpy(np.require(square, requirements=["C", "W"])).permute(2, 0, 1)[None]
    resized = F.interpolate(planes, (size, size), mode="bicubic", antialias=True)
    return resized[0].permute(1, 2, 0).numpy()
