"""The sets known by name, read from wherever they lie: the package, an .npz, or the authors' own files."""

import logging
from collections.abc import Collection
from pathlib import Path

import numpy as np

from aag.data import npz
from aag.data.arrays import Part, Parts
from aag.data.known import Known, Place, data_root, located
from aag.errors import AAGError

_log = logging.getLogger(__name__)


def read_known(entry: Known, splits: Collection[str], root: str | Path | None = None) -> Parts:
    """The splits of a known set from wherever it lies; an archive is kept as an .npz for the next time."""
    place = located(entry, root)
    if place.kind == "bundled":
        from aag.data import bundled

        return bundled.read(splits)
    if place.kind == "npz":
        return read_kept(entry, place.paths[0], splits)
    content = read_official(entry, place)
    try:
        keep(entry, content, data_root(root))
    except OSError as error:
        _log.warning("%s was read, but could not be kept for a faster start: %s", entry.name, error)
    return Parts({s: Part(content[f"{s}_images"], content[f"{s}_labels"]) for s in splits}, entry.classes)


def read_official(entry: Known, place: Place) -> dict[str, np.ndarray]:
    """The arrays of a known set in its authors' format, with as many images as it should have."""
    if entry.name == "svhn":
        from aag.data import svhn

        content = svhn.read(entry, place.paths)
    else:
        from aag.data import cifar

        content = cifar.read(entry, place.paths[0], packed=place.kind == "archives")
    for split in ("train", "test"):
        _check(entry, place.paths[0], split, Part(content[f"{split}_images"], content[f"{split}_labels"]))
    return content


def keep(entry: Known, content: dict[str, np.ndarray], home: Path) -> Path:
    """Write a known set in the form that loads fast. Raises OSError."""
    target = home / f"{entry.name}.npz"
    npz.write(target, content | {"classes": np.array(entry.classes)})
    return target


def read_kept(entry: Known, path: Path, splits: Collection[str]) -> Parts:
    """The splits of a known set from its .npz."""
    try:
        parts = npz.read(path, splits)
    except AAGError as error:
        raise AAGError(f"{error}; delete it, then: aag data fetch {entry.name}") from None
    for split in splits:
        _check(entry, path, split, parts.splits.get(split))
    return Parts(parts.splits, entry.classes)


def _check(entry: Known, path: Path, split: str, part: Part | None) -> None:
    """A known set has a known number of images and of classes, or a record made with it would be wrong."""
    found, expected = len(part.images) if part else 0, entry.train if split == "train" else entry.test
    again = f"delete it, then: aag data fetch {entry.name}"
    if part is None or found != expected:
        raise AAGError(f"{path} holds {found} {split} images, but {entry.name} has {expected}; {again}")
    if part.labels is None or part.labels.max() >= len(entry.classes):
        raise AAGError(f"{path} does not hold labels of {entry.name}'s {len(entry.classes)} classes; {again}")
