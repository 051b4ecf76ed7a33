"""List the image files below a folder, and survey their sizes."""

import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from aag.data.arrays import select_indices
from aag.data.decode import UnreadableImageError, ignore_warnings, read_size, readable_extensions
from aag.errors import AAGError
from aag.text import pluralize, printable

# Formats of photographs that Pillow cannot read. Users should know that these files are missing.
_UNSUPPORTED = frozenset({".heic", ".heif", ".jxl", ".cr2", ".cr3", ".nef", ".arw", ".dng", ".orf", ".rw2", ".raf"})
TEST_NAMES = ("test", "val", "valid", "validation")


@dataclass
class Listing:
    """The image files in a folder, as paths relative to it with "/"; the skipped files, and the number of all files."""

    images: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    file_count: int = 0


@dataclass(frozen=True)
class Survey:
    """The number of images in a folder, and their sizes, estimated from a sample."""

    count: int  # files with an image extension, below the folder or its train/
    sampled: int  # files whose header was read
    unreadable: int  # of those
    shorter_side: int  # median over the sample, in pixels
    shorter_side_range: tuple[int, int]  # 10th and 90th percentile
    mean_pixels: float  # width × height


def survey(folder: str | Path, sample: int = 200) -> Survey:
    """Estimate the sizes of a folder's training images from the headers of at most `sample` files. Decodes nothing."""
    path = split_folders(Path(os.path.expanduser(folder)))["train"]
    listing = list_images(path)
    chosen = select_indices(len(listing.images), sample)
    sizes = []
    with ignore_warnings():
        for i in chosen:
            try:
                sizes.append(read_size(path / listing.images[i]))
            except UnreadableImageError:
                continue
    if not sizes:
        raise no_image_error(path, listing)
    shorter = np.min(sizes, axis=1)
    low, median, high = np.percentile(shorter, (10, 50, 90), method="lower").tolist()
    mean_pixels = float(np.prod(np.array(sizes, np.float64), axis=1).mean())
    return Survey(len(listing.images), len(chosen), len(chosen) - len(sizes), median, (low, high), mean_pixels)


def no_image_error(folder: Path, listing: Listing, first: str = "") -> AAGError:
    """Return the error for a folder without a readable image. `first`: a file that failed, with the reason."""
    counts = f"{pluralize(listing.file_count, 'file')}, {len(listing.images)} with an image extension"
    first = first or next(iter(listing.skipped), "")
    return AAGError(f"no readable image in {folder}: {counts}" + (f" (first: {first})" if first else ""))


def split_folders(folder: Path) -> dict[str, Path]:
    """Return the folder of each split: train, and test where there is one."""
    try:
        children = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise AAGError(f"cannot read {folder}: {error.strerror or error}") from None
    folders = {c.name.lower(): Path(c.path) for c in children if _is_folder(c) and not c.name.startswith(".")}
    test = next((folders[name] for name in TEST_NAMES if name in folders), None)
    if "train" in folders and test is not None:
        return {"train": folders["train"], "test": test}
    # A single folder `train` is a split. Next to other folders it is a class: the vehicle.
    is_only = len(folders) == 1 and not any(_is_image(child.name) for child in children)
    return {"train": folders["train"] if is_only and "train" in folders else folder}


def list_images(folder: Path) -> Listing:
    """List every image below a folder. Links are followed, but no folder is visited twice, and none above `folder`."""
    listing, extensions = Listing(), readable_extensions()
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
            extension = child.name[child.name.rfind(".") :].lower()
            if extension in extensions:
                listing.images.append(relative)
            elif extension in _UNSUPPORTED:
                listing.skipped.append(f"{printable(relative)}: Pillow cannot read this format; convert it to JPEG")
        pending += reversed(subfolders)
    listing.images.sort()
    return listing


def class_folder(name: str) -> str:
    """Return the first folder of an image's path, which is its class; empty for an image outside all subfolders."""
    return name.split("/", 1)[0] if "/" in name else ""


def _is_image(name: str) -> bool:
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in readable_extensions()


def _is_folder(entry: os.DirEntry[str]) -> bool:
    # entry.is_dir() raises for a link to itself; os.path.isdir returns False.
    return entry.is_dir(follow_symlinks=False) or (entry.is_symlink() and os.path.isdir(entry.path))


def _identity(path: Path) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino
