"""List the image files below a folder."""

import os
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from aag.data.decode import readable_extensions
from aag.errors import AAGError
from aag.text import pluralize, printable

# Formats of photographs that Pillow cannot read. Users should know that these files are missing.
_UNSUPPORTED = frozenset({".heic", ".heif", ".jxl", ".cr2", ".cr3", ".nef", ".arw", ".dng", ".orf", ".rw2", ".raf"})
T = TypeVar("T")
TEST_NAMES = ("test", "val", "valid", "validation")


@dataclass
class Listing:
    """The image files in a folder, as paths relative to it with "/"; the skipped files, and the number of all files."""

    images: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    file_count: int = 0

    def add(self, name: str) -> None:
        """Count a file, and list it if it is an image or a photograph that Pillow cannot read."""
        self.file_count += 1
        extension = name[name.rfind(".") :].lower()
        if extension in readable_extensions():
            self.images.append(name)
        elif extension in _UNSUPPORTED:
            self.skipped.append(f"{printable(name)}: Pillow cannot read this format; convert it to JPEG")


def no_image_error(folder: Path | str, listing: Listing, first: str = "") -> AAGError:
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
    folders = {c.name.lower(): Path(c.path) for c in children if is_folder(c) and not c.name.startswith(".")}
    return _choose_splits(folders, folder, any(is_image(child.name) for child in children))


def split_names(paths: Collection[str]) -> dict[str, str]:
    """Return the start of the paths of each split, such as "train/"."""
    top = {path.partition("/")[0] for path in paths if "/" in path}
    folders = {name.lower(): f"{name}/" for name in sorted(top)}
    return _choose_splits(folders, "", any("/" not in path and is_image(path) for path in paths))


def _choose_splits(folders: dict[str, T], whole: T, has_images: bool) -> dict[str, T]:
    """Choose the split folders from subfolders by lower-case name. has_images: whether images are next to them."""
    test = next((folders[name] for name in TEST_NAMES if name in folders), None)
    if "train" in folders and test is not None:
        return {"train": folders["train"], "test": test}
    # A single folder `train` is a split. Next to other folders or images it is a class: the vehicle.
    is_split = len(folders) == 1 and not has_images
    return {"train": folders.get("train", whole) if is_split else whole}


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
            if is_folder(child):
                subfolders.append(relative)
            else:
                listing.add(relative)
        pending += reversed(subfolders)
    listing.images.sort()
    return listing


def class_folder(name: str) -> str:
    """Return the first folder of an image's path, which is its class; empty for an image outside all subfolders."""
    return name.split("/", 1)[0] if "/" in name else ""


def is_image(name: str) -> bool:
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in readable_extensions()


def is_folder(entry: os.DirEntry[str]) -> bool:
    # entry.is_dir() raises for a link to itself; os.path.isdir returns False.
    return entry.is_dir(follow_symlinks=False) or (entry.is_symlink() and os.path.isdir(entry.path))


def _identity(path: Path) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino
