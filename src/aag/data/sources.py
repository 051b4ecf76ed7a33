"""`load` and `load_pair`: from what a user writes to an `ImageSet`."""

import os
from collections.abc import Collection
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from aag.data import arrays, npz
from aag.data.arrays import Parts
from aag.data.imageset import ImageSet
from aag.data.known import KNOWN, data_root, get
from aag.data.official import read_known
from aag.errors import AAGError, unknown

Split = Literal["train", "test"]


def load(
    source: str | Path,
    *,
    split: Split = "train",
    root: str | Path | None = None,
    image_size: int | None = None,
    limit: int | None = None,
) -> ImageSet:
    """One split of a source: `sample`, `cifar10`, `cifar100`, `svhn`, a path to an .npz, or a folder of pictures.

    `root` is where known sets lie (else the environment's AAG_DATA, else ~/.cache/aag). With `image_size`, images are
    cut to their centre square and resized; without, a folder's become 32 pixels and all others keep their size. With
    `limit`, that many images are kept, spread over the whole split. A known name comes before a folder of that name:
    write ./sample for the folder.
    """
    if split not in ("train", "test"):
        raise unknown("split", str(split), ("train", "test"))
    sets = _sets(source, (split,), root, image_size, limit)
    if split not in sets:
        raise AAGError(f"{source} has no {split} part; load its train part, or add a {split} part to it")
    return sets[split]


def load_pair(
    source: str | Path,
    *,
    root: str | Path | None = None,
    image_size: int | None = None,
    limit: int | None = None,
) -> tuple[ImageSet, ImageSet | None]:
    """The train and the test part of a source; None where it has no test part. See `load`."""
    sets = _sets(source, ("train", "test"), root, image_size, limit)
    return sets["train"], sets.get("test")


def _sets(
    source: str | Path, splits: Collection[str], root: str | Path | None, image_size: int | None, limit: int | None
) -> dict[str, ImageSet]:
    arrays.check_size(image_size)
    arrays.chosen(0, limit)  # a wrong limit is told before anything is read
    if isinstance(source, str) and source in KNOWN:
        name, parts = source, read_known(get(source), splits, root)
    else:
        path = Path(os.path.expanduser(source))
        parts = _read_path(path, str(source), splits, image_size, limit)
        whole = Path(os.path.abspath(path))
        name = (whole.name if whole.is_dir() else whole.stem) or "images"
    out = {}
    for split, part in parts.splits.items():
        part = arrays.take(part, limit)
        images = arrays.resized(part.images, image_size, str(source))
        out[split] = ImageSet(
            name=name,
            images=_channels_first(images),
            labels=None if part.labels is None else torch.from_numpy(part.labels.astype(np.int64)),
            classes=parts.classes if part.labels is not None else (),
            skipped=part.skipped,
            split=split,
        )
    return out


def _channels_first(images: np.ndarray) -> torch.Tensor:
    """[N,H,W,3] as a tensor [N,3,H,W], with one copy at most."""
    return torch.from_numpy(np.require(images.transpose(0, 3, 1, 2), requirements=["C", "W"]))


def _read_path(path: Path, source: str, splits: Collection[str], image_size: int | None, limit: int | None) -> Parts:
    if source and os.path.isdir(path):
        from aag.data import folder

        return folder.read(path, splits, image_size, limit)
    if not source or not os.path.exists(path):
        if path.suffix or os.sep in source or "/" in source or source.startswith((".", "~")):
            raise AAGError(f"no such file or folder: {source}; give a folder, an .npz or one of {', '.join(KNOWN)}")
        raise unknown("data set", source, KNOWN, hint="and there is no file or folder of that name")
    for entry in KNOWN.values():
        if path.name in [archive.file for archive in entry.archives]:
            raise AAGError(f"{source} is the archive of {entry.name}: put it into {data_root()} and load {entry.name}")
    if path.suffix.lower() != ".npz":
        raise AAGError(f"{source} is neither a folder nor an .npz; give a folder, an .npz or one of {', '.join(KNOWN)}")
    return npz.read(path, splits)
