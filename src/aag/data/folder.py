"""Read a folder of image files of any formats and sizes.

- Subfolders `train` and `test` (or `val`) are the splits. Without them, the whole folder is the train split.
- Every image below the folder is taken, at any depth.
- If two or more subfolders of a split have images, they are its classes, in sorted order. Images outside them have the
  label −1: they are trained on, and evaluation leaves them out. With fewer subfolders, nothing is labelled.
- A test folder without any image is ignored. Without a test folder, a part of the labelled images can be held out.
- Images are cropped to their centre square and resized, to 32 pixels by default. They are decoded once (see `store`).
- Files that cannot be read are skipped and listed with the reason, and so are photographs in formats that Pillow does
  not read. Hidden files and other kinds of files are ignored.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from aag.data.arrays import SplitArrays, select_indices
from aag.data.hashes import hash_files
from aag.data.holdout import choose_held_out, has_test_error, no_labels_error
from aag.data.listing import (
    Listing,
    Survey,
    class_folder,
    list_images,
    no_image_error,
    printable,
    split_folders,
    survey,
)
from aag.data.store import Progress, open_images

__all__ = ["DEFAULT_SIZE", "Listing", "Survey", "list_images", "printable", "read", "survey"]

DEFAULT_SIZE = 32


@dataclass(frozen=True)
class _Part:
    """The files of one split before they are decoded."""

    folder: Path
    listing: Listing
    paths: Sequence[str]
    labels: np.ndarray | None  # int64 [N]; −1 outside the class folders
    variant: str = ""


def read(
    folder: Path,
    splits: Collection[str],
    image_size: int | None = None,
    limit: int | None = None,
    *,
    labels: str = "known",
    holdout: float | None = None,
    root: str | Path | None = None,
    progress: Progress | None = None,
) -> dict[str, SplitArrays]:
    """Return the requested splits that the folder contains. `limit` is the number of images to decode per split.

    With `labels` "none", class folders are not looked at. `holdout` is the part of the labelled images that becomes
    the test split. `root` is the folder of the stores.
    """
    folders = split_folders(folder)
    listings = {split: list_images(path) for split, path in folders.items()}
    if "test" in listings and not listings["test"].images and not listings["test"].skipped:
        del folders["test"], listings["test"]
    classes = _find_classes(listings.values()) if labels == "known" else []
    parts = {
        split: _Part(path, listings[split], listings[split].images, _label(listings[split].images, classes))
        for split, path in folders.items()
    }
    if holdout is not None:
        if "test" in parts:
            raise has_test_error(str(folder))
        parts = _hold_out(parts["train"], holdout, root)
    size = DEFAULT_SIZE if image_size is None else image_size
    names = tuple(map(printable, classes))
    return {s: _decode(part, names, size, limit, root, progress) for s, part in parts.items() if s in splits}


def _find_classes(listings: Collection[Listing]) -> list[str]:
    """Return the class folders. Both splits share them, even if one of them lacks some."""
    folders = {class_folder(image) for listing in listings for image in listing.images} - {""}
    return sorted(folders) if len(folders) > 1 else []


def _label(images: Sequence[str], classes: list[str]) -> np.ndarray | None:
    numbers = {name: number for number, name in enumerate(classes)}
    labels = np.array([numbers.get(class_folder(image), -1) for image in images], np.int64)
    return labels if (labels >= 0).any() else None


def _hold_out(part: _Part, fraction: float, root: str | Path | None) -> dict[str, _Part]:
    if part.labels is None:
        raise no_labels_error(str(part.folder))
    held_out = choose_held_out(hash_files(part.folder, part.paths, root), part.labels, fraction)
    parts = {}
    for split, chosen in (("train", ~held_out), ("test", held_out)):
        paths = [path for path, is_chosen in zip(part.paths, chosen, strict=True) if is_chosen]
        listing = part.listing if split == "train" else Listing(file_count=part.listing.file_count)
        parts[split] = _Part(part.folder, listing, paths, part.labels[chosen], f"{split} {fraction:g}")
    return parts


def _decode(
    part: _Part, classes: tuple[str, ...], size: int, limit: int | None, root: str | Path | None,
    progress: Progress | None,
) -> SplitArrays:  # fmt: skip
    paths, labels, variant = part.paths, part.labels, part.variant
    if limit is not None and limit < len(paths):
        chosen = select_indices(len(paths), limit)
        paths, variant = [paths[i] for i in chosen], f"{variant} {limit}"
        labels = None if labels is None else labels[chosen]
    stored = open_images(part.folder, paths, size, root=root, variant=variant, progress=progress)
    failures = stored.failures
    skipped = tuple(part.listing.skipped)
    skipped += tuple(f"{printable(paths[i])}: {failures[i]}" for i in sorted(failures))
    if not len(stored.images):
        raise no_image_error(part.folder, part.listing, skipped[0] if skipped else "")
    if failures:
        keep = [i for i in range(len(paths)) if i not in failures]
        paths, labels = [paths[i] for i in keep], None if labels is None else labels[keep]
    if labels is not None and labels.max() < 0:  # every labelled file is unreadable
        labels = None
    images = stored.images.transpose(0, 2, 3, 1)
    return SplitArrays(images, labels, classes if labels is not None else (), skipped, paths, stored.summary)
