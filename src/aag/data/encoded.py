"""Encoded images in a fixed order, for `store` to decode: files of a folder here, others in `shards` and `remote`."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, Self

import numpy as np

from aag.data.decode import UnreadableImageError
from aag.provenance import core_count

Item = str | bytes | UnreadableImageError  # a path, the content of a file, or the reason why there is none
Label = int | str | None

MAX_FILE_BYTES = 2**27  # largest encoded image
PART_BYTES = 2**24  # of encoded images that are decoded together
PIXEL_BYTES = 2**21  # of decoded images


@dataclass(frozen=True)
class Part:
    """Consecutive images that are decoded together.

    A source that knows its names and labels only by reading all of it, such as shards, gives the `names` and `labels`
    of these images here, and the `position` after them, from which it can be read on. They are stored with the pixels.
    `fraction`: how much of it has been read at the end of this part.
    """

    items: Sequence[Item]
    folder: Path = field(default_factory=Path)  # of the items that are paths
    names: Sequence[str] = ()
    labels: Sequence[Label] = ()
    position: tuple[int, ...] = ()
    fraction: float = 0.0

    @property
    def content_bytes(self) -> int:
        """Memory that the contents take."""
        return sum(len(item) for item in self.items if isinstance(item, bytes))


class EncodedImages(Protocol):
    """A source that a store is built from."""

    @property
    def location(self) -> str:
        """Absolute path or URL."""

    @property
    def count(self) -> int | None:
        """Number of images; None if it is known only after reading all of them."""

    @property
    def rough_count(self) -> int:
        """Estimated number of images, to decide whether to start worker processes."""

    def key(self) -> str:
        """Return a hash that changes with the content, without reading it."""

    def parts(self, done: int, position: tuple[int, ...], size: int) -> Iterator[Part]:
        """Yield all images after the first `done`, in parts.

        position: that of the last part that was decoded, or empty. size: side that the images will be decoded to.
        """

    def load(self, part: Part) -> Part:
        """Return the part with the content of its items. Called in parallel, in threads."""


class ImageFiles:
    """Image files, as paths relative to a folder."""

    def __init__(self, folder: Path, paths: Sequence[str]) -> None:
        self.folder, self.paths = folder, paths
        self.location = os.path.abspath(folder)

    @property
    def count(self) -> int:
        return len(self.paths)

    @property
    def rough_count(self) -> int:
        return len(self.paths)

    def select(self, indices: Sequence[int] | np.ndarray) -> Self:
        return type(self)(self.folder, [self.paths[i] for i in indices])

    def key(self) -> str:
        """Hash the path, size and modification time of each file."""
        digest = hashlib.sha256(str(len(self.paths)).encode())
        base = os.path.join(self.folder, "")
        for start in range(0, len(self.paths), 4096):
            part = self.paths[start : start + 4096]
            stamps = []
            for path in part:
                try:
                    status = os.stat(base + path)
                    stamps.append((status.st_size, status.st_mtime_ns))
                except OSError:  # gone, or a loop of links: decoding gives the reason
                    stamps.append((-1, -1))
            digest.update(os.fsencode("\0".join(part)))
            digest.update(np.array(stamps, np.int64).data)
        return digest.hexdigest()

    def parts(self, done: int, position: tuple[int, ...], size: int) -> Iterator[Part]:
        length = part_length(size, len(self.paths) - done)
        for start in range(done, len(self.paths), length):
            yield Part(self.paths[start : start + length], self.folder)

    def load(self, part: Part) -> Part:
        return part


def part_length(size: int, count: int | None = None) -> int:
    """Return the number of images per part: as many as keep all cores busy, in bounded memory."""
    length = min(256, PIXEL_BYTES // (3 * size * size)) if size else 256
    if count is not None:
        length = min(length, -(-count // (4 * core_count())))
    return max(1, length)
