"""`load`, `load_pair` and `as_image_sets`: turn what a user gives into `ImageSet`s."""

import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from aag.data import npz
from aag.data.arrays import SplitArrays, check_options, make_square, take, to_channels_last
from aag.data.cache import read_dataset
from aag.data.datasets import DATASETS, SPLITS, data_root
from aag.data.imageset import ImageSet
from aag.errors import AAGError, unknown

Split = Literal["train", "test", "unlabelled"]


def load(
    source: str | Path,
    *,
    split: Split = "train",
    root: str | Path | None = None,
    image_size: int | None = None,
    limit: int | None = None,
) -> ImageSet:
    """Load one split of a known data set (see `DATASETS`), of an .npz file or of a folder of image files.

    `root` is the folder of the known data sets (default: the environment variable AAG_DATA, else ~/.cache/aag).
    `image_size` crops images to their centre square and resizes it. Without it, images of a folder become 32×32 and
    all others keep their size. `limit` keeps that many images, spread over the split. Greys in files become RGB.

    A known name takes precedence over a folder of that name: for the folder write ./sample.
    """
    if split not in SPLITS:
        raise unknown("split", str(split), SPLITS)
    sets = _load_splits(source, (split,), root, image_size, limit)
    if split not in sets:
        raise AAGError(f"{source} has no {split} split; load its train split, or add a {split} split to it")
    return sets[split]


def load_pair(
    source: str | Path,
    *,
    root: str | Path | None = None,
    image_size: int | None = None,
    limit: int | None = None,
) -> tuple[ImageSet, ImageSet | None]:
    """Load the train and the test split of a source; test is None if there is none. Options are those of `load`."""
    sets = _load_splits(source, ("train", "test"), root, image_size, limit)
    return _check_pair(sets["train"], sets.get("test"), str(source))


def as_image_sets(
    images: Any, *, root: str | Path | None = None, image_size: int | None = None
) -> tuple[ImageSet, ImageSet | None]:
    """Return the training and the test images of any source; test is None if there are none.

    `images` is an `ImageSet`, a uint8 tensor [N, C, H, W], a uint8 array [N, H, W, C] or [N, C, H, W], a pair (train,
    test) of those, or what `load_pair` takes. Channels of tensors and arrays are kept as they are. For labelled
    tensors, make an `ImageSet`. `root` and `image_size` are those of `load`.
    """
    if isinstance(images, str | os.PathLike):
        return load_pair(images if isinstance(images, str) else Path(images), root=root, image_size=image_size)
    check_options(image_size)
    train, test = images if isinstance(images, tuple | list) and len(images) == 2 else (images, None)
    train_set = _as_image_set(train, "train", image_size)
    return _check_pair(train_set, None if test is None else _as_image_set(test, "test", image_size), "images")


def _as_image_set(images: Any, split: str, image_size: int | None) -> ImageSet:
    if isinstance(images, ImageSet):
        if image_size in (None, images.image_size):
            return images
        return replace(images, images=_make_square(images.images, image_size, images.name))
    if not isinstance(images, torch.Tensor | np.ndarray):
        raise AAGError(
            f"{split} images are a {type(images).__name__}; expected an ImageSet, a uint8 tensor [N, C, H, W], a uint8 "
            "array [N, H, W, C], a pair (train, test) of those, a path or the name of a data set"
        )
    name = f"{split} images"
    if images.dtype not in (torch.uint8, np.uint8):
        raise AAGError(f"{name} are {images.dtype}; give uint8 with values 0..255 (floats in [0, 1]: multiply by 255)")
    if images.ndim != 4 or 0 in images.shape:
        raise AAGError(f"{name} have the shape {list(images.shape)}, expected [N, C, H, W] with at least one image")
    if isinstance(images, torch.Tensor):
        if images.shape[3] in (1, 3) and images.shape[1] == images.shape[2] != images.shape[3]:
            raise AAGError(f"{name} have the shape {list(images.shape)}; move their channels: .permute(0, 3, 1, 2)")
    else:
        images = _channels_first(to_channels_last(images))
    return ImageSet("images", _make_square(images, image_size, name), split=split)


