"""Read shards, local or remote: tar archives as WebDataset writes them, Parquet and Arrow files of images.

Shards are read once, in order, and decoded into a store. Their names and labels are known only then.
"""

import hashlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import IO

import numpy as np

from aag.data.decode import UnreadableImageError
from aag.data.encoded import PART_BYTES, Item, Label, Part, part_length
from aag.data.remote import is_url, open_remote
from aag.data.summary import content_hash
from aag.data.tar import Sample, read_tar
from aag.errors import AAGError, first_line
from aag.text import printable

SHARD_KINDS = (".tar", ".parquet", ".arrow")
TYPICAL_BYTES = 2**15  # of an image, to guess their number
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Shard:
    """A file of many images. `name` begins the names of its images; `stamp` changes with its content."""

    path: str  # absolute, or a URL
    name: str
    size: int
    stamp: str

    @property
    def kind(self) -> str:
        return os.path.splitext(self.path)[1].lower()

    def open(self) -> IO[bytes]:
        if is_url(self.path):
            return open_remote(self.path, self.size)
        if self.kind == ".arrow":
            import pyarrow

            mapped: IO[bytes] = pyarrow.memory_map(self.path)
            return mapped
        return open(self.path, "rb")


@dataclass(frozen=True)
class Scan:
    """The labels of all samples, the hashes uint64 [N] of their content, and the number of samples of each shard."""

    labels: list[Label]
    hashes: np.ndarray
    counts: list[int]


@dataclass(frozen=True)
class Shards:
    """The samples of one split. `keep` returns a mask of those that are decoded, for each shard; None keeps all.

    The masks end where the shards were found damaged: if nothing is read there, more samples may seem to follow.
    """

    location: str
    shards: Sequence[Shard]
    follow_paths: bool = False
    keep: Callable[[], list[np.ndarray]] | None = None
    variant: str = ""
    samples: int | None = None  # their number, where it was counted

    @cached_property
    def count(self) -> int | None:
        """Number of images, if it was counted or the metadata of local files has it; else None."""
        from aag.data import tables

        if self.samples is not None:
            return self.samples
        if self.keep or any(shard.kind == ".tar" or is_url(shard.path) for shard in self.shards):
            return None
        try:
            count = 0
            for shard in self.shards:
                with shard.open() as file:
                    count += tables.count_rows(file, shard.kind)
            return count
        except tables.TABLE_ERRORS:
            return None  # reading it gives the reason

    def with_count(self) -> "Shards":
        """Return the shards with a `count`, from the headers of tar archives. Remote archives are not counted."""
        if self.count is not None or self.keep or any(is_url(shard.path) for shard in self.shards):
            return self
        return replace(self, samples=sum(self.sample_counts()))

    def sample_counts(self) -> list[int]:
        """Return the number of samples of each shard, without reading images where that is possible."""
        _log.info("counting the images of %s", printable(self.location))
        return [sum(1 for _ in self._read(shard, lambda i: False)) for shard in self.shards]

    @property
    def rough_count(self) -> int:
        return self.count or sum(shard.size for shard in self.shards) // TYPICAL_BYTES

    def select(self, keep: Callable[[], list[np.ndarray]], variant: str) -> "Shards":
        return replace(self, keep=cache(keep), variant=variant)

    def key(self) -> str:
        entries = "\0".join(f"{shard.path}\0{shard.size}\0{shard.stamp}" for shard in self.shards)
        return hashlib.sha256(os.fsencode(entries)).hexdigest()

    def class_names(self) -> tuple[str, ...]:
        """Return the names of the classes, where the first shard has them."""
        from aag.data import tables

        shard = self.shards[0]
        if shard.kind == ".tar":
            return ()
        try:
            with shard.open() as file:
                return tables.find_columns(tables.read_schema(file, shard.kind)).classes
        except tables.TABLE_ERRORS:
            return ()

    def parts(self, done: int, position: tuple[int, ...], size: int) -> Iterator[Part]:
        """Yield the samples in parts; a position is (shard, samples of it)."""
        first, inside, *_ = position or (0, 0)  # journals of earlier versions have a third number
        length, total = part_length(size, self.count), sum(shard.size for shard in self.shards) or 1
        keep = self.keep() if self.keep else None
        names: list[str] = []
        labels: list[Label] = []
        items: list[Item] = []
        item_bytes = size_before = 0
        for number, shard in enumerate(self.shards):
            size_before += shard.size
            if number < first:
                continue
            skipped, count = (inside if number == first else 0), 0
            mask = keep[number] if keep else None

            def wanted(i: int, skipped: int = skipped, mask: np.ndarray | None = mask) -> bool:
                return i >= skipped and (mask is None or (i < len(mask) and bool(mask[i])))

            for sample, fraction in self._read(shard, wanted):
                count += 1
                if sample.item is None:
                    continue
                names.append(f"{shard.name}/{sample.name}" if sample.name else shard.name)
                labels.append(sample.label)
                items.append(sample.item)
                item_bytes += len(sample.item) if isinstance(sample.item, bytes) else 0
                if len(items) >= length or item_bytes >= PART_BYTES:
                    read = (size_before - (1 - fraction) * shard.size) / total
                    yield Part(items, Path(), names, labels, (number, count), read)
                    names, labels, items, item_bytes = [], [], [], 0
        if items:
            yield Part(items, Path(), names, labels, (number, count), 1.0)

    def load(self, part: Part) -> Part:
        return part

    def scan(self) -> Scan:
        """Read all samples, and hash them."""
        _log.info("hashing the images of %s", printable(self.location))
        labels: list[Label] = []
        hashes: list[int] = []
        counts = []
        for shard in self.shards:
            before = len(labels)
            for part in replace(self, shards=[shard], keep=None).parts(0, (), 0):
                labels += part.labels
                hashes += [content_hash(item) if isinstance(item, bytes) else 0 for item in part.items]
            counts.append(len(labels) - before)
        return Scan(labels, np.array(hashes, np.uint64), counts)

    def _read(self, shard: Shard, wanted: Callable[[int], bool]) -> Iterator[tuple[Sample, float]]:
        """Yield the samples of a shard with the fraction that is read. A damaged one ends with an error sample."""
        from aag.data import tables

        count = 0
        try:
            with shard.open() as file:
                if shard.kind == ".tar":
                    samples = read_tar(file, wanted)
                else:
                    samples = tables.read_table(file, shard.kind, wanted, follow_paths=self.follow_paths)
                for sample in samples:
                    count += 1
                    yield sample, min(1.0, file.tell() / max(shard.size, 1))
        except AAGError:  # a server that cannot be reached
            raise
        except Exception as error:  # damaged files make the readers raise nearly anything
            reason = (f"damaged after {count:,} samples: " if count else "") + first_line(error)[:200]
            yield Sample("", UnreadableImageError(reason) if wanted(count) else None), 1.0
