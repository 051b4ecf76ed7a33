"""Decode shards into the arrays of their splits, with labels and a held-out test split."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from aag.data.arrays import SplitArrays, select_indices
from aag.data.encoded import Label
from aag.data.folder import DEFAULT_SIZE, make_arrays
from aag.data.holdout import NoLabelsError, choose_held_out
from aag.data.shards import Shards
from aag.data.store import ProgressCallback, StoredImages, open_images
from aag.errors import AAGError
from aag.text import pluralize, printable


def read(
    splits: dict[str, Shards],
    image_size: int | None = None,
    limit: int | None = None,
    *,
    labels: str = "known",
    holdout: float | None = None,
    root: str | Path | None = None,
    progress: ProgressCallback | None = None,
) -> dict[str, SplitArrays]:
    """Return all splits, decoded. The options are those of `folder.read`.

    A holdout reads the shards once more, and a limit counts their samples: the choice depends on all of them.
    """
    if holdout is not None:
        splits = _hold_out(splits["train"], holdout)
    if limit is not None:
        splits = {split: _limit(shards, limit) for split, shards in splits.items()}
    size = DEFAULT_SIZE if image_size is None else image_size
    stored = {
        split: open_images(shards, size, root=root, variant=shards.variant, progress=progress)
        for split, shards in splits.items()
    }
    known = {split: images.labels if labels == "known" else [] for split, images in stored.items()}
    names = splits["train"].class_names() if any(known.values()) else ()
    numbers, classes = number_labels(known, names)
    return {split: _arrays(splits[split], stored[split], numbers.get(split), classes) for split in splits}


def number_labels(
    labels: dict[str, Sequence[Label]], names: tuple[str, ...] = ()
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Return the labels of each split as class numbers int64 [N], −1 without a label, and the names of the classes.

    Without `names`, classes are the different labels in sorted order, over all splits. Fewer than two are none.
    """
    values = {label for own in labels.values() for label in own if label is not None}
    if names:
        places: dict[Label, int] = {number: number for number in range(len(names))}
        places |= {name: number for number, name in enumerate(names)}
    else:
        is_numeric = all(isinstance(value, int) for value in values)
        ordered = sorted(values) if is_numeric else sorted(values, key=str)
        names = tuple(printable(str(value)) for value in ordered)
        places = {value: number for number, value in enumerate(ordered)}
    if len(values) < 2:
        return {}, ()
    numbers = {split: np.array([places.get(label, -1) for label in own], np.int64) for split, own in labels.items()}
    return numbers, names


def _hold_out(shards: Shards, fraction: float) -> dict[str, Shards]:
    @cache
    def held_out() -> list[np.ndarray]:
        scan = shards.scan()
        numbers, _ = number_labels({"train": scan.labels}, shards.class_names())
        if not numbers:
            raise NoLabelsError(shards.location)
        return _by_shard(choose_held_out(scan.hashes, numbers["train"], fraction), scan.counts)

    return {
        "train": shards.select(lambda: [~mask for mask in held_out()], f"train {fraction:g}"),
        "test": shards.select(held_out, f"test {fraction:g}"),
    }


def _limit(shards: Shards, limit: int) -> Shards:
    def chosen() -> list[np.ndarray]:
        masks = shards.keep() if shards.keep else [np.ones(count, bool) for count in shards.sample_counts()]
        keep = np.concatenate(masks)
        among = np.flatnonzero(keep)
        keep[:] = False
        keep[among[select_indices(len(among), limit)]] = True
        return _by_shard(keep, list(map(len, masks)))

    return shards.select(chosen, f"{shards.variant} {limit}")


def _by_shard(mask: np.ndarray, counts: list[int]) -> list[np.ndarray]:
    return np.split(mask, np.cumsum(counts)[:-1])


def _arrays(shards: Shards, stored: StoredImages, labels: np.ndarray | None, classes: tuple[str, ...]) -> SplitArrays:
    arrays = make_arrays(stored, stored.names, labels, classes)
    if not len(arrays.images):
        first = f" (first: {arrays.skipped[0]})" if arrays.skipped else ""
        counts = f"{pluralize(len(shards.shards), 'shard')}, {pluralize(len(stored.names), 'sample')}"
        raise AAGError(f"no readable image in {shards.location}: {counts}{first}")
    return arrays
