import io
import os
import re
import struct
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from aag.data import image_limits, memory
from aag.data.decode import UnreadableImageError, decode, readable_extensions, to_8_bits, to_rgb
from fuzz.worker import peak_bytes, reset_peak


def store(path: Path, image: Image.Image, **options) -> Path:
    image.save(path, **options)
    return path


def flat(path: Path, size: int = 4) -> tuple[int, ...]:
    """Decode an image of one colour and return the colour."""
    pixels = decode(path, size)
    assert pixels.shape == (size, size, 3)
    assert pixels.dtype == np.uint8
    assert (pixels == pixels[0, 0]).all()
    return tuple(int(v) for v in pixels[0, 0])


def noise(width: int, height: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8))


@pytest.mark.parametrize(
    ("mode", "colour", "file", "expected"),
    [
        ("RGB", (10, 20, 30), "a.png", (10, 20, 30)),
        ("L", 77, "a.png", (77, 77, 77)),
        ("1", 1, "a.png", (255, 255, 255)),
        ("LA", (0, 0), "a.png", (255, 255, 255)),
        ("LA", (40, 255), "a.png", (40, 40, 40)),
        ("RGBA", (0, 0, 0, 0), "a.png", (255, 255, 255)),
        ("RGBA", (255, 0, 0, 255), "a.jp2", (255, 0, 0)),
        ("RGBA", (0, 0, 0, 51), "a.png", (204, 204, 204)),
        ("CMYK", (0, 0, 0, 0), "a.tif", (255, 255, 255)),
        ("CMYK", (0, 255, 255, 0), "a.tif", (255, 0, 0)),
        ("I;16", 0xFFFF, "a.png", (255, 255, 255)),
        ("I;16", 0x8080, "a.png", (128, 128, 128)),
        ("I;16", 4095, "a.png", (255, 255, 255)),  # 12 bits in a 16-bit file
        ("I;16", 300, "a.tif", (19, 19, 19)),
        ("I;16", 4096, "a.tif", (64, 64, 64)),  # 14 bits
        ("I;16", 16384, "a.tif", (64, 64, 64)),  # 16 bits
        ("I", 65535, "a.tif", (255, 255, 255)),
        ("I", 100, "a.tif", (100, 100, 100)),
        ("F", 0.5, "a.tif", (128, 128, 128)),
        ("F", 200.0, "a.tif", (200, 200, 200)),
        ("RGB", (9, 8, 7), "a.bmp", (9, 8, 7)),
        ("RGB", (9, 8, 7), "a.ppm", (9, 8, 7)),
        ("RGB", (9, 8, 7), "a.TGA", (9, 8, 7)),
    ],
)
def test_every_mode_becomes_8_bit_rgb(tmp_path, mode, colour, file, expected):
    assert flat(store(tmp_path / file, Image.new(mode, (6, 6), colour))) == expected


def test_palettes_and_transparent_colours(tmp_path):
    image = Image.new("P", (6, 6), 1)
    image.putpalette([0, 0, 0, 200, 100, 50])
    assert flat(store(tmp_path / "a.png", image)) == (200, 100, 50)
    assert flat(store(tmp_path / "b.png", image, transparency=1)) == (255, 255, 255)
    assert flat(store(tmp_path / "c.png", image, transparency=bytes([255, 51]))) == (244, 224, 214)
    assert flat(store(tmp_path / "d.gif", image)) == (200, 100, 50)
    clear = Image.new("RGB", (6, 6), (1, 2, 3))
    assert flat(store(tmp_path / "e.png", clear, transparency=(1, 2, 3))) == (255, 255, 255)
    grey = Image.new("L", (6, 6), 9)
    assert flat(store(tmp_path / "f.png", grey, transparency=9)) == (255, 255, 255)


@pytest.mark.parametrize(
    "mode", ["1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV"]
)
def test_modes_without_a_file_format(mode):
    assert to_rgb(Image.new(mode, (3, 2))).mode == "RGB"


