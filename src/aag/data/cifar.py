"""CIFAR-10 and CIFAR-100 as published: Python 2 pickles, in a .tar.gz or already unpacked."""

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from aag.data.archive import check_md5, read_members
from aag.data.known import Known
from aag.errors import AAGError

_PIXELS = 3 * 32 * 32

_FILES = {  # split -> its files
    "cifar10": {"train": [f"data_batch_{i}" for i in range(1, 6)], "test": ["test_batch"]},
    "cifar100": {"train": ["train"], "test": ["test"]},
}
_KEYS = {  # the file of names; the keys of the labels and of the names
    "cifar10": ("batches.meta", b"labels", b"label_names"),
    "cifar100": ("meta", b"fine_labels", b"fine_label_names"),
}


class _DType:
    """Stands in for numpy.dtype while unpickling: keeps the code of the type, and takes its state without a look."""

    def __init__(self, code: bytes | str = b"", *_: Any) -> None:
        self.code = code.decode("latin-1") if isinstance(code, bytes) else code

    def __setstate__(self, state: Any) -> None:
        pass


class _Array:
    """Stands in for numpy.ndarray: numpy's own code never sees what an unknown file says about shapes and types."""

    array: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran_order, raw = state
        if dtype.code not in ("u1", "|u1", "uint8") or not isinstance(raw, bytes):
            raise pickle.UnpicklingError("an array of another type than uint8")
        self.array = np.frombuffer(raw, np.uint8).reshape(shape, order="F" if fortran_order else "C")


class _Unpickler(pickle.Unpickler):
    """Admits dicts, lists, bytes and numbers, which need no import, and uint8 arrays. Nothing a file names is run."""

    _ADMITTED: dict[tuple[str, str], Callable[..., Any]] = {  # noqa: RUF012  a constant table
        ("numpy.core.multiarray", "_reconstruct"): lambda *_: _Array(),
        ("numpy._core.multiarray", "_reconstruct"): lambda *_: _Array(),
        ("numpy", "ndarray"): _Array,
        ("numpy", "dtype"): _DType,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._ADMITTED:
            raise AAGError(f"a pickle that asks for {module}.{name}, which no CIFAR file needs; do not use this file")
        return self._ADMITTED[module, name]


def read(entry: Known, where: Path, *, packed: bool) -> dict[str, np.ndarray]:
    """The arrays of a CIFAR set, named as in an .npz: train_images [N,32,32,3], train_labels and so on."""
    splits, (meta, label_key, names_key), prefix = _FILES[entry.name], _KEYS[entry.name], entry.folder
    files = [file for batch in splits.values() for file in batch]
    if packed:
        check_md5(where, entry.archives[0].md5)
        members = read_members(where, [f"{prefix}/{file}" for file in [*files, meta]])
        raw = {name.removeprefix(f"{prefix}/"): data for name, data in members.items()}
    else:
        raw = {file: _bytes(where / file) for file in [*files, meta]}
    out: dict[str, np.ndarray] = {}
    for split, batch in splits.items():
        parts = [_batch(raw.pop(file), label_key, where / file) for file in batch]
        out[f"{split}_images"] = np.concatenate([images for images, _ in parts])
        out[f"{split}_labels"] = np.concatenate([labels for _, labels in parts])
    names = _unpickle(raw[meta], where / meta).get(names_key)
    if names != [name.encode() for name in entry.classes]:
        raise AAGError(f"{where / meta} does not name the classes of {entry.name}; it is another set")
    return out


def _batch(raw: bytes, label_key: bytes, where: Path) -> tuple[np.ndarray, np.ndarray]:
    content = _unpickle(raw, where)
    data, labels = content.get(b"data"), content.get(label_key)
    pixels = data.array if isinstance(data, _Array) else None
    if pixels is None or pixels.ndim != 2 or pixels.shape[1] != _PIXELS:
        raise AAGError(f"{where} holds no images of 3×32×32; it is not a file of this set")
    if not isinstance(labels, list) or len(labels) != len(pixels) or not all(type(n) is int for n in labels):
        raise AAGError(f"{where} does not hold one label for each of its {len(pixels)} images; it is damaged")
    if not all(0 <= n <= 255 for n in labels):
        raise AAGError(f"{where} holds a label outside 0..255; it is damaged")
    # A row is the red, the green and the blue plane.
    images = pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return images, np.array(labels, np.uint8)


def _unpickle(raw: bytes, where: Path) -> dict[Any, Any]:
    try:
        content = _Unpickler(io.BytesIO(raw), encoding="bytes").load()
    except AAGError as error:
        raise AAGError(f"{where} holds {error}") from None
    except Exception as error:  # damaged bytes make an unpickler raise nearly anything
        reason = str(error).split("\n")[0] or type(error).__name__
        raise AAGError(f"{where} is damaged ({reason}); delete it and fetch it again") from None
    if not isinstance(content, dict):
        raise AAGError(f"{where} holds a {type(content).__name__}, expected a dict; it is not a file of this set")
    return content


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise AAGError(f"cannot read {path}: {error.strerror or error}; delete its folder and fetch it again") from None
