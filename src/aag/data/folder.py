"""Read a folder of image files of any formats and sizes.

- Subfolders `train` and `test` (or `val`) are the splits. Without them, the whole folder is the train split.
- The subfolders of a split are its classes, in sorted order; images may be at any depth below them. A folder without
  subfolders, or with only one, has no labels. If some images are outside the subfolders, the larger group decides:
  either those images are skipped, or nothing is labelled.
- A test folder without any image is ignored.
- Images are cropped to their centre square and resized, to 32 pixels by default.
- Files that cannot be read are skipped and listed with the reason, and so are photographs in formats that Pillow does
  not read. Hidden files and other kinds of files are ignored.
"""

import os
import warnings
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from aag.data.arrays import SplitArrays, run_in_threads, select_indices
from aag.data.decode import UnreadableImageError, decode, readable_extensions
from aag.errors import AAGError
from aag.text import pluralize

DEFAULT_SIZE = 32
# Formats of photographs that Pillow does not read; their owner wants to know that they are missing.
_UNSUPPORTED = frozenset({".heic", ".heif", ".jxl", ".cr2", ".cr3", ".nef", ".arw", ".dng", ".orf", ".rw2", ".raf"})
_TEST_NAMES = ("test", "val", "valid", "validation")


@dataclass
class Listing:
    """The files below a folder. Image paths are relative to it and use "/"."""

    images: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    file_count: int = 0


def read(
    folder: Path, splits: Collection[str], image_size: int | None = None, limit: int | None = None
) -> dict[str, SplitArrays]:
    """Return the requested splits that the folder contains. `limit` is the number of images to decode per split."""
    size = DEFAULT_SIZE if image_size is None else image_size
    folders = _split_folders(folder)
    listings = {split: list_images(path) for split, path in folders.items()}
    if "test" in listings and not listings["test"].images and not listings["test"].skipped:
        del folders["test"], listings["test"]
    labelled = {split: _has_class_folders(listing) for split, listing in listings.items()}
    # Both splits share the list of classes, even if one of them lacks some.
    inside = [p for split, listing in listings.items() if labelled[split] for p in listing.images if "/" in p]
    names = sorted(set(map(_class_folder, inside)))
    if len(names) < 2:
        names, labelled = [], dict.fromkeys(listings, False)
    for split, listing in listings.items():
        if labelled[split]:
            _skip_unclassified(listing)
    return {
        split: _decode_all(path, listings[split], names if labelled[split] else None, size, limit)
        for split, path in folders.items()
        if split in splits
    }


def _split_folders(folder: Path) -> dict[str, Path]:
    """Return the folder of each split."""
    try:
        children = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise AAGError(f"cannot read {folder}: {error.strerror or error}") from None
    folders = {c.name.lower(): Path(c.path) for c in children if _is_folder(c) and not c.name.startswith(".")}
    test = next((folders[name] for name in _TEST_NAMES if name in folders), None)
    if "train" in folders and test is not None:
        return {"train": folders["train"], "test": test}
    # `train` as the only folder is a split. Beside other folders it is a class: a vehicle.
    is_only = len(folders) == 1 and not any(_is_image(child.name) for child in children)
    return {"train": folders["train"] if is_only and "train" in folders else folder}


def _is_image(name: str) -> bool:
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in readable_extensions()


def list_images(folder: Path) -> Listing:
    """List every image below a folder. Links are followed, but no folder is visited twice, and none above `folder`."""
    listing = Listing()
    visited = {_identity(parent) for parent in folder.resolve().parents}
    pending = [""]
    while pending:
        inside = pending.pop()
        try:
            identity = _identity(folder / inside)
            if identity in visited:
                continue
            visited.add(identity)
            children = sorted(os.scandir(folder / inside), key=lambda entry: entry.name)
        except OSError as error:
            listing.skipped.append(f"{printable(inside) or '.'}: {error.strerror or error}")
            continue
        subfolders = []
        for child in children:
            if child.name.startswith("."):
                continue
            relative = f"{inside}/{child.name}" if inside else child.name
            if _is_folder(child):
                subfolders.append(relative)
                continue
            listing.file_count += 1
            if _is_image(child.name):
                listing.images.append(relative)
            elif os.path.splitext(child.name)[1].lower() in _UNSUPPORTED:
                listing.skipped.append(f"{printable(relative)}: Pillow cannot read this format; convert it to JPEG")
        pending += reversed(subfolders)
    listing.images.sort()
    return listing


def _is_folder(entry: os.DirEntry[str]) -> bool:
    # entry.is_dir() raises for a link to itself; os.path.isdir returns False.
    return entry.is_dir(follow_symlinks=False) or (entry.is_symlink() and os.path.isdir(entry.path))


def _identity(path: Path) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _class_folder(image: str) -> str:
    return image.split("/", 1)[0]


def _has_class_folders(listing: Listing) -> bool:
    """Return whether most images are in subfolders."""
    return 2 * sum("/" in image for image in listing.images) > len(listing.images)


def _skip_unclassified(listing: Listing) -> None:
    """Move images outside every class folder to the skipped files."""
    loose = [image for image in listing.images if "/" not in image]
    listing.skipped += [f"{printable(image)}: not in a class folder" for image in loose]
    listing.images = [image for image in listing.images if "/" in image]


def _decode_all(folder: Path, listing: Listing, names: list[str] | None, size: int, limit: int | None) -> SplitArrays:
    paths = [listing.images[i] for i in select_indices(len(listing.images), limit)]
    try:
        # A view [N, H, W, 3] of channels-first memory: the tensor needs no copy.
        images = np.empty((len(paths), 3, size, size), np.uint8).transpose(0, 2, 3, 1)
    except MemoryError:
        what = f"{len(paths):,} images of {size}×{size} pixels"
        raise AAGError(f"{what} do not fit into memory; use a smaller --image-size or fewer images") from None
    failures: dict[int, str] = {}

    def decode_range(indices: range) -> None:
        for i in indices:
            try:
                images[i] = decode(folder / paths[i], size)
            except UnreadableImageError as reason:
                failures[i] = str(reason)

    with warnings.catch_warnings():
        # Images that Pillow warns about are either decoded or listed as skipped.
        warnings.simplefilter("ignore")
        run_in_threads(decode_range, len(paths), chunk=16)
    skipped = tuple(listing.skipped) + tuple(f"{printable(paths[i])}: {failures[i]}" for i in sorted(failures))
    keep = [i for i in range(len(paths)) if i not in failures]
    if not keep:
        counts = f"{pluralize(listing.file_count, 'file')}, {len(listing.images)} with an image extension"
        raise AAGError(f"no readable image in {folder}: {counts}" + (f" (first: {skipped[0]})" if skipped else ""))
    labels = None
    if names is not None:
        numbers = {name: i for i, name in enumerate(names)}
        labels = np.array([numbers[_class_folder(paths[i])] for i in keep], np.int64)
    classes = tuple(printable(name) for name in names or ())
    return SplitArrays(images[keep] if failures else images, labels, classes, skipped)


def printable(name: str) -> str:
    """Replace the characters of a file name that a terminal cannot print."""
    return "".join(letter if letter.isprintable() else "?" for letter in name)
