"""Readers of published data sets. Each takes an entry and its stored files and returns the arrays of all splits.

torchvision also reads CIFAR and SVHN, but does not replace these readers. Its CIFAR reader calls `pickle.load`, which
runs any code that a file contains, and needs the archive unpacked. Its SVHN reader is the same scipy call without the
checks, and is not shorter to use.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from aag.data.archive import MAX_MEMBER_BYTES, check_archive, read_members
from aag.data.arrays import SplitArrays
from aag.data.datasets import Dataset, StoredFiles
from aag.data.unpickle import SafeArray, unpickle
from aag.errors import AAGError, first_line
from aag.files import open_regular

SHEET_COLUMNS = 50


class _CifarLayout(NamedTuple):
    batches: Mapping[str, list[str]]  # split -> file names
    label_key: bytes
    names_file: str
    names_key: bytes


def read_cifar10(dataset: Dataset, files: StoredFiles) -> dict[str, SplitArrays]:
    """Read CIFAR-10 from its .tar.gz or the unpacked folder."""
    batches = {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]}
    return _read_cifar(dataset, files, _CifarLayout(batches, b"labels", "batches.meta", b"label_names"))


def read_cifar100(dataset: Dataset, files: StoredFiles) -> dict[str, SplitArrays]:
    """Read CIFAR-100, with its 100 fine labels, from its .tar.gz or the unpacked folder."""
    batches = {"train": ["train"], "test": ["test"]}
    return _read_cifar(dataset, files, _CifarLayout(batches, b"fine_labels", "meta", b"fine_label_names"))


def _read_cifar(dataset: Dataset, files: StoredFiles, layout: _CifarLayout) -> dict[str, SplitArrays]:
    source, prefix = files.paths[0], f"{dataset.folder}/"
    names = [*(file for batch in layout.batches.values() for file in batch), layout.names_file]
    if files.kind == "archives":
        check_archive(source, dataset.archives[0])
        members = read_members(source, [prefix + name for name in names])
        content = {name.removeprefix(prefix): data for name, data in members.items()}
    else:
        content = {name: _read_bytes(source / name) for name in names}
    out = {}
    for split, batch in layout.batches.items():
        parts = [_read_batch(content.pop(name), layout.label_key, source / name) for name in batch]
        images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        out[split] = SplitArrays(images, labels, dataset.classes)
    names_path = source / layout.names_file
    classes = unpickle(content[layout.names_file], names_path).get(layout.names_key)
    if classes != [name.encode() for name in dataset.classes]:
        raise AAGError(f"{names_path} does not name the classes of {dataset.name}; it is a different data set")
    return out


def _read_batch(raw: bytes, label_key: bytes, path: Path) -> tuple[np.ndarray, np.ndarray]:
    content = unpickle(raw, path)
    data, labels = content.get(b"data"), content.get(label_key)
    pixels = data.array if isinstance(data, SafeArray) else None
    if pixels is None or pixels.ndim != 2 or pixels.shape[1] != 3 * 32 * 32:
        raise AAGError(f"{path} contains no images of 3×32×32; it is not a file of this data set")
    if not isinstance(labels, list) or len(labels) != len(pixels) or not all(type(n) is int for n in labels):
        raise AAGError(f"{path} does not contain one label for each of its {len(pixels)} images; it is damaged")
    if not all(0 <= n <= 255 for n in labels):
        raise AAGError(f"{path} contains a label outside 0..255; it is damaged")
    # A row holds the red, the green and the blue plane.
    return pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), np.array(labels, np.uint8)


def _read_bytes(path: Path) -> bytes:
    try:
        with open_regular(path) as file:
            content = file.read(MAX_MEMBER_BYTES + 1)
        if len(content) > MAX_MEMBER_BYTES:
            raise AAGError(f"{path} has more than {MAX_MEMBER_BYTES:,} bytes; it is a different file")
        return content
    except OSError as error:
        raise AAGError(f"cannot read {path}: {error.strerror or error}; delete its folder and fetch again") from None


def read_svhn(dataset: Dataset, files: StoredFiles) -> dict[str, SplitArrays]:
    """Read SVHN's cropped digits: one MATLAB file per split."""
    from scipy.io import loadmat

    out = {}
    for split, path, archive in zip(dataset.splits, files.paths, dataset.archives, strict=True):
        check_archive(path, archive)
        try:
            content = loadmat(path, variable_names=["X", "y"])
        except Exception as error:  # damaged bytes make scipy raise nearly anything
            reason = f"is not a readable .mat file ({first_line(error)})"
            raise AAGError(f"{path} {reason}; delete it and fetch again") from None
        images, digits = content.get("X"), content.get("y")
        if images is None or images.dtype != np.uint8 or images.ndim != 4 or images.shape[:3] != (32, 32, 3):
            raise AAGError(f"{path} contains no X of uint8 [32, 32, 3, N]; it is not a file of SVHN")
        count = images.shape[3]
        if digits is None or digits.dtype.kind not in "iuf" or digits.size != count:
            raise AAGError(f"{path} does not contain one digit y for each of its {count} images; it is damaged")
        digits = digits.ravel().astype(np.int64)
        if count == 0 or digits.min() < 1 or digits.max() > 10:
            raise AAGError(f"{path} contains digits outside 1..10; it is not a file of SVHN")
        # MATLAB counts from 1: the digit 0 is stored as 10.
        labels = (digits % 10).astype(np.uint8)
        out[split] = SplitArrays(np.ascontiguousarray(images.transpose(3, 0, 1, 2)), labels, dataset.classes)
    return out


def read_sample(dataset: Dataset, files: StoredFiles) -> dict[str, SplitArrays]:
    """Read the bundled sample: a lossless WebP sheet per split and a JSON file with labels and sha256 of the pixels."""
    from PIL import Image

    folder = files.paths[0]
    try:
        meta = json.loads((folder / "labels.json").read_text())
        out = {}
        for split in dataset.splits:
            with Image.open(folder / f"{split}.webp") as sheet:
                images = split_sheet(np.asarray(sheet.convert("RGB")), dataset.size)
            if hashlib.sha256(images.data).hexdigest() != meta[split]["sha256"]:
                raise ValueError(f"{split}.webp has the wrong pixels")
            out[split] = SplitArrays(images, np.array(meta[split]["labels"], np.int64), dataset.classes)
        return out
    except (OSError, ValueError, KeyError) as error:
        raise AAGError(f"the bundled sample in {folder} is damaged ({error}); install aag again") from None


def split_sheet(sheet: np.ndarray, size: int) -> np.ndarray:
    """Return the images [N, size, size, 3] of a sheet with `SHEET_COLUMNS` images per row."""
    grid = sheet.reshape(-1, size, SHEET_COLUMNS, size, 3).transpose(0, 2, 1, 3, 4)
    return np.ascontiguousarray(grid.reshape(-1, size, size, 3))
