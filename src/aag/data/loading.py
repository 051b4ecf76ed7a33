"""`load`, `load_pair` and `as_image_sets`: turn paths, names, arrays and tensors into `ImageSet`s."""

import os
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from aag.data import npz
from aag.data.arrays import SplitArrays, apply_limit, check_options, make_square, to_channels_last
from aag.data.cache import read_dataset
from aag.data.datasets import DATASETS, SPLITS, data_root
from aag.data.holdout import check_holdout, hold_out
from aag.data.hub import PREFIX as HUB_PREFIX
from aag.data.imageset import ImageSet, check_dense
from aag.data.shard_files import find_images, is_remote
from aag.data.store import ProgressCallback
from aag.errors import AAGError, describe, unknown_name
from aag.text import printable

Split = Literal["train", "test", "unlabelled"]
Labels = Literal["known", "none"]
TrainTestSets = tuple[ImageSet, ImageSet | None]  # training and test images; None: there are no test images


@dataclass(frozen=True)
class _Options:
    """How to load a source; see `load`."""

    root: str | Path | None = None
    image_size: int | None = None
    limit: int | None = None
    labels: Labels = "known"
    holdout: float | None = None
    progress: ProgressCallback | None = None

    def __post_init__(self) -> None:
        check_options(self.image_size, self.limit)
        check_holdout(self.holdout)
        if not isinstance(self.labels, str) or self.labels not in ("known", "none"):
            raise unknown_name("labels", self.labels, ("known", "none"))
        if self.holdout is not None and self.labels == "none":
            raise AAGError("--holdout is for evaluation with labels; leave it out, or leave out --labels none")


def load(
    source: str | Path,
    *,
    split: Split = "train",
    root: str | Path | None = None,
    image_size: int | None = None,
    limit: int | None = None,
    labels: Labels = "known",
    holdout: float | None = None,
    progress: ProgressCallback | None = None,
) -> ImageSet:
    """Load one split of a known data set (see `DATASETS`), a folder of image files, shards or an .npz file.

    Shards are tar archives as WebDataset writes them, Parquet or Arrow files: one, a pattern such as
    "train-{000..099}.tar", or a folder of them. Folders and shards may be URLs. "hf:OWNER/NAME" is a data set of the
    Hugging Face Hub.

    `root` is the folder of the known data sets and of the decoded images (default: the environment variable AAG_DATA,
    else ~/.cache/aag). `image_size` crops images to their centre square and resizes it. Without it, images of a folder
    become 32×32 and all others keep their size. `limit` keeps that many images, spread over the split. `labels` "none"
    leaves out all labels. `holdout` makes a test split, such as 0.1 of the labelled images, chosen by a hash of their
    content; the source's own test split is then not read. `progress(done, total)` is called while files are decoded.
    Greys in files become RGB.

    A known name takes precedence over a folder of that name: for the folder write ./sample.
    """
    if not isinstance(split, str) or split not in SPLITS:
        raise unknown_name("split", split, SPLITS)
    options = _Options(root, image_size, limit, labels, holdout, progress)
    sets = _load_splits(source, (split,), options)
    if split not in sets:
        raise AAGError(f"{source} has no {split} split; load its train split, or add a {split} split to it")
    return sets[split]


def load_pair(
    source: str | Path,
    *,
    root: str | Path | None = None,
    image_size: int | None = None,
    limit: int | None = None,
    labels: Labels = "known",
    holdout: float | None = None,
    progress: ProgressCallback | None = None,
) -> tuple[ImageSet, ImageSet | None]:
    """Load the train and the test split of a source; test is None if there is none. Options are those of `load`."""
    options = _Options(root, image_size, limit, labels, holdout, progress)
    sets = _load_splits(source, ("train", "test"), options)
    return _check_pair(sets["train"], sets.get("test"), str(source))


def as_image_sets(
    images: Any,
    *,
    root: str | Path | None = None,
    image_size: int | None = None,
    labels: Labels = "known",
    holdout: float | None = None,
) -> tuple[ImageSet, ImageSet | None]:
    """Return the training and the test images of any source; test is None if there are none.

    images: an `ImageSet`, a uint8 tensor [N, C, H, W], a uint8 array [N, H, W, C] or [N, C, H, W], a pair (train, test)
    of those, or a source of `load_pair`. Tensors and arrays keep their channels. For labelled tensors, make an
    `ImageSet`. The options are those of `load`.
    """
    options = _Options(root, image_size, labels=labels, holdout=holdout)
    if isinstance(images, str | os.PathLike):
        return load_pair(images if isinstance(images, str) else Path(images), **vars(options))
    train, test = images if isinstance(images, tuple | list) and len(images) == 2 else (images, None)
    sets = {"train": _as_image_set(train, "train", image_size)}
    if test is not None:
        sets["test"] = _as_image_set(test, "test", image_size)
    sets = _apply_labels(sets, options)
    return _check_pair(sets["train"], sets.get("test"), "images")