def _make_square(images: torch.Tensor, image_size: int | None, source: str) -> torch.Tensor:
    """Crop and resize a tensor [N, C, H, W] as `make_square` does; without a change of size, copy nothing."""
    if images.shape[2] == images.shape[3] and image_size in (None, images.shape[2]):
        return images.contiguous()
    resized = make_square(images.permute(0, 2, 3, 1).cpu().numpy(), image_size, source)
    return _channels_first(resized).to(images.device)


def _check_pair(train: ImageSet, test: ImageSet | None, source: str) -> tuple[ImageSet, ImageSet | None]:
    """Refuse a pair whose images differ in size or channels."""
    if test is not None and train.channels != test.channels:
        raise AAGError(f"{source}: train images have {train.channels} channels, test images have {test.channels}")
    if test is not None and train.image_size != test.image_size:
        sizes = f"train images have {train.image_size} pixels a side, test images have {test.image_size}"
        raise AAGError(f"{source}: {sizes}; use --image-size (image_size= in Python) to resize both")
    return train, test


def _load_splits(
    source: str | Path, splits: Collection[str], root: str | Path | None, image_size: int | None, limit: int | None
) -> dict[str, ImageSet]:
    check_options(image_size, limit)
    if not isinstance(source, str | Path):
        raise AAGError(f"the source is {source!r}; expected a path or one of {', '.join(DATASETS)}")
    if isinstance(source, str) and source in DATASETS:
        dataset = DATASETS[source]
        name, found = source, read_dataset(dataset, [split for split in splits if split in dataset.splits], root)
    else:
        path = Path(os.path.expanduser(source))
        found = _read_path(path, str(source), splits, image_size, limit)
        absolute = Path(os.path.abspath(path))
        name = (absolute.name if absolute.is_dir() else absolute.stem) or "images"
    out = {}
    for split, content in found.items():
        content = take(content, limit)
        out[split] = ImageSet(
            name=name,
            images=_channels_first(make_square(content.images, image_size, str(source))),
            labels=None if content.labels is None else torch.from_numpy(content.labels.astype(np.int64)),
            classes=content.classes if content.labels is not None else (),
            skipped=content.skipped,
            split=split,
        )
    return out


def _channels_first(images: np.ndarray) -> torch.Tensor:
    """Turn an array [N, H, W, C] into a tensor [N, C, H, W], with at most one copy."""
    return torch.from_numpy(np.require(images.transpose(0, 3, 1, 2), requirements=["C", "W"]))


def _read_path(
    path: Path, source: str, splits: Collection[str], image_size: int | None, limit: int | None
) -> dict[str, SplitArrays]:
    if source and os.path.isdir(path):
        from aag.data import folder

        return folder.read(path, splits, image_size, limit)
    expected = f"give a folder, an .npz or one of {', '.join(DATASETS)}"
    if not source or not os.path.exists(path):
        if path.suffix or os.sep in source or "/" in source or source.startswith((".", "~")):
            raise AAGError(f"no such file or folder: {source}; {expected}")
        raise unknown("data set", source, DATASETS, hint="and there is no file or folder of that name")
    for dataset in DATASETS.values():
        if path.name in [archive.file for archive in dataset.archives]:
            raise AAGError(
                f"{source} is an archive of {dataset.name}: move it to {data_root()} and load {dataset.name}"
            )
    if path.suffix.lower() != ".npz":
        raise AAGError(f"{source} is neither a folder nor an .npz; {expected}")
    found = npz.read(path, splits)
    return {s: replace(c, images=np.broadcast_to(c.images, (*c.images.shape[:3], 3))) for s, c in found.items()}
