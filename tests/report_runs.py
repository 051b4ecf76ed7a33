"""Small trained runs for tests of pages: a folder of photographs with hostile names, and a network of milliseconds."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

import aag
from aag import data
from aag.data import ImageSet
from aag.runs import Run

HOSTILE = "</script><script>alert(1)</script>"
CLASSES = (f"<b>{HOSTILE}</b>", 'dog\'s "best" & $x^', "新宿 ❤")


def photograph_sets(count: int = 60) -> tuple[ImageSet, ImageSet]:
    """Train and test images of three classes, with names as files have them."""
    sample = data.load("sample", split="test")
    assert sample.labels is not None
    chosen = [int(i) for label in range(3) for i in (sample.labels == label).nonzero()[: count // 2, 0]]
    index = torch.tensor(chosen)
    names = [f"{CLASSES[int(sample.labels[i])].replace('/', '∕')}/{HOSTILE.replace('/', '∕')} {i}.png" for i in index]

    def part(rows: slice, split: str) -> ImageSet:
        assert sample.labels is not None
        own = index[rows]
        return ImageSet("photos", sample.images[own], sample.labels[own], CLASSES, split=split, names=names[rows])

    return part(slice(0, None, 2), "train"), part(slice(1, None, 2), "test")


_folder = TemporaryDirectory()  # removed when the process ends


@cache
def trained_run() -> tuple[Run, tuple[ImageSet, ImageSet]]:
    """A finished run on those photographs; do not write to its folder."""
    sets = photograph_sets()
    folder = Path(_folder.name) / "run & <co>"
    result = aag.train(sets, out=folder, epochs=2, batch_size=15, width=4, device="cpu", knn_every=1)
    return result.run, sets