def _as_image_set(images: Any, split: str, image_size: int | None) -> ImageSet:
    if isinstance(images, ImageSet):
        if image_size in (None, images.image_size):
            return images
        return replace(images, images=_make_square(images.images, image_size, images.name))
    if not isinstance(images, torch.Tensor | np.ndarray):
        raise AAGError(
            f"{split} images are a {type(images).__name__}; expected an ImageSet, a uint8 tensor [N, C, H, W], a uint8 "
            "array [N, H, W, C], a pair (train, test) of those, a path or the name of a data set; stack the images of "
            "a list or Dataset with torch.stack"
        )
    name = f"{split} images"
    if images.dtype not in (torch.uint8, np.uint8):
        raise AAGError(f"{name} are {images.dtype}; give uint8 with values 0..255 (floats in [0, 1]: multiply by 255)")
    if images.ndim != 4 or 0 in images.shape:
        raise AAGError(f"{name} have the shape {list(images.shape)}, expected [N, C, H, W] with at least one image")
    if isinstance(images, torch.Tensor):
        check_dense(name, images)
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
    """Return the pair; raise if its images differ in size, channels or classes."""
    if test is not None and train.channels != test.channels:
        raise AAGError(f"{source}: train images have {train.channels} channels, test images have {test.channels}")
    if test is not None and train.image_size != test.image_size:
        sizes = f"train images have {train.image_size} pixels a side, test images have {test.image_size}"
        raise AAGError(f"{source}: {sizes}; use --image-size (image_size= in Python) to resize both")
    if test is None or train.labels is None or test.labels is None:
        return train, test
    if tuple(train.classes) != tuple(test.classes):
        advice = "load both with aag.data.load_pair, or give both the same classes"
        raise AAGError(f"{source}: the labels of train and test images count different classes; {advice}")
    return train, test


def _load_splits(source: str | Path, splits: Collection[str], options: _Options) -> dict[str, ImageSet]:
    if not isinstance(source, str | Path):
        raise AAGError(f"the source is {describe(source)}; expected a path or one of {', '.join(DATASETS)}")
    # Held-out training images replace the test split, which is not read.
    wanted = set(splits) - {"test"} | {"train"} if options.holdout else splits
    if isinstance(source, str) and source in DATASETS:
        dataset = DATASETS[source]
        found = read_dataset(dataset, [split for split in wanted if split in dataset.splits], options.root)
        name, is_folder = source, False
    else:
        found, is_folder = _read_source(str(source), splits, wanted, options)
        name = printable(source_name(str(source))) or "images"
    out = {}
    for split, content in found.items():
        content = content if options.holdout else apply_limit(content, options.limit)
        image_set = ImageSet(
            name=name,
            images=_channels_first(make_square(content.images, options.image_size, str(source))),
            labels=None if content.labels is None else torch.from_numpy(content.labels.astype(np.int64)),
            classes=content.classes if content.labels is not None else (),
            skipped=content.skipped,
            split=split,
            names=content.names,
        )
        out[split] = image_set.with_summary(content.summary)
    if not is_folder:
        out = _apply_labels(out, options)
    return {split: out[split] for split in splits if split in out}


def _apply_labels(sets: dict[str, ImageSet], options: _Options) -> dict[str, ImageSet]:
    """Remove the labels, or hold out test images by them, where the options say so."""
    if options.labels == "none":
        return {split: replace(each, labels=None, classes=()) for split, each in sets.items()}
    if options.holdout is None:
        return sets
    train, test = hold_out(sets["train"], options.holdout, options.limit)
    return sets | {"train": train, "test": test}


def source_name(source: str) -> str:
    """Return the last part of a path, a URL or a name of the Hub, without an extension of a file.

    A pattern without a word, such as *.tar or {000..099}.tar, is named by its folder.
    """
    if is_remote(source):
        folder, _, name = source.rstrip("/").rpartition("/")
        name, folder = re.sub(r"\.(tar|parquet|arrow)$", "", name.removeprefix(HUB_PREFIX)), folder.rpartition("/")[2]
    else:
        absolute = Path(os.path.abspath(os.path.expanduser(source)))
        name, folder = absolute.name if os.path.isdir(absolute) else absolute.stem, absolute.parent.name
    return folder if folder and re.fullmatch(r"[\d*{},.]*[*{][\d*{},.]*", name) else name


def _read_source(
    source: str, splits: Collection[str], wanted: Collection[str], options: _Options
) -> tuple[dict[str, SplitArrays], bool]:
    """Read shards, a folder, a URL or a file; also return whether labels and holdout were applied."""
    path = Path(os.path.expanduser(source))
    for dataset in DATASETS.values():
        if path.name in [archive.file for archive in dataset.archives] and os.path.exists(path):
            target = data_root(options.root)
            raise AAGError(f"{source} is an archive of {dataset.name}: move it to {target} and load {dataset.name}")
    shards, files = find_images(source) if source else (None, None)
    if shards is not None:
        from aag.data import sharded

        if options.labels == "none":  # else the classes are those of all splits
            shards = {split: own for split, own in shards.items() if split in wanted}
        return sharded.read(shards, **vars(options)), True
    if files is not None:
        from aag.data import folder

        return folder.read(files, splits, **vars(options)), True
    return _read_file(path, source, wanted), False


def _channels_first(images: np.ndarray) -> torch.Tensor:
    """Turn an array [N, H, W, C] into a tensor [N, C, H, W], with at most one copy."""
    return torch.from_numpy(np.require(images.transpose(0, 3, 1, 2), requirements=["C", "W"]))


def _read_file(path: Path, source: str, splits: Collection[str]) -> dict[str, SplitArrays]:
    expected = f"give a folder, shards, an .npz or one of {', '.join(DATASETS)}"
    if not source or not os.path.exists(path):
        if path.suffix or os.sep in source or "/" in source or source.startswith((".", "~")):
            raise AAGError(f"no such file or folder: {source}; {expected}")
        raise unknown_name("data set", source, DATASETS, hint="and there is no file or folder of that name")
    if path.suffix.lower() != ".npz":
        raise AAGError(f"{source} is neither a folder nor an .npz; {expected}")
    found = npz.read(path, splits)
    return {s: replace(c, images=np.broadcast_to(c.images, (*c.images.shape[:3], 3))) for s, c in found.items()}
