"""Open images by name, from a folder, single files, shards, a URL, an .npz or a known data set."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from aag import data
from aag.data import DATASETS, ImageSet
from aag.data.decode import UnreadableImageError, decode, resize_square
from aag.data.listing import TEST_NAMES, class_folder, list_images
from aag.data.shard_files import is_remote, is_sharded
from aag.errors import AAGError
from aag.serving.table import EmbeddingTable
from aag.text import printable

SPLIT_FOLDERS = {"train", *TEST_NAMES}


@dataclass(frozen=True, eq=False)
class ImageSource:
    """N images by name. `paths` are their files, or `sets` their pixels."""

    source: str  # a folder's absolute path, or a data set's name
    names: list[str]
    paths: list[str] = field(default_factory=list)  # strings: a million Path objects take a gigabyte
    sets: tuple[ImageSet, ...] = ()
    skipped: list[str] = field(default_factory=list)  # "path: reason" of files that cannot be listed

    def __len__(self) -> int:
        return len(self.names)

    def load(self, index: int, size: int) -> np.ndarray:
        """Return an image as uint8 [size, size, C]. Raises UnreadableImageError with a short reason."""
        if self.paths:
            return decode(Path(self.paths[index]), size)
        for each in self.sets:
            if index < len(each):
                pixels = each.images[index].permute(1, 2, 0).contiguous().numpy()
                return resize_square(pixels, size)
            index -= len(each)
        raise UnreadableImageError("no such image")

    def states(self) -> Iterator[str]:
        """Yield what changes with the images: of files name, size and time; of sets a hash, classes and names."""
        for each in self.sets:
            yield f"{each.split} {each.fingerprint()}"
            yield from (*each.classes, *each.names)
        for name, path in zip(self.names, self.paths, strict=False):
            try:
                status = os.stat(path)
                yield f"{name}\0{status.st_size}\0{status.st_mtime_ns}"
            except OSError:
                yield f"{name}\0"

    def labels(self) -> list[str] | None:
        """Return the class of each image, by its label or subfolder; "" for unlabelled images, None without classes."""
        if self.sets:
            if any(each.labels is None for each in self.sets):
                return None
            numbers = [(each.classes, label) for each in self.sets for label in each.labels.tolist()]  # type: ignore[union-attr]
            return [classes[label] if label >= 0 else "" for classes, label in numbers]
        return class_folders(self.names)


def class_folders(names: Sequence[str]) -> list[str] | None:
    """Return the class folder of each name, inside train/ or test/ where all names begin so; "" outside the folders.

    Returns None for fewer than two class folders.
    """
    if all(class_folder(name).lower() in SPLIT_FOLDERS for name in names):
        names = [name.partition("/")[2] for name in names]
    found = [class_folder(name) for name in names]
    return found if len({*found} - {""}) > 1 else None


def open_source(
    images: str | Path | Sequence[str | Path], size: int, *, data_root: str | Path | None = None
) -> ImageSource:
    """Find the images of a folder, of files, of shards, of a URL, of an .npz or of a known data set.

    Images of a folder are named by their path inside it, and by the folder too if there are several. Files keep the
    given name. Images of an .npz or a data set are `train/00012`. `size`: the side that sets are resized to.
    """
    given = [images] if isinstance(images, str | Path) else list(images)
    if not given:
        raise AAGError("no images given; give a folder, files, an .npz or a data set")
    if len(given) == 1 and is_image_set(str(given[0])):
        return _open_set(str(given[0]), size, data_root)
    names: list[str] = []
    paths: list[str] = []
    skipped: list[str] = []
    for each in given:
        path = Path(os.path.expanduser(each))
        if os.path.isdir(path):
            listing = list_images(path)
            prefix = f"{path.as_posix().rstrip('/')}/" if len(given) > 1 else ""
            names += [prefix + name for name in listing.images]
            paths += [os.path.join(path, name) for name in listing.images]
            skipped += [prefix + line for line in listing.skipped]
        elif os.path.lexists(path):
            names.append(path.as_posix())
            paths.append(str(path))
        else:
            raise AAGError(f"no such file or folder: {each}; give images, an .npz or one of {', '.join(DATASETS)}")
    if not names:
        raise AAGError(f"no image in {given[0]}" + (f" ({skipped[0]})" if skipped else ""))
    keep = [_is_unicode(name) for name in names]
    skipped += [f"{printable(n)}: its name is not UTF-8; rename it" for n, k in zip(names, keep, strict=True) if not k]
    source = Path(given[0]).expanduser().absolute() if len(given) == 1 else Path.cwd()
    return ImageSource(
        str(source if source.is_dir() else Path.cwd()),
        [name for name, wanted in zip(names, keep, strict=True) if wanted],
        [path for path, wanted in zip(paths, keep, strict=True) if wanted],
        skipped=skipped,
    )


def reopen_source(table: EmbeddingTable, size: int, *, data_root: str | Path | None = None) -> ImageSource:
    """Return the images of an embedding table from their original source. Loading fails for missing files.

    Without a source, as in a CSV, the names are paths from the current folder. `size`: the side that an .npz is resized
    to. Other sets keep the size that they are stored in: resizing or decoding all for a few pictures would take long.
    """
    source, stored = table.metadata.get("source", ""), table.metadata.get("source_size", "")
    if not is_image_set(source):
        return ImageSource(source, table.names, [os.path.join(source, name) for name in table.names])
    if source in DATASETS:
        return _open_set(source, None, data_root)
    if not source.lower().endswith(".npz") and re.fullmatch(r"[1-9][0-9]{0,3}", stored):
        size = int(stored)
    return _open_set(source, size, data_root)


def _open_set(source: str, size: int | None, data_root: str | Path | None) -> ImageSource:
    train, test = data.load_pair(source, root=data_root, image_size=size)
    sets = (train,) if test is None else (train, test)
    names = [name for each in sets for name in each.names or [f"{each.split}/{i:05d}" for i in range(len(each))]]
    is_path = source not in DATASETS and not is_remote(source)
    return ImageSource(os.path.abspath(source) if is_path else source, names, sets=sets)


def is_image_set(source: str) -> bool:
    """Return whether a source is loaded as a whole, not file by file."""
    if not source:
        return False
    return source in DATASETS or source.lower().endswith(".npz") or is_remote(source) or is_sharded(source)


def _is_unicode(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
