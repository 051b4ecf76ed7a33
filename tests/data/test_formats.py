"""The stated rules for unusual files, each on a file as programs and cameras write it."""

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms

from aag.data.decode import UnreadableImageError, decode, read_size


def png(width: int, height: int, depth: int, colour_type: int, rows: bytes) -> bytes:
    """A PNG by its specification: Pillow writes no 16-bit colours."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, depth, colour_type, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    )  # fmt: skip


def flat(path: Path, size: int = 8) -> list[int]:
    """Decode an image of one colour and return the colour, the median where it was compressed with losses."""
    return np.median(decode(path, size).reshape(-1, 3), axis=0).astype(int).tolist()


@pytest.mark.parametrize(
    ("colour_type", "values", "expected"),
    [
        (2, (0xFF00, 0x8000, 0x0040), [255, 128, 0]),  # RGB: the high byte
        (6, (0xFF00, 0x8000, 0x0040, 0xFFFF), [255, 128, 0]),  # RGBA
        (6, (0xFF00, 0x8000, 0x0040, 0x0000), [255, 255, 255]),  # transparent
        (4, (0x8000, 0xFFFF), [128, 128, 128]),  # grey with alpha
        (0, (0xFFFF,), [255, 255, 255]),
    ],
)
def test_16_bit_png(tmp_path, colour_type, values, expected):
    row = b"\0" + struct.pack(f">{len(values)}H", *values) * 8
    (tmp_path / "a.png").write_bytes(png(8, 8, 16, colour_type, row * 8))
    assert flat(tmp_path / "a.png") == pytest.approx(expected, abs=1)


def cmyk_jpeg() -> bytes:
    out = io.BytesIO()
    Image.new("CMYK", (64, 64), (0, 255, 255, 0)).save(out, "JPEG", quality=95)  # red
    return out.getvalue()


def test_cmyk_jpeg_values_are_inverted(tmp_path):
    content = cmyk_jpeg()
    at = content.index(b"\xff\xee")  # the segment that says so
    assert content[at + 4 : at + 9] == b"Adobe"
    (tmp_path / "adobe.jpg").write_bytes(content)
    assert flat(tmp_path / "adobe.jpg") == pytest.approx([255, 0, 0], abs=3)
    length = struct.unpack(">H", content[at + 2 : at + 4])[0]
    (tmp_path / "plain.jpg").write_bytes(content[:at] + content[at + 2 + length :])
    assert flat(tmp_path / "plain.jpg") == pytest.approx([255, 0, 0], abs=3)  # other programs invert them, too


def test_first_picture_of_an_mpo(tmp_path):
    red, blue = (Image.new("RGB", (80, 60), colour) for colour in ("red", "blue"))
    red.save(tmp_path / "a.mpo", save_all=True, append_images=[blue])
    (tmp_path / "b.jpg").write_bytes((tmp_path / "a.mpo").read_bytes())  # as phones name it
    for name in ("a.mpo", "b.jpg"):
        assert flat(tmp_path / name) == pytest.approx([255, 0, 0], abs=3)


def test_grey_jpeg_and_progressive_jpeg(tmp_path):
    Image.new("L", (40, 30), 99).save(tmp_path / "grey.jpg")
    assert flat(tmp_path / "grey.jpg", 30) == [99, 99, 99]
    Image.new("RGB", (40, 30), (9, 99, 199)).save(tmp_path / "progressive.jpg", progressive=True, quality=100)
    assert flat(tmp_path / "progressive.jpg", 30) == pytest.approx([9, 99, 199], abs=2)


def test_colour_profile_is_ignored(tmp_path):
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()
    Image.new("RGB", (8, 8), (10, 200, 30)).save(tmp_path / "a.png", icc_profile=profile)
    assert flat(tmp_path / "a.png") == [10, 200, 30]


def test_jpeg_by_both_decoders_is_the_same(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    small = Image.fromarray(rng.integers(0, 256, (10, 12, 3), np.uint8))
    small.resize((120, 100), Image.Resampling.BICUBIC).save(tmp_path / "a.jpg", quality=95)
    fast = decode(tmp_path / "a.jpg", 64)
    monkeypatch.setattr("aag.data.decode._fast_jpeg_decoder", lambda: None)
    assert np.abs(fast.astype(int) - decode(tmp_path / "a.jpg", 64)).max() <= 2
    content = (tmp_path / "a.jpg").read_bytes()
    monkeypatch.undo()
    (tmp_path / "cut.jpg").write_bytes(content[: len(content) // 2])
    with pytest.raises(UnreadableImageError):
        decode(tmp_path / "cut.jpg", 64)


def test_bombs_are_refused_without_decoding(tmp_path):
    side = 50_000
    (tmp_path / "bomb.png").write_bytes(png(side, side, 8, 2, b"\0" * 100))
    jpeg = io.BytesIO()
    Image.new("RGB", (16, 16)).save(jpeg, "JPEG")
    at = jpeg.getvalue().index(b"\xff\xc0") + 5
    content = bytearray(jpeg.getvalue())
    content[at : at + 4] = struct.pack(">HH", side, side)
    (tmp_path / "bomb.jpg").write_bytes(content)
    for name in ("bomb.png", "bomb.jpg"):
        with pytest.raises(UnreadableImageError, match="exceeds Pillow's limit of 89,478,485 pixels"):
            decode(tmp_path / name, 32)
        with pytest.raises(UnreadableImageError, match="exceeds Pillow's limit"):
            read_size(tmp_path / name)
