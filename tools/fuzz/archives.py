"""Targets: .npz files, and the archives of CIFAR and SVHN."""

import gzip
import hashlib
import io
import pickle
import tarfile
import warnings
import zipfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from aag import data
from aag.data import readers
from aag.data.datasets import DATASETS, Archive, Dataset, StoredFiles
from fuzz.target import Target


def _images(count: int = 4, size: int = 6) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, size, size, 3), np.uint8)


def _npz(compressed: bool = False, **arrays: Any) -> bytes:
    out = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(out, **arrays)
    return out.getvalue()


@cache
def npz_seeds() -> list[bytes]:
    """Return .npz files of all layouts."""
    images, labels = _images(), np.arange(4)
    splits = {"train_images": images, "train_labels": labels, "test_images": images, "test_labels": labels}
    return [
        _npz(images=images),
        _npz(compressed=True, images=images, labels=labels),
        _npz(**splits, classes=np.array(["a", "b", "c", "d"])),
        _npz(images=images.transpose(0, 3, 1, 2), unlabelled_images=images[..., 0]),
    ]


def repair_zip(content: bytes) -> bytes:
    """Write the members of a damaged zip again, with correct checksums, as far as they can be found."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as written, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of duplicate names
        for place in _find_all(content, b"\x93NUMPY"):
            end = content.find(b"PK\x03\x04", place)
            number = len(written.namelist())
            name = ("images.npy", "labels.npy", "classes.npy", "test_images.npy")[number % 4]
            written.writestr(name, content[place : end if end > 0 else len(content)])
    return out.getvalue()


def _find_all(content: bytes, part: bytes) -> list[int]:
    places = [content.find(part)]
    while places[-1] >= 0 and len(places) < 9:
        places.append(content.find(part, places[-1] + 1))
    return [place for place in places if place >= 0]


# --- CIFAR and SVHN -------------------------------------------------------------------------------------------------


def _entry(name: str, path: Path, count: int = 4) -> Dataset:
    """Return a data set's entry with the checksums of a file, which the reader then accepts."""
    content = path.read_bytes()
    archive = DATASETS[name].archives[0]
    known = {
        "md5": hashlib.md5(content).hexdigest(),
        "sha256": hashlib.sha256(content).hexdigest(),
        "size": len(content),
    }
    archive = replace(archive, **{key: value for key, value in known.items() if key in Archive.__dataclass_fields__})
    return replace(DATASETS[name], archives=(archive,), splits={"train": count})


@cache
def cifar_pickles() -> dict[str, bytes]:
    """Return the files of a small CIFAR-100, pickled as Python 2 did."""
    pixels = _images(4, 32).reshape(4, 3072)
    words = [name.encode() for name in DATASETS["cifar100"].classes]

    def text(value: bytes) -> bytes:
        return (b"U" + bytes([len(value)]) if len(value) < 256 else b"T" + len(value).to_bytes(4, "little")) + value

    def batch() -> bytes:
        labels = b"](" + b"".join(b"K" + bytes([i]) for i in range(4)) + b"e"
        dtype = (
            b"cnumpy\ndtype\n("
            + text(b"u1")
            + b"K\0K\x01tR(K\x03"
            + text(b"|")
            + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"
        )
        array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\0t" + text(b"b") + b"tR"
        state = b"(K\x01(K\x04M\x00\x0ct" + dtype + b"\x89" + text(pixels.tobytes()) + b"tb"
        return b"\x80\x02}q\0(" + text(b"fine_labels") + b"q\x01" + labels + text(b"data") + array + state + b"u."

    names = b"\x80\x02}(" + text(b"fine_label_names") + b"](" + b"".join(map(text, words)) + b"eu."
    return {"train": batch(), "test": batch(), "meta": names}


def write_tars(members: dict[str, bytes]) -> list[bytes]:
    """Return archives of these files, one for each of the formats that tar has."""
    archives = []
    for kind in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode="w", format=kind) as tar:
            for name, member in members.items():
                info = tarfile.TarInfo(name)
                info.size, info.pax_headers = len(member), {"comment": "x"}
                tar.addfile(info, io.BytesIO(member))
        archives.append(content.getvalue())
    return archives


@cache
def tar_seeds() -> list[bytes]:
    """Return .tar files of CIFAR-100, in the formats that tar has."""
    return write_tars({f"{DATASETS['cifar100'].folder}/{name}": member for name, member in cifar_pickles().items()})


def _read_tar(path: Path) -> None:
    path.write_bytes(gzip.compress(path.read_bytes(), 1))
    _read_archive(path)


def _read_archive(path: Path) -> None:
    readers.read_cifar100(_entry("cifar100", path), StoredFiles("archives", (path,)))


def _read_pickle(path: Path) -> None:
    """Read the file as the train file of an unpacked CIFAR-100."""
    folder = path.parent / "unpacked"
    folder.mkdir(exist_ok=True)
    for name, content in cifar_pickles().items():
        (folder / name).write_bytes(path.read_bytes() if name == "train" else content)
    readers.read_cifar100(DATASETS["cifar100"], StoredFiles("folder", (folder,)))


@cache
def pickle_seeds() -> list[bytes]:
    """Return a pickle of CIFAR-100, and some with more than it needs."""
    shared = [b"x", ("y", 2.5), {"z": None}]
    rich = [pickle.dumps({b"data": shared, b"again": shared, "set": {1, 2}}, protocol) for protocol in range(6)]
    return [cifar_pickles()["train"], *rich]


@cache
def mat_seeds() -> list[bytes]:
    """Return .mat files like SVHN's: compressed, plain and of version 4."""
    from scipy.io import savemat

    out = []
    for options in ({"do_compression": True}, {"do_compression": False}):
        content = io.BytesIO()
        digits = np.arange(1, 5, dtype=np.uint8)[:, None]
        savemat(content, {"X": _images(4, 32).transpose(1, 2, 3, 0), "y": digits, "note": "text"}, **options)
        out.append(content.getvalue())
    content = io.BytesIO()
    savemat(content, {"X": np.eye(4), "y": np.arange(4.0)}, format="4")
    return [*out, content.getvalue()]


def _read_mat(path: Path) -> None:
    readers.read_svhn(_entry("svhn", path), StoredFiles("archives", (path,)))


TARGETS = {
    "npz": Target(npz_seeds, lambda path: data.load_pair(path), ".npz", repair=repair_zip),
    "cifar-tar": Target(tar_seeds, _read_tar, ".tar"),
    "cifar-archive": Target(lambda: [gzip.compress(tar) for tar in tar_seeds()], _read_archive, ".tar.gz"),
    "cifar-pickle": Target(pickle_seeds, _read_pickle, ".pkl"),
    "svhn-mat": Target(mat_seeds, _read_mat, ".mat"),
}
