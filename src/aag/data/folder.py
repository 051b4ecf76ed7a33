"""A folder of pictures of any formats and sizes.

- Children named `train` and `test` (or `val`) are the splits; otherwise the whole folder is the train part.
- The subfolders of a part are its classes, in sorted order, however deep the files lie below them; a flat folder has
  no labels, nor has one with a single subfolder, which tells nothing apart. Where pictures lie both loose and in
  subfolders, the larger group decides: the loose ones are skipped, or nothing is labelled.
- A test part without any picture is none.
- Pictures are cut to their centre square and resized to 32 pixels unless another size is given.
- A file that cannot be used is skipped and named with the reason, and so is a photograph of a format that Pillow does
  not read. Hidden files and other kinds of files are ignored.
"""

import os
import warnings
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from aag.data.arrays import Part, Parts, chosen, in_threads, spans
from aag.errors import AAGError

DEFAULT_SIZE = 32
# Photographs all the same, which their owner would miss.
_FOREIGN = frozenset({".heic", ".heif", ".jxl", ".cr2", ".cr3", ".nef", ".arw", ".dng", ".orf", ".rw2", ".raf"})
_TEST_NAMES = ("test", "val", "valid", "validation")


@dataclass
class _Found:
    """What a walk came upon: pictures as paths relative to the part's folder, with "/" between."""

    pictures: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    files: int = 0


def read(folder: Path, splits: Collection[str], image_size: int | None = None, limit: int | None = None) -> Parts:
    """The asked-for splits of a folder; one that it does not have is left out."""
    size = DEFAULT_SIZE if image_size is None else image_size
    homes = _homes(folder)
    found = {split: _walk(home) for split, home in homes.items()}
    if "test" in found and not found["test"].pictures and not found["test"].skipped:
        del homes["test"], found["test"]
    labelled = {split: _in_classes(part) for split, part in found.items()}
    # Both parts speak of the same classes, even where one of them lacks some.
    inside = [p for split, part in found.items() if labelled[split] for p in part.pictures if "/" in p]
    names = sorted(set(map(_class_of, inside)))
    if len(names) < 2:
        names, labelled = [], dict.fromkeys(found, False)
    for split, part in found.items():
        if labelled[split]:
            _drop_loose(part)
    out = {}
    for split, home in homes.items():
        if split in splits:
            out[split] = _decode(home, found[split], names if labelled[split] else None, size, limit)
    return Parts(out, tuple(_shown(name) for name in names))


def _homes(folder: Path) -> dict[str, Path]:
    """The folder of each split."""
    try:
        children = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise AAGError(f"cannot read {folder}: {error.strerror or error}") from None
    folders = {c.name.lower(): Path(c.path) for c in children if _is_folder(c) and not c.name.startswith(".")}
    test = next((folders[name] for name in _TEST_NAMES if name in folders), None)
    if "train" in folders and test is not None:
        return {"train": folders["train"], "test": test}
    # A lone `train` is a split without its partner; beside other folders it is a class of vehicles.
    alone = len(folders) == 1 and not any(_is_picture(child.name) for child in children)
    return {"train": folders["train"] if alone and "train" in folders else folder}


def _is_picture(name: str) -> bool:
    from aag.data.decode import extensions

    return not name.startswith(".") and os.path.splitext(name)[1].lower() in extensions()


def _walk(home: Path) -> _Found:
    """Every picture below a folder. Links are followed, but no real folder is entered twice, and none above `home`."""
    found = _Found()
    here = home.resolve()
    entered = {_identity(place) for place in here.parents}
    waiting = [""]
    while waiting:
        inside = waiting.pop()
        try:
            identity = _identity(home / inside)
            if identity in entered:
                continue
            entered.add(identity)
            children = sorted(os.scandir(home / inside), key=lambda entry: entry.name)
        except OSError as error:
            found.skipped.append(f"{_shown(inside) or '.'}: {error.strerror or error}")
            continue
        folders = []
        for child in children:
            if child.name.startswith("."):
                continue
            relative = f"{inside}/{child.name}" if inside else child.name
            if _is_folder(child):
                folders.append(relative)
                continue
            found.files += 1
            if _is_picture(child.name):
                found.pictures.append(relative)
            elif os.path.splitext(child.name)[1].lower() in _FOREIGN:
                found.skipped.append(f"{_shown(relative)}: of a format that Pillow does not read; convert it to JPEG")
        waiting += reversed(folders)
    found.pictures.sort()
    return found


def _is_folder(entry: os.DirEntry[str]) -> bool:
    # A link to itself makes entry.is_dir() raise; os.path.isdir says no.
    return entry.is_dir(follow_symlinks=False) or (entry.is_symlink() and os.path.isdir(entry.path))


def _identity(place: Path) -> tuple[int, int]:
    status = os.stat(place)
    return status.st_dev, status.st_ino


def _class_of(picture: str) -> str:
    return picture.split("/", 1)[0]


def _in_classes(found: _Found) -> bool:
    """Whether most pictures lie in subfolders."""
    return 2 * sum("/" in picture for picture in found.pictures) > len(found.pictures)


def _drop_loose(found: _Found) -> None:
    """Moves pictures outside every class folder to the skipped ones."""
    loose = [picture for picture in found.pictures if "/" not in picture]
    found.skipped += [f"{_shown(picture)}: lies beside the class folders, so it has no class" for picture in loose]
    found.pictures = [picture for picture in found.pictures if "/" in picture]


def _decode(home: Path, found: _Found, names: list[str] | None, size: int, limit: int | None) -> Part:
    from aag.data.decode import Unusable, decode

    pictures = [found.pictures[i] for i in chosen(len(found.pictures), limit)]
    try:
        # Planes in memory, [N,H,W,3] to look at: as a tensor they need no copy.
        images = np.empty((len(pictures), 3, size, size), np.uint8).transpose(0, 2, 3, 1)
    except MemoryError:
        what = f"{len(pictures):,} images of {size}×{size} pixels"
        raise AAGError(f"{what} do not fit into memory; take a smaller image size, or fewer images") from None
    reasons: dict[int, str] = {}

    def work(span: range) -> None:
        for i in span:
            try:
                images[i] = decode(home / pictures[i], size)
            except Unusable as reason:
                reasons[i] = str(reason)

    with warnings.catch_warnings():
        # What Pillow warns of is either decoded all the same or ends up among the skipped.
        warnings.simplefilter("ignore")
        in_threads(work, spans(len(pictures), 16))
    skipped = tuple(found.skipped) + tuple(f"{_shown(pictures[i])}: {reasons[i]}" for i in sorted(reasons))
    keep = [i for i in range(len(pictures)) if i not in reasons]
    if not keep:
        first = f" (the first: {skipped[0]})" if skipped else ""
        raise AAGError(
            f"no readable image in {home}: looked at {found.files} files, "
            f"{len(found.pictures)} of them named like an image{first}"
        )
    labels = None
    if names is not None:
        number = {name: i for i, name in enumerate(names)}
        labels = np.array([number[_class_of(pictures[i])] for i in keep], np.int64)
    return Part(images[keep] if reasons else images, labels, skipped)


def _shown(name: str) -> str:
    """A file's name as one line that any terminal can print."""
    return "".join(letter if letter.isprintable() else "?" for letter in name)
