"""Decode images once, into a memory-mapped file in the cache folder.

    CACHE/images/NAME-HASH/KEY.u8       uint8 [N, 3, S, S], written in order; unused bytes may follow
                           KEY.jsonl    the journal: one line per chunk that was written, and a last one when complete

HASH identifies the source and the settings. KEY identifies its content: for a folder, the path, size and modification
time of each file. A store with another KEY is stale; it is deleted when the new one is complete. After an
interruption, the next process verifies the pixels against the hashes of the journal and continues after the last intact
chunk. Of several processes, one decodes and the others wait for it. Where the file system has no locks, each writes
files of its own, and the first that is complete is used.
"""

import errno
import hashlib
import logging
import math
import mmap
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import IO

import numpy as np

from aag.data.encoded import EncodedImages, Label, Part
from aag.data.image_cache import store_root
from aag.data.journal import COMPLETE, JournalState, read_journal
from aag.data.parallel_decode import decode_parts
from aag.data.summary import PixelSummary
from aag.errors import AAGError
from aag.text import printable, readable_bytes

ProgressCallback = Callable[[int, int], None]  # called with the files done, and all files
_log = logging.getLogger(__name__)
_DECODER_VERSION = 2  # increase it when the same file gives other pixels
LOCK_SECONDS = 0.1  # between two attempts to get a lock
_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Python 3.13 names it


@dataclass
class StoredImages:
    """Decoded images uint8 [N, 3, S, S], the reason for each file that cannot be read, and a summary of the pixels.

    `names` and `labels` include files that failed; they are empty unless they come from the source itself. `file` holds
    the images; None: they are in memory.
    """

    images: np.ndarray
    failures: dict[int, str]
    summary: PixelSummary
    names: Sequence[str] = ()
    labels: Sequence[Label] = ()
    file: Path | None = None


@dataclass
class Background:
    """State that a decoding thread shares with the threads that read meanwhile.

    `stop` ends decoding after the current chunk. `files` are the pixels and the journal, once they may be read. From
    then on the journal only grows, and the file of pixels has its full size.
    """

    stop: Event = field(default_factory=Event)
    files: tuple[Path, Path] | None = None


def open_images(
    source: EncodedImages,
    size: int,
    *,
    root: str | Path | None = None,
    variant: str = "",
    progress: ProgressCallback | None = None,
    background: Background | None = None,
) -> StoredImages:
    """Return the images of a source, cropped and resized to `size`; decode them if they are not stored.

    `variant` names the part of its location that the source is; each part has its own store. If the cache folder cannot
    be written to, the images are decoded into memory. `background` lets other threads read, and stop this one.
    """
    store = Store(source, size, root, variant, background)
    if (found := store.read()) is not None:
        return found
    try:
        lock = store.lock()
        is_locked = lock.__enter__()
    except OSError as error:
        _log.warning("cannot write to %s (%s): images are decoded into memory", store.folder, error.strerror or error)
        return _decode_to_memory(source, size, progress, background)
    try:
        if (found := store.read()) is not None:  # another process built it while this one waited
            return found
        return store.build(progress) if is_locked else store.build_alone(progress)
    finally:
        lock.__exit__(None, None, None)


