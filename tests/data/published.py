"""Write tiny data sets in the published formats, without the code under test."""

import hashlib
import io
import struct
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from aag.data import datasets


def python2_pickle(value: Any) -> bytes:
    """Pickle as Python 2 did at protocol 2, for the types in CIFAR's files."""
    return b"\x80\x02" + _emit(value) + b"."


def _emit(value: Any) -> bytes:
    match value:
        case None:
            return b"N"
        case bool():
            return b"\x88" if value else b"\x89"
        case int():
            return b"J" + struct.pack("<i", value)
        case bytes():
            return (b"U" + bytes([len(value)]) if len(value) < 256 else b"T" + struct.pack("<i", len(value))) + value
        case list():
            return b"](" + b"".join(map(_emit, value)) + b"e"
        case tuple():
            return b"(" + b"".join(map(_emit, value)) + b"t"
        case dict():
            return b"}(" + b"".join(_emit(k) + _emit(v) for k, v in value.items()) + b"u"
        case np.ndarray():
            code = value.dtype.str[1:].encode()
            dtype = b"cnumpy\ndtype\n" + _emit((code, 0, 1)) + b"R"
            dtype += _emit((3, value.dtype.str[:1].encode(), None, None, None, -1, -1, 0)) + b"b"
            empty = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n" + _emit((0,)) + _emit(b"b") + b"tR"
            state = b"(" + _emit(1) + _emit(value.shape) + dtype + _emit(False) + _emit(value.tobytes()) + b"t"
            return empty + state + b"b"
    raise TypeError(type(value))


def images(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 32, 32, 3), np.uint8)


def planes(pixels: np.ndarray) -> np.ndarray:
    """Turn [N, 32, 32, 3] into CIFAR's rows: the red, the green and the blue plane."""
    return pixels.transpose(0, 3, 1, 2).reshape(len(pixels), 3072).copy()


def cifar_files(name: str, train: np.ndarray, test: np.ndarray) -> dict[str, bytes]:
    """Return the files of CIFAR by name; image i has the label i mod the number of classes."""
    entry = datasets.DATASETS[name]
    count, words = len(entry.classes), [word.encode() for word in entry.classes]

    def batch(pixels: np.ndarray, key: bytes, start: int = 0) -> bytes:
        labels = [(start + i) % count for i in range(len(pixels))]
        extra = {b"coarse_labels": [0] * len(pixels)} if name == "cifar100" else {b"batch_label": b"training batch"}
        return python2_pickle({**extra, key: labels, b"data": planes(pixels), b"filenames": [b"x.png"] * len(pixels)})

    if name == "cifar100":
        names = {b"fine_label_names": words, b"coarse_label_names": [b"all"]}
        return {
            "train": batch(train, b"fine_labels"),
            "test": batch(test, b"fine_labels"),
            "meta": python2_pickle(names),
        }
    parts, fifth = np.array_split(train, 5), len(train) // 5
    files = {f"data_batch_{i + 1}": batch(part, b"labels", i * fifth) for i, part in enumerate(parts)}
    return {**files, "test_batch": batch(test, b"labels"), "batches.meta": python2_pickle({b"label_names": words})}


def tar_gz(path: Path, members: dict[str, bytes], *extra: tarfile.TarInfo) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for info in extra:
            tar.addfile(info)
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def cifar_archive(path: Path, name: str, train: np.ndarray, test: np.ndarray, *extra: tarfile.TarInfo) -> Path:
    folder = datasets.DATASETS[name].folder
    return tar_gz(path, {f"{folder}/{f}": data for f, data in cifar_files(name, train, test).items()}, *extra)


def svhn_files(folder: Path, train: np.ndarray, test: np.ndarray) -> tuple[Path, Path]:
    """Write SVHN's files: image i has the digit i mod 10, and 0 is stored as 10."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / "train_32x32.mat", folder / "test_32x32.mat"
    for path, pixels in zip(paths, (train, test), strict=True):
        digits = np.array([i % 10 or 10 for i in range(len(pixels))], np.uint8)[:, None]
        savemat(path, {"X": pixels.transpose(1, 2, 3, 0), "y": digits}, do_compression=True)
    return paths


def describe(archive: datasets.Archive, path: Path) -> datasets.Archive:
    """Return the entry with the size and the checksums of a file."""
    content = path.read_bytes()
    sums = {"md5": hashlib.md5(content).hexdigest(), "sha256": hashlib.sha256(content).hexdigest()}
    return replace(archive, **sums, size=len(content))


def shrink(monkeypatch: pytest.MonkeyPatch, name: str, train: int, test: int, *paths: Path) -> None:
    """Give a data set this number of images, and the checksums of these files."""
    entry = datasets.DATASETS[name]
    archives = tuple(map(describe, entry.archives, paths)) if paths else entry.archives
    monkeypatch.setitem(
        datasets.DATASETS, name, replace(entry, splits={"train": train, "test": test}, archives=archives)
    )
