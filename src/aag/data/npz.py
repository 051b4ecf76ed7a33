"""Sets in one `.npz`: read any of the usual layouts, write ours so that a crash never leaves half a file.

Keys: `train_images`, `train_labels`, `test_images`, `test_labels`; or `images`, `labels` (then there is no test part).
Labels are optional, and so is `classes`, the names behind them. Images are uint8 [N,H,W,3], [N,3,H,W] or grey [N,H,W].
"""

import zipfile
from collections.abc import Collection
from pathlib import Path

import numpy as np

from aag.data.arrays import Part, Parts
from aag.errors import AAGError
from aag.files import atomic_write_path


def read(path: Path, splits: Collection[str]) -> Parts:
    """The asked-for splits of an .npz; one that the file does not have is left out."""
    try:
        if not zipfile.is_zipfile(path):
            size = path.stat().st_size
            raise AAGError(f"{path} is empty" if not size else f"{path} is not an .npz, or damaged or cut off")
        with np.load(path, allow_pickle=False) as content:
            return _read(path, content, splits)
    except AAGError:
        raise
    except OSError as error:
        raise AAGError(f"cannot read {path}: {error.strerror or error}") from None
    except MemoryError:
        raise AAGError(f"{path} does not fit into memory; give a smaller set") from None
    except Exception as error:  # damaged bytes make zipfile and numpy raise nearly anything
        reason = str(error).split("\n")[0] or type(error).__name__
        if "allow_pickle" in reason:
            reason = "it holds pickled objects, which are not read; save plain uint8 and integer arrays"
        raise AAGError(f"cannot read {path}: {reason}") from None


def _read(path: Path, content: "np.lib.npyio.NpzFile", splits: Collection[str]) -> Parts:
    keys = set(content.files)
    prefix = {"train": "train_", "test": "test_"} if "train_images" in keys else {"train": "", "test": "test_"}
    if f"{prefix['train']}images" not in keys:
        found = ", ".join(sorted(keys)[:8]) or "nothing"
        raise AAGError(f"{path} holds {found}; expected train_images (and test_images) or images, each with labels")
    labels = {split: _labels(path, content, f"{p}labels") for split, p in prefix.items() if f"{p}labels" in keys}
    if "test" in labels and "test_images" not in keys:
        raise AAGError(f"{path} holds test_labels but no test_images")
    highest = max((int(array.max()) for array in labels.values() if len(array)), default=-1)
    classes = _classes(path, content, highest)
    out = {}
    for split in splits:
        key = f"{prefix[split]}images"
        if key not in keys:
            continue
        images = _channels_last(path, key, content[key])
        mine = labels.get(split)
        if mine is not None and len(mine) != len(images):
            raise AAGError(f"{path}: {len(mine)} labels for {len(images)} {split} images; one label each is needed")
        out[split] = Part(images, mine)
    return Parts(out, classes if labels else ())


def _labels(path: Path, content: "np.lib.npyio.NpzFile", key: str) -> np.ndarray:
    labels = content[key]
    if labels.dtype.kind not in "iu" or labels.ndim == 0 or labels.size != len(labels):
        raise AAGError(f"{path}: {key} is {labels.dtype} {list(labels.shape)}, expected integers [N]")
    labels = labels.reshape(-1).astype(np.int64)
    if len(labels) and labels.min() < 0:
        raise AAGError(f"{path}: {key} holds {labels.min()}; labels count from 0 (leave the key out for no labels)")
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


def _channels_last(path: Path, key: str, images: np.ndarray) -> np.ndarray:
    """A view [N,H,W,3]. A shape that can be read both ways is read as squares, and [N,3,3,3] as channels last."""
    if images.dtype != np.uint8:
        raise AAGError(f"{path}: {key} is {images.dtype}, expected uint8 (0 to 255)")
    shape = images.shape
    views = [images[..., None]] if images.ndim == 3 else []
    if images.ndim == 4:
        views = [view for view in (images, images.transpose(0, 2, 3, 1)) if view.shape[3] in (1, 3)]
    if not views:
        raise AAGError(f"{path}: {key} has the shape {list(shape)}, expected [N,H,W,3], [N,3,H,W] or [N,H,W]")
    if 0 in shape:
        raise AAGError(f"{path}: {key} has the shape {list(shape)}: there are no images in it")
    view = next((view for view in views if view.shape[1] == view.shape[2]), views[0])
    return np.broadcast_to(view, (*view.shape[:3], 3))


def write(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write an uncompressed .npz in full or not at all. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write_path(path) as temporary, temporary.open("xb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