def test_more_than_8_bits_are_scaled_not_clipped():
    ramp = np.linspace(0, 65535, 256)
    assert (to_8_bits(ramp.astype(np.uint16), at_least_12=True) == np.arange(256)).all()
    assert (to_8_bits(ramp.astype(np.int32), at_least_12=False) == np.arange(256)).all()
    for bits in (12, 14):  # all 256 levels survive
        ramp = np.linspace(0, 2**bits - 1, 256).astype(np.uint16)
        assert (to_8_bits(ramp, at_least_12=True) == np.arange(256)).sum() > 200
        assert len(np.unique(to_8_bits(np.arange(2**bits), at_least_12=True))) == 256
    assert (to_8_bits(np.arange(-100, 156), at_least_12=False) == np.arange(256)).all()
    assert (to_8_bits(np.arange(256) * 1_000_000, at_least_12=False) == np.arange(256)).all()
    assert to_8_bits(np.array([[np.nan, 1.0, np.inf]]), at_least_12=False).tolist() == [[0, 255, 0]]
    assert to_8_bits(np.full((2, 2), -5), at_least_12=False).max() == 0


def test_square_of_the_right_size_keeps_its_pixels(tmp_path):
    image = noise(32, 32)
    for file in ("a.png", "a.bmp", "a.tif"):
        assert np.array_equal(decode(store(tmp_path / file, image), 32), np.asarray(image))


@pytest.mark.parametrize(("width", "height"), [(64, 40), (40, 64), (33, 32), (500, 100)])
def test_centre_square_is_cropped(tmp_path, width, height):
    pixels = np.zeros((height, width, 3), np.uint8)
    side = min(width, height)
    top, left = (height - side) // 2, (width - side) // 2
    pixels[top : top + side, left : left + side] = 200
    # without the border, where the filter mixes pixels outside the crop
    inner = decode(store(tmp_path / "a.png", Image.fromarray(pixels)), 16)[3:-3, 3:-3]
    assert (inner == 200).all()


def test_downscaling_averages_instead_of_picking(tmp_path):
    board = np.indices((256, 256)).sum(0) % 2 * 255
    pixels = decode(store(tmp_path / "a.png", Image.fromarray(board.astype(np.uint8))), 32)
    assert abs(pixels.astype(int) - 127).max() <= 3


def test_same_as_resizing_before_cropping(tmp_path):
    smooth = noise(20, 16).resize((320, 256), Image.Resampling.BICUBIC)
    plain = smooth.resize((40, 32), Image.Resampling.BICUBIC).crop((4, 0, 36, 32))
    found = decode(store(tmp_path / "a.png", smooth), 32)
    assert abs(found.astype(int) - np.asarray(plain).astype(int)).mean() < 1
    reduced = decode(store(tmp_path / "a.jpg", smooth, quality=100, subsampling=0), 32)
    assert abs(found.astype(int) - reduced.astype(int)).mean() < 2


def test_one_pixel_and_thin_strips(tmp_path):
    assert flat(store(tmp_path / "a.png", Image.new("RGB", (1, 1), (1, 2, 3))), 32) == (1, 2, 3)
    assert flat(store(tmp_path / "b.png", Image.new("RGB", (1, 60_000), (1, 2, 3))), 32) == (1, 2, 3)
    assert flat(store(tmp_path / "c.png", Image.new("RGB", (9, 9), (1, 2, 3))), 1) == (1, 2, 3)


