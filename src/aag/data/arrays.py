"""NumPy arrays of one split, as the readers return them, and operations on them."""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from aag.data.summary import PixelSummary
from aag.errors import AAGError, describe
from aag.provenance import core_count

MAX_IMAGE_SIZE = 4096
THREAD_IMAGES = 64  # that a thread resizes at a time
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class SplitArrays:
    """One split: uint8 images [N, H, W, C] in any memory order, integer labels [N] or None, and the class names.

    `names` are those of the files, and `summary` is what is known of the pixels; both are empty for other sources.
    """

    images: np.ndarray
    labels: np.ndarray | None
    classes: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    names: Sequence[str] = ()
    summary: PixelSummary | None = None


def check_options(image_size: int | None, limit: int | None = None) -> None:
    """Raise if an image size or a limit is out of range."""
    if image_size is not None and not (type(image_size) is int and 1 <= image_size <= MAX_IMAGE_SIZE):
        raise AAGError(f"image_size is {describe(image_size)}, expected 1 to {MAX_IMAGE_SIZE} pixels")
    if limit is not None and not (type(limit) is int and limit >= 1):
        raise AAGError(f"limit is {describe(limit)}, expected at least 1 image")


def select_indices(count: int, limit: int | None) -> np.ndarray:
    """Return the sorted indices [min(count, limit)] of the images that a limit keeps. They are always the same.

    The first `limit` images can all be of one class if files are sorted by class; every n-th image can be if labels
    alternate. A hash of the index avoids both. A smaller limit keeps a subset of what a larger one keeps.
    """
    index = np.arange(count, dtype=np.uint64)
    if limit is None or limit >= count:
        return index.astype(np.int64)
    with np.errstate(over="ignore"):
        mixed = (index + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(32)
    return np.sort(np.argsort(mixed, kind="stable")[:limit])


def apply_limit(split: SplitArrays, limit: int | None) -> SplitArrays:
    """Return the images and labels that a limit keeps."""
    if limit is None or limit >= len(split.images):
        return split
    keep = select_indices(len(split.images), limit)
    labels = None if split.labels is None else split.labels[keep]
    names = [split.names[i] for i in keep] if split.names else ()
    return replace(split, images=split.images[keep], labels=labels, names=names, summary=None)


def to_channels_last(images: np.ndarray) -> np.ndarray:
    """Return a view [N, H, W, C] of an array [N, H, W, C] or [N, C, H, W].

    If both layouts are possible, prefer the one with 1 or 3 channels, then the one with square images, then channels
    last.
    """
    layouts = [images, images.transpose(0, 2, 3, 1)]
    likely = [layout for layout in layouts if layout.shape[3] in (1, 3)] or layouts
    return next((layout for layout in likely if layout.shape[1] == layout.shape[2]), likely[0])


def make_square(images: np.ndarray, image_size: int | None, source: str) -> np.ndarray:
    """Crop images [N, H, W, C] to their centre square and resize it to `image_size`, as is done for a folder.

    Without an `image_size`, square images are returned unchanged and others raise an error: the networks and
    augmentations expect squares.
    """
    height, width, channels = images.shape[1:]
    if image_size is None and height != width:
        advice = "use --image-size (image_size= in Python) to crop and resize them to squares"
        raise AAGError(f"{source}: images are {width}×{height} pixels; {advice}")
    if image_size is None or height == width == image_size:
        return images
    from aag.data.decode import resize_square

    out = np.empty((len(images), image_size, image_size, channels), np.uint8)

    def resize_from(start: int) -> None:
        for i in range(start, min(start + THREAD_IMAGES, len(images))):
            out[i] = resize_square(images[i], image_size)

    map_in_threads(resize_from, range(0, len(images), THREAD_IMAGES))
    return out


def map_in_threads(work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Return the results of `work` for all items, in order, with a thread for each core."""
    with ThreadPoolExecutor(core_count()) as pool:
        try:
            return list(pool.map(work, items))
        except BaseException:  # Ctrl-C must not wait for a million images
            pool.shutdown(wait=False, cancel_futures=True)
            raise
