"""Read a folder of image files of any formats and sizes, on this machine or at a URL.

- Subfolders `train` and `test` (or `val`) are the splits. Without them, the whole folder is the train split.
- Every image below the folder is taken, at any depth.
- If two or more subfolders of a split have images, they are its classes, in sorted order. Images outside them have the
  label −1: they are trained on, and evaluation leaves them out. With fewer subfolders, nothing is labelled.
- A test folder without any image is ignored. A part of the labelled training images can be held out in its place.
- Images are cropped to their centre square and resized, to 32 pixels by default. They are decoded once (see `store`).
- Files that cannot be read are skipped and listed with the reason, and so are photographs in formats that Pillow does
  not read. Hidden files and other kinds of files are ignored.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from aag.data.arrays import SplitArrays, select_indices
from aag.data.encoded import ImageFiles
from aag.data.hashes import hash_files
from aag.data.holdout import NoLabelsError, choose_held_out
from aag.data.listing import Listing, class_folder, no_image_error
from aag.data.store import ProgressCallback, StoredImages, open_images
from aag.text import printable

DEFAULT_SIZE = 32


@dataclass(frozen=True)
class _Part:
    """The files of one split before they are decoded."""

    files: ImageFiles
    listing: Listing
    labels: np.ndarray | None  # int64 [N]; −1 outside the class folders
    variant: str = ""

    def select(self, chosen: np.ndarray, variant: str) -> "_Part":
        labels = None if self.labels is None else self.labels[chosen]
        return replace(self, files=self.files.select(chosen), labels=labels, variant=variant)


def read(
    found: dict[str, tuple[ImageFiles, Listing]],
    splits: Collection[str],
    image_size: int | None = None,
    limit: int | None = None,
    *,
    labels: str = "known",
    holdout: float | None = None,
    root: str | Path | None = None,
    progress: ProgressCallback | None = None,
) -> dict[str, SplitArrays]:
    """Return the requested splits of a folder or a URL. `limit` is the number of images to decode per split.

    found: the image files of each split; see `find_images`.

    With `labels` "none", class folders are not looked at. `holdout` is the part of the labelled training images that
    replaces the test split. `root` is the folder of the stores.
    """
    if "test" in found and (holdout is not None or not (found["test"][0].count or found["test"][1].skipped)):
        found = {"train": found["train"]}
    classes = _find_classes([files.paths for files, _ in found.values()]) if labels == "known" else []
    parts = {split: _Part(files, listing, _label(files.paths, classes)) for split, (files, listing) in found.items()}
    if holdout is not None:
        parts = _hold_out(parts["train"], holdout, root)
    size = DEFAULT_SIZE if image_size is None else image_size
    names = tuple(map(printable, classes))
    return {s: _decode(part, names, size, limit, root, progress) for s, part in parts.items() if s in splits}


def _find_classes(splits: Collection[Sequence[str]]) -> list[str]:
    """Return the class folders. Both splits share them, even if one of them lacks some."""
    folders = {class_folder(path) for paths in splits for path in paths} - {""}
    return sorted(folders) if len(folders) > 1 else []


def _label(images: Sequence[str], classes: list[str]) -> np.ndarray | None:
    numbers = {name: number for number, name in enumerate(classes)}
    labels = np.array([numbers.get(class_folder(image), -1) for image in images], np.int64)
    return labels if (labels >= 0).any() else None


def _hold_out(part: _Part, fraction: float, root: str | Path | None) -> dict[str, _Part]:
    if part.labels is None:
        raise NoLabelsError(part.files.location)
    held_out = choose_held_out(hash_files(part.files, root), part.labels, fraction)
    train, test = (
        part.select(np.flatnonzero(chosen), f"{split} {fraction:g}")
        for split, chosen in (("train", ~held_out), ("test", held_out))
    )
    return {"train": train, "test": replace(test, listing=Listing(file_count=part.listing.file_count))}


def _decode(
    part: _Part, classes: tuple[str, ...], size: int, limit: int | None, root: str | Path | None,
    progress: ProgressCallback | None,
) -> SplitArrays:  # fmt: skip
    if limit is not None and limit < part.files.count:
        part = part.select(select_indices(part.files.count, limit), f"{part.variant} {limit}")
    stored = open_images(part.files, size, root=root, variant=part.variant, progress=progress)
    arrays = make_arrays(stored, part.files.paths, part.labels, classes, part.listing.skipped)
    if not len(arrays.images):
        raise no_image_error(part.files.location, part.listing, next(iter(arrays.skipped), ""))
    return arrays


def make_arrays(
    stored: StoredImages,
    names: Sequence[str],
    labels: np.ndarray | None,
    classes: tuple[str, ...],
    skipped: Sequence[str] = (),
) -> SplitArrays:
    """Return the decoded images. `names` and `labels` include files that failed, which are added to `skipped`."""
    failures = stored.failures
    skipped = (*skipped, *(f"{printable(names[i])}: {failures[i]}" for i in sorted(failures)))
    if failures:
        keep = [i for i in range(len(names)) if i not in failures]
        names, labels = [names[i] for i in keep], None if labels is None else labels[keep]
    if labels is not None and labels.max(initial=-1) < 0:  # every labelled image is unreadable
        labels = None
    images = stored.images.transpose(0, 2, 3, 1)
    return SplitArrays(images, labels, classes if labels is not None else (), skipped, names, stored.summary)