@pytest.mark.parametrize("turn", range(1, 9))
@pytest.mark.parametrize("file", ["a.jpg", "a.png", "a.webp", "a.tif"])
def test_exif_orientation_is_applied(tmp_path, turn, file):
    # `undo` gives what a camera stores; after its EXIF rotation the image is upright.
    upright = np.zeros((16, 16), np.uint8)
    upright[:8, :8], upright[:8, 8:], upright[8:, :8] = 250, 160, 80
    undo = {
        1: lambda a: a,
        2: np.fliplr,
        3: lambda a: np.rot90(a, 2),
        4: np.flipud,
        5: lambda a: a.T,
        6: lambda a: np.rot90(a, 1),
        7: lambda a: np.rot90(a, 2).T,
        8: lambda a: np.rot90(a, 3),
    }
    exif = Image.Exif()
    exif[0x0112] = turn
    options = {"lossless": True} if file == "a.webp" else {"quality": 100} if file == "a.jpg" else {}
    stored = Image.fromarray(np.ascontiguousarray(undo[turn](upright))).convert("RGB")
    path = store(tmp_path / file, stored, exif=exif, **options)
    assert abs(decode(path, 16)[..., 0].astype(int) - upright).max() <= 4


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_damaged_exif_is_ignored(tmp_path):
    path = store(tmp_path / "a.jpg", Image.new("RGB", (8, 8), (200, 200, 200)), exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    assert flat(path)[0] in range(198, 203)


@pytest.mark.parametrize("file", ["a.gif", "a.png", "a.webp", "a.tif"])
def test_first_frame_of_an_animation(tmp_path, file):
    red, blue = Image.new("RGB", (8, 8), (255, 0, 0)), Image.new("RGB", (8, 8), (0, 0, 255))
    options = {"lossless": True} if file == "a.webp" else {}
    assert flat(store(tmp_path / file, red, save_all=True, append_images=[blue], **options)) == (255, 0, 0)


def _png() -> bytes:
    out = io.BytesIO()
    noise(64, 64).save(out, "PNG")
    return out.getvalue()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty file"),
        (b"hello, I am no image", "not an image"),
        (_png()[:4000], "truncated"),
        (_png()[:20], "."),
        (_png()[:200] + bytes(500) + _png()[700:], "."),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n", "not an image"),
    ],
)
def test_damaged_files_give_a_reason(tmp_path, content, reason):
    path = tmp_path / "a.png"
    path.write_bytes(content)
    with pytest.raises(UnreadableImageError, match=reason) as caught:
        decode(path, 8)
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_bombs_pipes_and_broken_links_give_a_reason(tmp_path, monkeypatch):
    path = store(tmp_path / "a.png", noise(50, 50))
    photograph = store(tmp_path / "a.jpg", noise(400, 400))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2_000)
    with pytest.raises(UnreadableImageError, match="50×50 exceeds Pillow's limit of 2,000"):
        decode(path, 8)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1_000)
    with pytest.raises(UnreadableImageError, match="limit of 1,000"):
        decode(path, 8)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100_000)
    assert decode(photograph, 8).shape == (8, 8, 3)  # decoded at a fraction of its size
    (tmp_path / "dead.png").symlink_to(tmp_path / "nowhere.png")
    (tmp_path / "loop.png").symlink_to(tmp_path / "loop.png")
    os.mkfifo(tmp_path / "pipe.png")
    for name, reason in (("dead", "broken link"), ("loop", "symbolic links"), ("pipe", "not a regular file")):
        with pytest.raises(UnreadableImageError, match=reason):
            decode(tmp_path / f"{name}.png", 8)


