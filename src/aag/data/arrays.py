"""What the readers hand over: numpy arrays of one split, before they become an `ImageSet`."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from aag.errors import AAGError

LARGEST_SIZE = 4096


@dataclass(frozen=True)
class Part:
    """One split. `images` is uint8 [N,H,W,3], perhaps a view in another memory order; `labels` is int64 [N]."""

    images: np.ndarray
    labels: np.ndarray | None
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True)
class Parts:
    """The splits that were asked for and exist, under "train" and "test"."""

    splits: dict[str, Part]
    classes: tuple[str, ...]


def check_size(image_size: int | None) -> None:
    if image_size is not None and not 1 <= image_size <= LARGEST_SIZE:
        raise AAGError(f"image_size is {image_size}, expected 1 to {LARGEST_SIZE} pixels")


def chosen(count: int, limit: int | None) -> np.ndarray:
    """Which of `count` images a limit keeps: spread over the whole set, in order, the same every time.

    The first `limit` would be a single class where files are sorted by class, every n-th a single class where labels
    go round. A hash of the position has neither fault, and a smaller limit keeps a part of what a larger one keeps.
    """
    if limit is not None and limit < 1:
        raise AAGError(f"limit is {limit}, expected at least 1 image")
    position = np.arange(count, dtype=np.uint64)
    if limit is None or limit >= count:
        return position.astype(np.int64)
    with np.errstate(over="ignore"):
        mixed = (position + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(32)
    return np.sort(np.argsort(mixed, kind="stable")[:limit])


def take(part: Part, limit: int | None) -> Part:
    """The part that a limit keeps."""
    if limit is None:
        return part
    keep = chosen(len(part.images), limit)
    return replace(part, images=part.images[keep], labels=None if part.labels is None else part.labels[keep])


def resized(images: np.ndarray, image_size: int | None, where: str) -> np.ndarray:
    """Square images [N,S,S,3]; of `image_size`, resampled as a folder's are, where one is given."""
    height, width = images.shape[1:3]
    if image_size is None and height != width:
        raise AAGError(f"{where}: images are {width}×{height}; give an image_size to cut and resize them to squares")
    if image_size is None or height == width == image_size:
        return images
    from PIL import Image

    from aag.data.decode import square

    out = np.empty((len(images), image_size, image_size, 3), np.uint8)

    def work(span: range) -> None:
        for i in span:
            out[i] = np.asarray(square(Image.fromarray(np.ascontiguousarray(images[i])), image_size))

    in_threads(work, spans(len(images)))
    return out


def spans(count: int, length: int = 64) -> list[range]:
    return [range(start, min(start + length, count)) for start in range(0, count, length)]


def in_threads(work: Callable[[range], None], jobs: Sequence[range]) -> None:
    """Run the jobs on every core: Pillow lets go of the interpreter while it decodes and resamples."""
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        try:
            for _ in pool.map(work, jobs):
                pass
        except BaseException:  # Ctrl-C must not wait for a million pictures
            pool.shutdown(wait=False, cancel_futures=True)
            raise
