"""Measure the peak memory of decoding, in bytes per pixel: `PYTHONPATH=tools python tools/decode_memory.py` (Linux).

The figures of docs/images.md. Each picture is decoded to 32 pixels in this process.
"""

import tempfile
import warnings
from pathlib import Path

from PIL import Image

from aag.data.decode import decode
from fuzz.worker import peak_bytes, reset_peak

SIDE = 4000
PICTURES = [
    ("baseline JPEG", "jpg", "RGB", {}),
    ("progressive JPEG, RGB", "jpg", "RGB", {"progressive": True, "subsampling": 0}),
    ("progressive JPEG, CMYK", "jpg", "CMYK", {"progressive": True, "subsampling": 0}),
    ("PNG, RGB", "png", "RGB", {}),
    ("PNG, RGBA", "png", "RGBA", {}),
    ("PNG, 16 bits", "png", "I;16", {}),
    ("GIF", "gif", "P", {}),
    ("BMP", "bmp", "RGB", {}),
    ("TIFF, 8 bits", "tif", "RGB", {"compression": "tiff_lzw"}),
    ("TIFF, 32 bits", "tif", "F", {}),
    ("WebP", "webp", "RGBA", {}),
    ("JPEG 2000", "jp2", "RGBA", {}),
    ("AVIF", "avif", "RGBA", {"speed": 10}),
]


def main() -> None:
    """Print a line per kind of picture."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        for name, extension, mode, options in PICTURES:
            path, small = Path(folder) / f"a.{extension}", Path(folder) / f"small.{extension}"
            Image.new(mode, (SIDE, SIDE)).save(path, **options)
            Image.new(mode, (64, 64)).save(small, **options)
            decode(small, 32)  # loads the decoder
            reset_peak()
            before = peak_bytes()
            decode(path, 32)
            print(f"{name:24} {(peak_bytes() - before) / SIDE**2:5.1f} bytes per pixel", flush=True)


if __name__ == "__main__":
    main()