def test_readable_extensions_are_image_formats():
    assert {".jpg", ".jpeg", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm"} <= readable_extensions()
    assert not {".eps", ".ps", ".pdf", ".mpg", ".h5", ".txt", ".npz", ".json"} & readable_extensions()


def test_a_truncated_jpeg_is_told_without_the_decoders_source(tmp_path):
    path = tmp_path / "a.jpg"
    Image.effect_noise((40, 40), 90).convert("RGB").save(path)
    path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(UnreadableImageError) as error:
        decode(path, 32)
    assert "truncated" in str(error.value)
    assert ".cpp" not in str(error.value)


@pytest.mark.skipif(sys.platform != "linux", reason="measures memory by /proc")
@pytest.mark.parametrize(
    ("file", "mode", "options"),
    [
        ("a.png", "I;16", {}),
        ("a.png", "RGBA", {}),
        ("a.webp", "RGB", {"lossless": True}),
        ("a.jpg", "CMYK", {"progressive": True, "subsampling": 0}),
        ("a.tif", "F", {"compression": "tiff_adobe_deflate"}),
    ],
)
def test_decoding_takes_no_more_memory_than_reserved(tmp_path, monkeypatch, file, mode, options):
    side = 2400
    path = store(tmp_path / file, Image.new(mode, (side, side)), **options)
    decode(store(tmp_path / f"small-{file}", Image.new(mode, (8, 8)), **options), 8)  # loads the decoder
    reserved = []
    monkeypatch.setattr(memory.Budget, "reserve", lambda self, amount: reserved.append(amount) or nullcontext())
    reset_peak()
    before = peak_bytes()
    decode(path, 8)
    assert peak_bytes() - before < reserved[0] + 2**24  # buffers, fragmentation
    assert reserved[0] < 27 * side * side


def test_too_large_files_are_refused_by_their_headers(tmp_path, monkeypatch):
    def reason(path: Path) -> str:
        with pytest.raises(UnreadableImageError) as caught:
            decode(path, 8)
        return str(caught.value)

    monkeypatch.setattr(memory, "_budget", memory.Budget(50_000_000))
    large = store(tmp_path / "large.png", Image.new("1", (3000, 2000)))
    assert reason(large) == "decoding 3000×2000 pixels takes 72 MB of memory, more than the 50 MB that may be used"
    # Of a large JPEG, only a fraction is decoded; a progressive one is held in memory at its full size.
    photo = noise(300, 200).resize((3000, 2000))
    assert decode(store(tmp_path / "baseline.jpg", photo), 8).shape == (8, 8, 3)
    progressive = store(tmp_path / "progressive.jpg", photo.resize((4000, 3000)), progressive=True)
    assert "more than the 50 MB" in reason(progressive)
    huge = store(tmp_path / "huge.webp", Image.new("RGB", (8, 8)))
    os.truncate(huge, 10**12)
    assert reason(huge) == "the file has 1,000.0 GB, more than the 50 MB of memory that may be used"
    pages = store(tmp_path / "pages.tif", Image.new("RGB", (8, 8), (1, 2, 3)))
    os.truncate(pages, 10**11)  # only the first picture is read
    assert flat(pages, 8) == (1, 2, 3)
    slow = tmp_path / "slow.qoi"  # 25 megapixels in 20 bytes, decoded in Python
    slow.write_bytes(b"qoif" + struct.pack(">IIBB", 5000, 5000, 3, 0) + b"\xfd" * 10)
    assert "16,000,000 pixels of this format" in reason(slow)


def test_files_that_take_minutes_to_read_are_refused(tmp_path, monkeypatch):
    def reason(name: str, content: bytes) -> str:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UnreadableImageError) as caught:
            decode(tmp_path / name, 8)
        with pytest.raises(UnreadableImageError, match=re.escape(str(caught.value))):
            decode(content, 8)
        return str(caught.value)

    def saved(**options) -> bytes:
        out = io.BytesIO()
        noise(64, 64).save(out, **options)
        return out.getvalue()

    baseline, progressive = saved(format="JPEG"), saved(format="JPEG", progressive=True)
    # Each scan without data costs time for every pixel of the picture.
    last_scan = progressive[progressive.rindex(b"\xff\xda") :][:10]
    assert reason("a.jpg", progressive[:-2] + last_scan * 500 + b"\xff\xd9") == (
        "it has more than 500 scans or 100,000 segments"
    )
    text = b"\xff\xfe\x00\x02"
    assert "segments" in reason("a.jpg", progressive[:-2] + text * 100_000 + b"\xff\xd9")
    appended = tmp_path / "appended.jpg"  # by a camera, such as a film
    appended.write_bytes(baseline + last_scan * 1000)
    assert decode(appended, 8).shape == (8, 8, 3)
    strips = (257, 4, 300_000, 8), (273, 4, 300_000, 8)
    tiff = b"II*\0" + struct.pack("<IH", 8, 2) + b"".join(struct.pack("<HHII", *entry) for entry in strips)
    assert reason("a.tif", tiff + bytes(4)) == "its TIFF tag 257 has 300,000 values, more than 262,144"
    # Pillow joins all Exif segments, so their time grows with the square of their number.
    monkeypatch.setattr(image_limits, "MAX_SECONDS", 0.05)
    many = baseline[:2] + (b"\xff\xe1\0\x09Exif\0\0x") * 300_000 + baseline[2:]
    assert reason("a.jpg", many) == "reading it takes more than 0.05 s of CPU time"


def test_containers_of_other_formats_are_not_opened(tmp_path):
    assert {".icns", ".ico", ".blp", ".iim", ".eps"}.isdisjoint(readable_extensions())
    for name in ("ICNS", "ICO"):
        with pytest.raises(UnreadableImageError, match="not an image"):
            decode(store(tmp_path / "icon.png", Image.new("RGBA", (16, 16)), format=name), 8)
