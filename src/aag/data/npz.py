"""Read and write image sets as one `.npz` file.

Keys: `train_images`, `train_labels`, `test_images`, `test_labels`; or `images`, `labels` for training images only.
`unlabelled_images` is a further split. Labels are optional, and so are their names, `classes`. Images are uint8
[N, H, W, C] or [N, C, H, W] with 1 or 3 channels, or grey [N, H, W]. Types and sizes are checked before reading.
"""

import math
import zipfile
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np

from aag.data.arrays import SplitArrays, to_channels_last
from aag.data.datasets import SPLITS
from aag.data.npz_members import ArrayHeader, NpzArrays, open_arrays
from aag.errors import AAGError, first_line
from aag.files import atomic_write_path, open_regular
from aag.text import printable

MAX_CLASSES = 1_000_000


def read(path: Path, splits: Collection[str]) -> dict[str, SplitArrays]:
    """Return the requested splits that the file contains. Images are [N, H, W, C] with 1 or 3 channels."""
    try:
        with open_regular(path) as file:
            if not zipfile.is_zipfile(file):
                size = path.stat().st_size
                raise AAGError(f"{path} is empty" if not size else f"{path} is not an .npz, or damaged or truncated")
        with open_arrays(path) as content:
            return _read(path, content, splits)
    except AAGError:
        raise
    except MemoryError as error:
        reason = f": {first_line(error)}" if str(error) else ""
        raise AAGError(f"{path} does not fit into memory{reason}; use fewer or smaller images") from None
    except Exception as error:  # damaged bytes make zipfile and NumPy raise nearly anything
        raise AAGError(f"cannot read {path}: {printable(first_line(error))[:300]}") from None


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


def _read(path: Path, content: NpzArrays, splits: Collection[str]) -> dict[str, SplitArrays]:
    prefixes = {split: f"{split}_" for split in SPLITS}
    if "train_images" not in content:
        prefixes["train"] = ""
    if f"{prefixes['train']}images" not in content:
        found = printable(", ".join(sorted(content)[:8]))[:200] or "nothing"
        expected = "images, or train_images and test_images; labels are optional"
        raise AAGError(f"{path} contains {found}; expected {expected}")
    if "test_labels" in content and "test_images" not in content:
        raise AAGError(f"{path} contains test_labels but no test_images")
    labels = {split: _labels(path, content, split, prefix) for split, prefix in prefixes.items()}
    highest = max((int(array.max()) for array in labels.values() if array is not None and len(array)), default=-1)
    classes = _classes(path, content, highest)
    keys = {split: f"{prefixes[split]}images" for split in splits if f"{prefixes[split]}images" in content}
    content.check_memory(sum(_check_images(path, key, content.header(key)) for key in keys.values()))
    out = {}
    for split, key in keys.items():
        own = labels[split]
        images = content[key]
        images = to_channels_last(images if images.ndim == 4 else images[..., None])
        out[split] = SplitArrays(images, own, classes if own is not None else ())
    return out


def _labels(path: Path, content: NpzArrays, split: str, prefix: str) -> np.ndarray | None:
    key = f"{prefix}labels"
    if key not in content:
        return None
    header, images = content.header(key), content.header(f"{prefix}images") if f"{prefix}images" in content else None
    if header.dtype.kind not in "iu" or not header.shape or math.prod(header.shape) != header.shape[0]:
        raise AAGError(f"{path}: {key} is {header.dtype} {list(header.shape)}, expected integers [N]")
    count = images.shape[0] if images and images.shape else 0
    if images and header.shape[0] != count:
        raise AAGError(f"{path}: {header.shape[0]} labels for {count} {split} images; one label each is needed")
    labels = content[key].reshape(-1).astype(np.int64)
    if len(labels) and (labels.min() < -1 or labels.max() < 0):
        raise AAGError(
            f"{path}: {key} contains {labels.min()}; labels count from 0, and -1 is an image without a label"
        )
    return labels


def _classes(path: Path, content: NpzArrays, highest: int) -> tuple[str, ...]:
    if "classes" not in content:
        if highest >= MAX_CLASSES:
            raise AAGError(f"{path}: the highest label is {highest}; labels are class numbers counting from 0")
        return tuple(str(number) for number in range(highest + 1))
    header = content.header("classes")
    if header.dtype.kind not in "US" or len(header.shape) != 1 or header.shape[0] > MAX_CLASSES:
        raise AAGError(f"{path}: classes is {header.dtype} {list(header.shape)}, expected strings [C]")
    names = content["classes"]
    if highest >= len(names):
        raise AAGError(f"{path}: the highest label is {highest}, but classes has {len(names)} names")
    return tuple(n.decode("utf-8", "replace") if isinstance(n, bytes) else str(n) for n in names.tolist())


def _check_images(path: Path, key: str, header: ArrayHeader) -> int:
    """Check the type and the shape of images, and return the bytes of memory that loading them takes."""
    shape = list(header.shape)
    if header.dtype != np.uint8:
        raise AAGError(f"{path}: {key} is {header.dtype}, expected uint8 (0 to 255)")
    if 0 in shape:
        raise AAGError(f"{path}: {key} has the shape {shape}: it contains no images")
    if len(shape) not in (3, 4) or (len(shape) == 4 and not {1, 3} & {shape[1], shape[3]}):
        raise AAGError(f"{path}: {key} has the shape {shape}, expected [N, H, W, 3], [N, 3, H, W] or [N, H, W]")
    if len(shape) == 3 or 3 not in (shape[1], shape[3]):
        return 4 * header.nbytes  # and the same as RGB
    return header.nbytes if shape[3] != 3 else 2 * header.nbytes  # channels are moved to the front
