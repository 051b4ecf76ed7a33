"""Estimate the number and the sizes of a source's images from a sample of their headers."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from aag.data.arrays import select_indices
from aag.data.decode import UnreadableImageError, ignore_warnings, read_size
from aag.data.encoded import ImageFiles, Item
from aag.data.listing import no_image_error
from aag.data.shard_files import find_images, list_local
from aag.data.shards import Shards
from aag.data.store import estimate_total
from aag.errors import AAGError
from aag.text import printable


@dataclass(frozen=True)
class Survey:
    """The number of images of a source, and their sizes, estimated from a sample."""

    count: int  # files with an image extension, below the folder or its train/; of tar archives an estimate
    sampled: int  # files whose header was read
    unreadable: int  # of those
    shorter_side: int  # median over the sample, in pixels
    shorter_side_range: tuple[int, int]  # 10th and 90th percentile
    mean_pixels: float  # width × height


def survey(source: str | Path, sample: int = 200) -> Survey:
    """Estimate the sizes of the training images of a folder or of shards from at most `sample` headers.

    Decodes nothing. Of shards, the first images are the sample.
    """
    shards, found = find_images(str(source))
    if shards is not None:
        return _survey_shards(shards["train"], sample)
    files, listing = (found or list_local(Path(source)))["train"]
    sizes, failures = _read_sizes(_sample_items(files, sample))
    if not sizes:
        raise no_image_error(files.location, listing, next(iter(failures), ""))
    return _summarize(files.count, sizes, len(sizes) + len(failures))


def _survey_shards(shards: Shards, sample: int) -> Survey:
    items: list[Item] = []
    for part in shards.parts(0, (), 0):
        items += part.items
        if len(items) >= sample:
            break
    count = shards.count or (estimate_total(len(items), part) if len(items) >= sample else len(items))
    sizes, failures = _read_sizes((item, Path()) for item in items[:sample])
    if not sizes:
        reason = f" (first: {failures[0]})" if failures else ""
        raise AAGError(f"no readable image among the first {len(failures)} samples of {shards.location}{reason}")
    return _summarize(count, sizes, len(sizes) + len(failures))


def _sample_items(files: ImageFiles, sample: int) -> Iterator[tuple[Item, Path]]:
    chosen = files.select(select_indices(files.count, sample))
    for part in chosen.parts(0, (), 0):
        loaded = chosen.load(part)
        yield from ((item, loaded.folder) for item in loaded.items)


def _read_sizes(items: Iterator[tuple[Item, Path]]) -> tuple[list[tuple[int, int]], list[str]]:
    """Return width and height of each readable image, and the reasons for the others, after the paths of files."""
    sizes, failures = [], []
    with ignore_warnings():
        for item, folder in items:
            try:
                if isinstance(item, UnreadableImageError):
                    raise item
                sizes.append(read_size(folder / item if isinstance(item, str) else item))
            except UnreadableImageError as reason:
                failures.append(f"{printable(item)}: {reason}" if isinstance(item, str) else str(reason))
    return sizes, failures


def _summarize(count: int, sizes: list[tuple[int, int]], sampled: int) -> Survey:
    shorter = np.min(sizes, axis=1)
    low, median, high = np.percentile(shorter, (10, 50, 90), method="lower").tolist()
    mean_pixels = float(np.prod(np.array(sizes, np.float64), axis=1).mean())
    return Survey(count, sampled, sampled - len(sizes), median, (low, high), mean_pixels)