class Store:
    """One store: a file of pixels and its journal."""

    def __init__(
        self,
        source: EncodedImages,
        size: int,
        root: str | Path | None,
        variant: str,
        background: Background | None = None,
    ) -> None:
        self.source, self.size, self.background = source, size, background
        location = os.fsencode(source.location)
        source_hash = hashlib.sha256(b"\0".join((location, f"{size} {variant}".encode()))).hexdigest()[:12]
        name = re.sub(r"\W+", "-", os.path.basename(source.location.rstrip("/")))
        self.root = store_root(root)
        self.folder = self.root / f"{name[:40]}-{size}-{source_hash}"
        self.key = hashlib.sha256(f"{_DECODER_VERSION} {size} {source.key()}".encode()).hexdigest()[:16]
        self.pixels, self.journal = self.folder / f"{self.key}.u8", self.folder / f"{self.key}.jsonl"
        self.lock_file = self.folder / ".lock"
        self.row_shape, self.row_bytes = (3, size, size), 3 * size * size
        self._total: int | None = None  # images to decode, or an estimate

    def read(self) -> StoredImages | None:
        """Map the images of a complete store; None if there is none."""
        state = read_journal(self.journal, self.pixels, self.row_shape)
        if not state.complete:
            return None
        rows = state.summary.count
        try:
            if os.path.getsize(self.pixels) < rows * self.row_bytes:
                return None
            images = map_images(self.pixels, (rows, *self.row_shape))
        except OSError:
            return None
        return StoredImages(images, state.failures, state.summary, state.names, state.labels, self.pixels)

    @contextmanager
    def lock(self) -> Iterator[bool]:
        """Wait for the lock of this store, and hold it; yield whether the file system has locks.

        The system releases it if this process dies.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.lock_file.open("w") as file:
            try:
                if not (is_locked := _try_to_lock(file)):
                    _log.info("waiting for another process to decode %s", printable(self.source.location))
                while not is_locked:
                    _check_stop(self.background)
                    time.sleep(LOCK_SECONDS)
                    is_locked = _try_to_lock(file)
            except (ImportError, OSError):
                is_locked = False
            yield is_locked

    def build_alone(self, progress: ProgressCallback | None) -> StoredImages:
        """Decode into files of this process, without a lock, and rename them when they are complete."""
        _log.info("%s has no file locks: no other process may share the decoding", self.root)
        pixels, journal = self.pixels, self.journal
        own = f"{self.key}-{socket.gethostname()}-{os.getpid()}"
        self.pixels, self.journal = self.folder / f"{own}.u8", self.folder / f"{own}.jsonl"
        try:
            try:
                self._decode(progress)
                # Two processes write the same bytes, so it does not matter whose files are used.
                os.replace(self.pixels, pixels)
                os.replace(self.journal, journal)
            finally:
                for file in (self.pixels, self.journal):
                    file.unlink(missing_ok=True)
                self.pixels, self.journal = pixels, journal
        except OSError as error:  # after the files are deleted: the message says how many images are kept
            raise self._write_error(error) from error
        return self._read_built()

    def build(self, progress: ProgressCallback | None) -> StoredImages:
        """Decode the images that are not in the journal, and map all. Call it inside `lock`."""
        try:
            self._decode(progress)
        except OSError as error:
            raise self._write_error(error) from error
        return self._read_built()

    def _read_built(self) -> StoredImages:
        self.delete_stale()
        if (found := self.read()) is None:
            raise AAGError(f"{self.folder} was deleted while it was written; run the same command again")
        return found

    def _decode(self, progress: ProgressCallback | None) -> None:
        state = read_journal(
            self.journal, self.pixels, self.row_shape, verify=True, check_stop=lambda: _check_stop(self.background)
        )
        count = self._total = self.source.count
        self._announce(state.files)
        self.pixels.touch()
        # Unbuffered: an error belongs to the write that caused it.
        with self.pixels.open("r+b", buffering=0) as pixels, self.journal.open("ab", buffering=0) as journal:
            pixels.truncate(state.summary.count * self.row_bytes)
            journal.truncate(state.length)
            if self.background and count is not None:
                pixels.truncate(count * self.row_bytes)  # without using the disk; a map may not exceed its file
                self.background.files = self.pixels, self.journal
            pixels.seek(state.summary.count * self.row_bytes)
            if progress and self._total is not None:
                progress(state.files, self._total)
            with closing(decode_parts(self.source, self.size, state.files, state.position)) as chunks:
                for part, chunk in chunks:
                    _write(pixels, chunk.images)
                    _write(journal, np.frombuffer(state.add(part, chunk), np.uint8))
                    if count is None:
                        self._total = estimate_total(state.files, part)
                    if progress and self._total is not None:
                        progress(state.files, self._total)
                    _check_stop(self.background)
            os.fsync(pixels.fileno())  # before the line that says so
            _write(journal, np.frombuffer(COMPLETE, np.uint8))
        if progress:
            progress(state.files, state.files)

    def _announce(self, done: int) -> None:
        resumed = f" ({done:,} already decoded)" if done else ""
        if self._total is None:
            what = f"{printable(self.source.location)} to {self.size}×{self.size}"
            _log.info("decoding %s in %s%s", what, self.root, resumed)
            return
        needed, free = (self._total - done) * self.row_bytes, shutil.disk_usage(self.folder).free
        images = f"{self._total:,} images to {self.size}×{self.size}"
        if needed > free:
            raise AAGError(
                f"decoding {images} takes {readable_bytes(needed)} and {self.root} has {readable_bytes(free)} free; "
                "set AAG_DATA to a folder on a larger disk, or use a smaller --image-size"
            )
        _log.info("decoding %s: %s in %s%s", images, readable_bytes(self._total * self.row_bytes), self.root, resumed)

    def _write_error(self, error: OSError) -> AAGError:
        done = read_journal(self.journal, self.pixels, self.row_shape).files
        total = max(done, self._total or 0)
        advice = "run the same command again to continue"
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            needed = readable_bytes((total - done) * self.row_bytes)
            advice = f"free {needed}, or set AAG_DATA to a folder on a larger disk; then {advice}"
        kept = f"{done:,} of {total:,} images are decoded and kept"
        return AAGError(f"cannot write {self.pixels}: {error.strerror or error}; {kept}; {advice}")

    def delete_stale(self) -> None:
        """Delete the files of older versions of the source. Call it inside `lock`."""
        for entry in self.folder.iterdir():
            if not entry.name.startswith((self.key, ".lock")):
                with suppress(OSError):  # in use, on Windows
                    entry.unlink()
                    _log.info("deleted %s: files of %s have changed since", entry, printable(self.source.location))


def _check_stop(background: Background | None) -> None:
    if background and background.stop.is_set():
        raise AAGError("decoding was stopped; run the same command again to continue")


def estimate_total(done: int, part: Part) -> int:
    """Estimate the number of images of a source from the fraction that was read."""
    return max(done, round(done / part.fraction)) if part.fraction > 0 else done + 1


def _write(file: IO[bytes], content: np.ndarray) -> None:
    """Write all bytes, with several system calls if one writes only a part."""
    rest = content.reshape(-1)
    while len(rest):
        rest = rest[file.write(rest.data) :]


def _try_to_lock(file: IO[str]) -> bool:
    """Return whether this process has the lock now. Raises ImportError or OSError where there are no locks."""
    import fcntl  # not on Windows

    with suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def map_images(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """Map the start of a file copy-on-write: torch expects writable memory, and the file must not change."""
    if shape[0] == 0:
        return np.empty(shape, np.uint8)
    length = math.prod(shape)
    with path.open("rb") as file:
        if sys.platform == "linux":
            # Without NORESERVE, Linux refuses to map more than the memory it has.
            flags, protection = mmap.MAP_PRIVATE | _MAP_NORESERVE, mmap.PROT_READ | mmap.PROT_WRITE
            mapped = mmap.mmap(file.fileno(), length, flags=flags, prot=protection)
        else:
            mapped = mmap.mmap(file.fileno(), length, access=mmap.ACCESS_COPY)
    return np.frombuffer(mapped, np.uint8).reshape(shape)


def _decode_to_memory(
    source: EncodedImages, size: int, progress: ProgressCallback | None, background: Background | None
) -> StoredImages:
    state, count = JournalState(), source.count
    try:
        images = np.empty((count or 0, 3, size, size), np.uint8)
        chunks = []
        with closing(decode_parts(source, size)) as decoded:
            for part, chunk in decoded:
                if count is None:
                    chunks.append(chunk.images)
                else:
                    images[state.summary.count : state.summary.count + len(chunk.images)] = chunk.images
                state.add(part, chunk)
                if progress:
                    progress(state.files, count or estimate_total(state.files, part))
                _check_stop(background)
        if count is None:
            images = np.concatenate([images, *chunks])
    except MemoryError:
        what = f"{count or state.files:,} images of {size}×{size} pixels"
        raise AAGError(f"{what} do not fit into memory; set AAG_DATA to a folder that can be written to") from None
    return StoredImages(images[: state.summary.count], state.failures, state.summary, state.names, state.labels)
