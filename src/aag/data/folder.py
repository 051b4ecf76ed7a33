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

import warnings
from collections.abc import Collection
from pathlib import Path

import numpy as np

from aag.data.arrays import SplitArrays, run_in_threads, select_indices
from aag.data.decode import UnreadableImageError, decode
from aag.data.listing import Listing, Survey, list_images, no_readable_image, printable, split_folders, survey
from aag.errors import AAGError

__all__ = ["DEFAULT_SIZE", "Listing", "Survey", "list_images", "printable", "read", "survey"]

DEFAULT_SIZE = 32


def read(
    folder: Path, splits: Collection[str], image_size: int | None = None, limit: int | None = None
) -> dict[str, SplitArrays]:
    """Return the requested splits that the folder contains. `limit` is the number of images to decode per split."""
    size = DEFAULT_SIZE if image_size is None else image_size
    folders = split_folders(folder)
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
        raise no_readable_image(folder, listing, skipped[0] if skipped else "")
    labels = None
    if names is not None:
        numbers = {name: i for i, name in enumerate(names)}
        labels = np.array([numbers[_class_folder(paths[i])] for i in keep], np.int64)
    classes = tuple(printable(name) for name in names or ())
    return SplitArrays(images[keep] if failures else images, labels, classes, skipped)
