"""Read and write image sets as one `.npz` file.

Keys: `train_images`, `train_labels`, `test_images`, `test_labels`; or `images`, `labels` for training images only.
`unlabelled_images` is a further split. Labels are optional, and so are their names, `classes`. Images are uint8
[N, H, W, C] or [N, C, H, W] with 1 or 3 channels, or grey [N, H, W].
"""

import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np

from aag.data.arrays import SplitArrays, to_channels_last
from aag.data.datasets import SPLITS
from aag.errors import AAGError, first_line
from aag.files import atomic_write_path
from aag.text import printable


def read(path: Path, splits: Collection[str]) -> dict[str, SplitArrays]:
    """Return the requested splits that the file contains. Images are [N, H, W, C] with 1 or 3 channels."""
    try:
        if not zipfile.is_zipfile(path):
            size = path.stat().st_size
            raise AAGError(f"{path} is empty" if not size else f"{path} is not an .npz, or damaged or truncated")
        with np.load(path, allow_pickle=False) as content:
            return _read(path, content, splits)
    except AAGError:
        raise
    except MemoryError:
        raise AAGError(f"{path} does not fit into memory; use fewer or smaller images") from None
    except Exception as error:  # damaged bytes make zipfile and NumPy raise nearly anything
        reason = first_line(error)
        if "allow_pickle" in reason:
            reason = "it contains pickled objects, which are not read; save plain uint8 and integer arrays"
        raise AAGError(f"cannot read {path}: {reason}") from None


def write(path: Path, splits: Mapping[str, SplitArrays]) -> None:
    """Write an uncompressed .npz atomically. Raises OSError."""
    arrays = {}
    for split, content in splits.items():
        arrays[f"{split}_images"] = content.images
        if content.labels is not None:
            arrays |= {f"{split}_labels": content.labels, "classes": np.array(content.classes)}
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write_path(path) as temporary, temporary.open("xb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def _read(path: Path, content: "np.lib.npyio.NpzFile", splits: Collection[str]) -> dict[str, SplitArrays]:
    keys = set(content.files)
    prefixes = {split: f"{split}_" for split in SPLITS}
    if "train_images" not in keys:
        prefixes["train"] = ""
    if f"{prefixes['train']}images" not in keys:
        found = printable(", ".join(sorted(keys)[:8]))[:200] or "nothing"
        raise AAGError(f"{path} contains {found}; expected train_images (and test_images) or images, each with labels")
    labels = {split: _labels(path, content, f"{p}labels") for split, p in prefixes.items() if f"{p}labels" in keys}
    if "test" in labels and "test_images" not in keys:
        raise AAGError(f"{path} contains test_labels but no test_images")
    highest = max((int(array.max()) for array in labels.values() if len(array)), default=-1)
    classes = _classes(path, content, highest)
    out = {}
    for split in splits:
        key = f"{prefixes[split]}images"
        if key not in keys:
            continue
        images, own = _images(path, key, content[key]), labels.get(split)
        if own is not None and len(own) != len(images):
            raise AAGError(f"{path}: {len(own)} labels for {len(images)} {split} images; one label each is needed")
        out[split] = SplitArrays(images, own, classes if own is not None else ())
    return out


def _labels(path: Path, content: "np.lib.npyio.NpzFile", key: str) -> np.ndarray:
    labels = content[key]
    if labels.dtype.kind not in "iu" or labels.ndim == 0 or labels.size != len(labels):
        raise AAGError(f"{path}: {key} is {labels.dtype} {list(labels.shape)}, expected integers [N]")
    labels = labels.reshape(-1).astype(np.int64)
    if len(labels) and (labels.min() < -1 or labels.max() < 0):
        raise AAGError(
            f"{path}: {key} contains {labels.min()}; labels count from 0, and -1 is an image without a label"
        )
    return labels


def _classes(path: Path, content: "np.lib.npyio.NpzFile", highest: int) -> tuple[str, ...]:
    if "classes" not in content.files:
        if highest >= 1_000_000:
            raise AAGError(f"{path}: the highest label is {highest}; labels are class numbers counting from 0")
        return tuple(str(number) for number in range(highest + 1))
    names = content["classes"]
    if names.dtype.kind not in "US" or names.ndim != 1:
        raise AAGError(f"{path}: classes is {names.dtype} {list(names.shape)}, expected strings [C]")
    if highest >= len(names):
        raise AAGError(f"{path}: the highest label is {highest}, but classes has {len(names)} names")
    return tuple(n.decode("utf-8", "replace") if isinstance(n, bytes) else str(n) for n in names.tolist())


def _images(path: Path, key: str, images: np.ndarray) -> np.ndarray:
    """Return a view [N, H, W, C]."""
    if images.dtype != np.uint8:
        raise AAGError(f"{path}: {key} is {images.dtype}, expected uint8 (0 to 255)")
    shape = list(images.shape)
    if images.ndim == 3:
        images = images[..., None]
    if images.ndim == 4:
        images = to_channels_last(images)
    if images.ndim != 4 or images.shape[3] not in (1, 3):
        raise AAGError(f"{path}: {key} has the shape {shape}, expected [N, H, W, 3], [N, 3, H, W] or [N, H, W]")
    if 0 in shape:
        raise AAGError(f"{path}: {key} has the shape {shape}: it contains no images")
    return images
