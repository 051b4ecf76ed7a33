"""Targets: image files of each format."""

import io
import struct
import warnings
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from aag.data.decode import UnreadableImageError, decode, read_size
from fuzz.target import Target

SIZE = 16  # that files are decoded to


def _picture(mode: str = "RGB", width: int = 24, height: int = 20) -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 4), np.uint8)
    pixels[:, :, 3] |= 64
    if mode == "I;16":
        return Image.fromarray(pixels[:, :, 0].astype(np.uint16) * 200)
    if mode in ("I", "F"):
        return Image.fromarray(pixels[:, :, 0].astype(np.int32 if mode == "I" else np.float32))
    return Image.fromarray(pixels, "RGBA").convert(mode)


def _encode(name: str, mode: str = "RGB", **options: Any) -> bytes:
    out = io.BytesIO()
    _picture(mode).save(out, name, **options)
    return out.getvalue()


def _animation() -> dict[str, Any]:
    return {"save_all": True, "append_images": [_picture().rotate(90), _picture().rotate(180)]}


def _exif() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


@cache
def png_seeds() -> list[bytes]:
    """Return PNGs of all modes."""
    plain = [_encode("PNG", mode) for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")]
    palette = _encode("PNG", "P", transparency=3)
    return [*plain, palette, _encode("PNG", exif=_exif()), _encode("PNG", **_animation())]


@cache
def jpeg_seeds() -> list[bytes]:
    """Return baseline and progressive JPEGs of all modes."""
    return [
        _encode("JPEG"),
        _encode("JPEG", progressive=True, quality=90),
        _encode("JPEG", "L"),
        _encode("JPEG", "CMYK"),
        _encode("JPEG", exif=_exif()),
        _encode("JPEG", subsampling=0, restart_marker_blocks=1),
        _encode("MPO", **_animation()),
    ]


@cache
def webp_seeds() -> list[bytes]:
    """Return lossy, lossless, transparent and animated WebPs."""
    modes = [_encode("WEBP", mode, lossless=lossless) for mode in ("RGB", "RGBA") for lossless in (True, False)]
    return [*modes, _encode("WEBP", exif=_exif()), _encode("WEBP", **_animation())]


@cache
def gif_seeds() -> list[bytes]:
    """Return GIFs."""
    return [
        _encode("GIF", "P"),
        _encode("GIF", "L"),
        _encode("GIF", "P", transparency=3),
        _encode("GIF", **_animation()),
    ]


@cache
def bmp_seeds() -> list[bytes]:
    """Return BMPs and DIBs."""
    modes = [_encode("BMP", mode) for mode in ("1", "L", "P", "RGB", "RGBA")]
    return [*modes, _encode("DIB")]


@cache
def tiff_seeds() -> list[bytes]:
    """Return TIFFs of several modes and compressions, with one page or several."""
    modes = [_encode("TIFF", mode) for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I;16", "I", "F")]
    packings = ("tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg")
    return [*modes, *(_encode("TIFF", compression=p) for p in packings), _encode("TIFF", **_animation())]


@cache
def other_seeds() -> list[bytes]:
    """Return files of the other formats that Pillow can write."""
    out = []
    for name, modes in {
        "PPM": ("1", "L", "RGB", "I;16"), "TGA": ("L", "RGB", "RGBA"), "SGI": ("L", "RGB"), "PCX": ("P", "RGB"),
        "DDS": ("RGB", "RGBA"), "JPEG2000": ("L", "RGB", "RGBA"), "AVIF": ("RGB", "RGBA"),
        "IM": ("L", "RGB"), "MSP": ("1",), "XBM": ("1",), "SPIDER": ("F",), "QOI": ("RGB", "RGBA"),
    }.items():  # fmt: skip
        for mode in modes:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of formats that Pillow will drop
                    out.append(_encode(name, mode))
            except (KeyError, OSError):  # this build of Pillow cannot write it
                continue
    return [*out, *_handmade()]


def _handmade() -> list[bytes]:
    """Return files of formats that Pillow reads and does not write."""
    psd = b"8BPS" + struct.pack(">H6xHIIHH", 1, 3, 4, 4, 8, 3) + bytes(12) + struct.pack(">H", 0) + bytes(48)
    cards = [b"SIMPLE  =                    T", b"BITPIX  =                    8", b"NAXIS   =                    2"]
    cards += [b"NAXIS1  =                    4", b"NAXIS2  =                    4", b"END"]
    fits = b"".join(card.ljust(80) for card in cards).ljust(2880) + bytes(16)
    sun = struct.pack(">8I", 0x59A66A95, 4, 4, 24, 48, 1, 0, 0) + bytes(48)
    xpm = b'/* XPM */\nstatic char *x[] = {\n"2 2 2 1",\n"a c #000000",\n"b c #ffffff",\n"ab",\n"ba"\n};\n'
    gbr = struct.pack(">5I4sI", 30, 2, 4, 4, 1, b"GIMP", 10) + b"x\0" + bytes(16)
    return [
        psd,
        fits,
        sun,
        xpm,
        gbr,
        b"P3\n2 2\n255\n" + b"1 2 3 " * 4,
        b"P7 332\n#END_OF_COMMENTS\n4 4 255\n" + bytes(16),
    ]


def repair_png(content: bytes) -> bytes:
    """Correct the checksum of each chunk."""
    out, place = bytearray(content), 8
    while place + 12 <= len(out):
        length = int.from_bytes(out[place : place + 4], "big")
        end = place + 8 + length
        if end + 4 > len(out):
            break
        out[end : end + 4] = struct.pack(">I", zlib.crc32(out[place + 4 : end]))
        place = end + 4
    return bytes(out)


def _read(path: Path) -> None:
    read_size(path)
    pixels = decode(path, SIZE)
    if pixels.shape != (SIZE, SIZE, 3) or pixels.dtype != np.uint8:
        raise RuntimeError(f"decoded to {pixels.dtype} {pixels.shape}")


def _target(seeds: Callable[[], list[bytes]], repair: Callable[[bytes], bytes] | None = None) -> Target:
    return Target(seeds, _read, ".img", (UnreadableImageError,), repair)


TARGETS = {
    "png": _target(png_seeds, repair_png),
    "jpeg": _target(jpeg_seeds),
    "webp": _target(webp_seeds),
    "gif": _target(gif_seeds),
    "bmp": _target(bmp_seeds),
    "tiff": _target(tiff_seeds),
    "other-images": _target(other_seeds),
}
