"""Make the bundled sample from CIFAR-10: python tools/make_sample.py cifar10.npz

Takes the first 300 train and the first 100 test images of each class, in their original order, and writes two
lossless WebP sheets and their labels into src/aag/data/sample/. Other orders and sheet widths were tried: they change
the size by less than 0.3 %.
"""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from aag.data.datasets import CIFAR10_CLASSES, DATASETS, SAMPLE_FOLDER, StoredFiles
from aag.data.readers import SHEET_COLUMNS, read_sample, split_sheet

PER_CLASS = {"train": 300, "test": 100}


def make_sheet(images: np.ndarray) -> np.ndarray:
    """Lay images [N, S, S, 3] out as one image, row by row; N is a multiple of the columns."""
    size = images.shape[1]
    grid = images.reshape(-1, SHEET_COLUMNS, size, size, 3).transpose(0, 2, 1, 3, 4)
    return grid.reshape(-1, SHEET_COLUMNS * size, 3)


def main(source: Path) -> None:
    meta: dict[str, object] = {"classes": CIFAR10_CLASSES}
    picked = {}
    with np.load(source) as content:
        for split, count in PER_CLASS.items():
            labels = content[f"{split}_labels"]
            keep = np.sort(np.concatenate([np.flatnonzero(labels == c)[:count] for c in range(len(CIFAR10_CLASSES))]))
            images = content[f"{split}_images"][keep]
            target = SAMPLE_FOLDER / f"{split}.webp"
            Image.fromarray(make_sheet(images)).save(target, lossless=True, quality=100, method=6, exact=True)
            with Image.open(target) as sheet:
                assert np.array_equal(split_sheet(np.asarray(sheet.convert("RGB")), 32), images), "WebP changed a pixel"
            meta[split] = {"sha256": hashlib.sha256(images.tobytes()).hexdigest(), "labels": labels[keep].tolist()}
            picked[split] = images
            print(f"{target}: {len(images)} images, {target.stat().st_size:,} bytes")
    (SAMPLE_FOLDER / "labels.json").write_text(json.dumps(meta) + "\n")
    again = read_sample(DATASETS["sample"], StoredFiles("bundled", (SAMPLE_FOLDER,)))
    assert all(np.array_equal(again[split].images, images) for split, images in picked.items())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
