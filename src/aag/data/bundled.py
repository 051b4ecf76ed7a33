"""The sample inside the package: two sheets of photographs as lossless WebP, and a JSON file of labels."""

import hashlib
import json
from collections.abc import Collection
from pathlib import Path

import numpy as np

from aag.data.arrays import Part, Parts
from aag.data.known import SAMPLE_FOLDER
from aag.errors import AAGError

SIDE, COLUMNS = 32, 50


def to_sheet(images: np.ndarray) -> np.ndarray:
    """Images [N,32,32,3] as one picture, row by row; N is a multiple of the columns."""
    grid = images.reshape(-1, COLUMNS, SIDE, SIDE, 3).transpose(0, 2, 1, 3, 4)
    return grid.reshape(-1, COLUMNS * SIDE, 3)


def from_sheet(sheet: np.ndarray) -> np.ndarray:
    """The images of a sheet: the other way round."""
    grid = sheet.reshape(-1, SIDE, COLUMNS, SIDE, 3).transpose(0, 2, 1, 3, 4)
    return np.ascontiguousarray(grid.reshape(-1, SIDE, SIDE, 3))


def read(splits: Collection[str], folder: Path = SAMPLE_FOLDER) -> Parts:
    """The asked-for splits of the sample, checked against the sha256 of their pixels."""
    from PIL import Image

    try:
        meta = json.loads((folder / "labels.json").read_text())
        out = {}
        for split in splits:
            with Image.open(folder / f"{split}.webp") as sheet:
                images = from_sheet(np.asarray(sheet.convert("RGB")))
            if hashlib.sha256(images.data).hexdigest() != meta[split]["sha256"]:
                raise ValueError(f"{split}.webp has other pixels than it should")
            out[split] = Part(images, np.array(meta[split]["labels"], np.int64))
        return Parts(out, tuple(meta["classes"]))
    except (OSError, ValueError, KeyError) as error:
        raise AAGError(f"the bundled sample in {folder} is damaged ({error}); install aag again") from None
