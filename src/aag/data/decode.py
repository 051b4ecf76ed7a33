"""One picture file, whatever it is, as a square of 8-bit RGB.

- Transparency is laid on white, the paper most pictures with a transparent ground are drawn for.
- 16-bit, 32-bit and float greys are scaled to 8 bits, not clipped.
- The orientation a camera noted is applied; of an animation the first frame counts.
- The centre square is cut and resampled with an antialiased cubic filter. A square that has the size already is
  kept to the pixel.
"""

import os
import stat
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

# EPS would start Ghostscript on whatever the file says; the others are stubs that can name a format but not read it.
_UNREAD = {"EPS", "BUFR", "GRIB", "HDF5", "MPEG", "WMF"}


class Unusable(Exception):
    """Why a file is left out."""


@cache
def formats() -> tuple[str, ...]:
    """The formats Pillow may open here."""
    Image.init()
    return tuple(sorted(set(Image.OPEN) - _UNREAD))


@cache
def extensions() -> frozenset[str]:
    """The file extensions of those formats, lower case, with the dot."""
    known = set(formats())
    return frozenset(ext for ext, name in Image.registered_extensions().items() if name in known)


def decode(path: Path, size: int) -> np.ndarray:
    """The picture as uint8 [size,size,3]; raises Unusable with a short reason."""
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise Unusable("not a regular file")  # opening a pipe would wait for ever
        if status.st_size == 0:
            raise Unusable("empty file")
        with Image.open(path, formats=formats()) as picture:
            # A JPEG can be decoded at a fraction of its size; twice the target leaves the filter enough to work on.
            picture.draft(None, (2 * size, 2 * size))
            # Pillow itself only warns up to twice its limit, but every core may hold such a picture.
            limit = Image.MAX_IMAGE_PIXELS
            if limit is not None and picture.width * picture.height > limit:
                raise Unusable(f"{picture.width}×{picture.height} is more than Pillow's limit of {limit:,} pixels")
            picture.load()
            return np.asarray(square(to_rgb(_upright(picture)), size))
    except Unusable:
        raise
    except UnidentifiedImageError:
        raise Unusable("not an image Pillow can read") from None
    except Image.DecompressionBombError:
        raise Unusable(f"more than Pillow's limit of {Image.MAX_IMAGE_PIXELS:,} pixels") from None
    except FileNotFoundError:
        raise Unusable("no such file, or a link to nowhere") from None
    except Exception as error:  # a damaged picture makes the decoders raise nearly anything
        reason = str(getattr(error, "strerror", None) or error).split("\n")[0]
        raise Unusable(reason[:120] or type(error).__name__) from None


def _upright(picture: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(picture)
    except Exception:  # unreadable notes of a camera are no reason to lose its picture
        return picture


def to_rgb(picture: Image.Image) -> Image.Image:
    """8-bit RGB from any of Pillow's modes."""
    mode = picture.mode
    if mode == "RGB" and "transparency" not in picture.info:
        return picture
    if mode in ("I", "F") or mode.startswith("I;"):
        return Image.fromarray(to_8_bits(np.asarray(picture), sixteen=mode.startswith("I;"))).convert("RGB")
    if mode in ("RGBA", "RGBa", "LA", "La", "PA") or "transparency" in picture.info:
        # Premultiplied greys know no direct way to RGBA.
        clear = (picture.convert("LA") if mode == "La" else picture).convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", clear.size, "white"), clear).convert("RGB")
    return picture.convert("RGB")


def to_8_bits(values: np.ndarray, *, sixteen: bool) -> np.ndarray:
    """Grey values of more than 8 bits as uint8. `sixteen`: of a format whose white is 65535, however dark the picture.

    Others do not say what their white is. The smallest range that holds them counts: 0..1 (floats), 0..255, 0..65535,
    and else their own lowest and highest.
    """
    grey = np.nan_to_num(values.astype(np.float64), posinf=0.0, neginf=0.0)
    low, high = float(grey.min()), float(grey.max())
    if sixteen:
        white = 65535.0
    elif low < 0 or high > 65535:
        grey, white = grey - low, high - low or 1.0
    elif values.dtype.kind == "f" and high <= 1:
        white = 1.0
    else:
        white = 255.0 if high <= 255 else 65535.0
    return np.rint(grey * (255.0 / white)).astype(np.uint8)


def square(picture: Image.Image, size: int) -> Image.Image:
    """The centre square, resampled to `size`.

    The same as resizing the shorter side and cutting afterwards, but a thin strip does not grow into gigabytes.
    """
    width, height = picture.size
    if width == height == size:
        return picture
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    box = (left, top, left + side, top + side)
    return picture.resize((size, size), Image.Resampling.BICUBIC, box=box, reducing_gap=3.0)
