"""Decode a folder's images once, into a memory-mapped file in the cache folder.

    CACHE/images/NAME-HASH/KEY.u8       uint8 [N, 3, S, S], append-only
                           KEY.jsonl    the journal: one line per chunk that was written, and a last one when complete

HASH identifies the folder and the settings. KEY identifies the path, size and modification time of each file. A store
with another KEY is stale; it is deleted when the new one is complete. After an interruption, the next process verifies
the pixels against the hashes of the journal and continues after the last intact chunk.
"""

import errno
import hashlib
import json
import logging
import mmap
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from aag.data.image_cache import store_root
from aag.data.parallel_decode import Chunk, decode_files
from aag.data.summary import PixelSummary, summarize_chunk
from aag.errors import AAGError
from aag.text import printable, readable_bytes

Progress = Callable[[int, int], None]  # files done, files in all
_log = logging.getLogger(__name__)
_DECODER = 2  # increase it when the same file gives other pixels
_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # Python 3.13 names it


@dataclass
class StoredImages:
    """Decoded images uint8 [N, 3, S, S], the reason for each file that cannot be read, and a summary of the pixels."""

    images: np.ndarray
    failures: dict[int, str]
    summary: PixelSummary


@dataclass
class _State:
    """The content of a journal."""

    files: int = 0
    failures: dict[int, str] = field(default_factory=dict)
    summary: PixelSummary = field(default_factory=PixelSummary)
    bytes: int = 0  # of the journal, up to the end of the last line that counts
    complete: bool = False


def open_images(
    folder: Path,
    paths: Sequence[str],
    size: int,
    *,
    root: str | Path | None = None,
    variant: str = "",
    progress: Progress | None = None,
) -> StoredImages:
    """Return the images of files in a folder, cropped and resized to `size`; decode them if they are not stored.

    `variant` names the part of the folder that `paths` are; each part has its own store. If the cache folder cannot be
    written to, the images are decoded into memory.
    """
    store = Store(folder, paths, size, root, variant)
    if (found := store.read()) is not None:
        return found
    try:
        lock = store.lock()
        lock.__enter__()
    except OSError as error:
        _log.warning("cannot write to %s (%s): images are decoded into memory", store.folder, error.strerror or error)
        return _decode_to_memory(folder, paths, size, progress)
    try:
        return store.read() or store.build(progress)  # another process may have built it while this one waited
    finally:
        lock.__exit__(None, None, None)


class Store:
    """One store: a file of pixels and its journal."""

    def __init__(self, source: Path, paths: Sequence[str], size: int, root: str | Path | None, variant: str) -> None:
        self.source, self.paths, self.size = source, paths, size
        absolute = os.fsencode(os.path.abspath(source))
        slot = hashlib.sha256(b"\0".join((absolute, f"{size} {variant}".encode()))).hexdigest()[:12]
        name = re.sub(r"\W+", "-", os.path.basename(os.fsdecode(absolute)))
        self.root = store_root(root)
        self.folder = self.root / f"{name[:40]}-{size}-{slot}"
        self.key = listing_key(source, paths, size)
        self.pixels, self.journal = self.folder / f"{self.key}.u8", self.folder / f"{self.key}.jsonl"
        self.row_bytes = 3 * size * size

    def read(self) -> StoredImages | None:
        """Map the images of a complete store; None if there is none."""
        state = self._read_journal()
        if not state.complete:
            return None
        rows = state.summary.count
        try:
            if os.path.getsize(self.pixels) != rows * self.row_bytes:
                return None
            images = _map(self.pixels, (rows, 3, self.size, self.size))
        except OSError:
            return None
        return StoredImages(images, state.failures, state.summary)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Wait for the lock of this store, and hold it. The system releases it if this process dies."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / ".lock").open("w") as file:
            try:
                import fcntl  # not on Windows

                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    _log.info("waiting for another process to decode %s", printable(str(self.source)))
                    fcntl.flock(file, fcntl.LOCK_EX)
            except (ImportError, OSError):  # Windows, or a file system without locks
                pass
            yield

    def build(self, progress: Progress | None) -> StoredImages:
        """Decode the files that are not in the journal, and map the images. Call it inside `lock`."""
        state, total = self._read_journal(verify=True), len(self.paths)
        self._announce(total, total - state.files)
        report = progress or (lambda done, total: None)
        try:
            # Unbuffered: an error belongs to the write that caused it.
            with self.pixels.open("ab", buffering=0) as pixels, self.journal.open("ab", buffering=0) as journal:
                pixels.truncate(state.summary.count * self.row_bytes)
                journal.truncate(state.bytes)
                report(state.files, total)
                for chunk in decode_files(self.source, self.paths[state.files :], self.size):
                    _write(pixels, chunk.images)
                    _count_chunk(state, chunk)
                    _write(journal, np.frombuffer(_journal_line(state, chunk), np.uint8))
                    report(state.files, total)
                os.fsync(pixels.fileno())  # before the line that says so
                _write(journal, np.frombuffer(b'{"complete": true}\n', np.uint8))
        except OSError as error:
            raise self._write_error(error) from error
        self.delete_stale()
        if (found := self.read()) is None:
            raise AAGError(f"{self.folder} was deleted while it was written; run the same command again")
        return found

    def _announce(self, total: int, missing: int) -> None:
        needed, done = missing * self.row_bytes, total - missing
        free = shutil.disk_usage(self.folder).free
        images = f"{total:,} images to {self.size}×{self.size}"
        if needed > free:
            raise AAGError(
                f"decoding {images} takes {readable_bytes(needed)} and {self.root} has {readable_bytes(free)} free; "
                "set AAG_DATA to a folder on a larger disk, or use a smaller --image-size"
            )
        resumed = f" ({done:,} are done)" if done else ""
        _log.info("decoding %s: %s in %s%s", images, readable_bytes(total * self.row_bytes), self.root, resumed)

    def _write_error(self, error: OSError) -> AAGError:
        done, total = self._read_journal().files, len(self.paths)
        advice = "run the same command again to continue"
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            needed = readable_bytes((total - done) * self.row_bytes)
            advice = f"free {needed}, or set AAG_DATA to a folder on a larger disk; then {advice}"
        kept = f"{done:,} of {total:,} images are decoded and kept"
        return AAGError(f"cannot write {self.pixels}: {error.strerror or error}; {kept}; {advice}")

    def delete_stale(self) -> None:
        """Delete the files of older versions of the folder. Call it inside `lock`."""
        for entry in self.folder.iterdir():
            if not entry.name.startswith((self.key, ".lock")):
                with suppress(OSError):  # in use, on Windows
                    entry.unlink()
                    _log.info("deleted %s, decoded before files of %s changed", entry, printable(str(self.source)))

    def _read_journal(self, verify: bool = False) -> _State:
        """Read the journal. With `verify`, stop at the first chunk with pixels that do not match their hash."""
        state = _State()
        with suppress(OSError), self.journal.open("rb") as journal, _open_if_exists(self.pixels) as pixels:
            for line in journal:
                with suppress(ValueError, KeyError, TypeError, AttributeError):  # damaged, or cut off
                    entry = json.loads(line if line.endswith(b"\n") else b"")
                    if entry.get("complete"):
                        state.complete = True
                        break
                    if verify and not self._is_intact(pixels, state, entry):
                        break
                    state.files = entry["files"]
                    state.failures |= {place: reason for place, reason in entry["failures"]}
                    state.summary = PixelSummary(entry["rows"], np.array(entry["sums"]), bytes.fromhex(entry["digest"]))
                    state.bytes += len(line)
                    continue
                break
        return state

    def _is_intact(self, pixels: IO[bytes] | None, state: _State, entry: dict[str, Any]) -> bool:
        rows = entry["rows"] - state.summary.count
        content = pixels.read(rows * self.row_bytes) if pixels else b""
        if len(content) != rows * self.row_bytes:
            return False
        images = np.frombuffer(content, np.uint8).reshape(rows, 3, self.size, self.size)
        summary = PixelSummary(state.summary.count, state.summary.sums, state.summary.digest)
        summary.add(summarize_chunk(images))
        return summary.digest.hex() == entry["digest"]


def listing_key(folder: Path, paths: Sequence[str], size: int) -> str:
    """Return a hash of the path, size and modification time of each file, the size of the images and the decoder."""
    digest = hashlib.sha256(f"{_DECODER} {size} {len(paths)}".encode())
    base = os.path.join(folder, "")
    for start in range(0, len(paths), 4096):
        part = paths[start : start + 4096]
        stamps = []
        for path in part:
            try:
                status = os.stat(base + path)
                stamps.append((status.st_size, status.st_mtime_ns))
            except OSError:  # gone, or a loop of links: decoding gives the reason
                stamps.append((-1, -1))
        digest.update(os.fsencode("\0".join(part)))
        digest.update(np.array(stamps, np.int64).data)
    return digest.hexdigest()[:16]


def _count_chunk(state: _State, chunk: Chunk) -> None:
    state.failures |= {state.files + place: reason for place, reason in chunk.failures.items()}
    state.files += chunk.files
    state.summary.add(chunk.summary)


def _journal_line(state: _State, chunk: Chunk) -> bytes:
    first = state.files - chunk.files
    entry = {
        "files": state.files,
        "rows": state.summary.count,
        "sums": state.summary.sums.tolist(),
        "digest": state.summary.digest.hex(),
        "failures": [[first + place, reason] for place, reason in chunk.failures.items()],
    }
    return json.dumps(entry).encode() + b"\n"


def _write(file: IO[bytes], content: np.ndarray) -> None:
    """Write all bytes, with several system calls if one writes only a part."""
    rest = content.reshape(-1)
    while len(rest):
        rest = rest[file.write(rest.data) :]


@contextmanager
def _open_if_exists(path: Path) -> Iterator[IO[bytes] | None]:
    if not path.exists():
        yield None
        return
    with path.open("rb") as file:
        yield file


def _map(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """Map a file copy-on-write: torch expects writable memory, and the file must not change."""
    if shape[0] == 0:
        return np.empty(shape, np.uint8)
    with path.open("rb") as file:
        if sys.platform == "linux":
            # Without NORESERVE, Linux refuses to map more than the memory it has.
            flags, protection = mmap.MAP_PRIVATE | _MAP_NORESERVE, mmap.PROT_READ | mmap.PROT_WRITE
            mapped = mmap.mmap(file.fileno(), 0, flags=flags, prot=protection)
        else:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    return np.frombuffer(mapped, np.uint8).reshape(shape)


def _decode_to_memory(folder: Path, paths: Sequence[str], size: int, progress: Progress | None) -> StoredImages:
    try:
        images = np.empty((len(paths), 3, size, size), np.uint8)
    except MemoryError:
        what = f"{len(paths):,} images of {size}×{size} pixels"
        raise AAGError(f"{what} do not fit into memory; set AAG_DATA to a folder that can be written to") from None
    state = _State()
    for chunk in decode_files(folder, paths, size):
        images[state.summary.count : state.summary.count + len(chunk.images)] = chunk.images
        _count_chunk(state, chunk)
        if progress:
            progress(state.files, len(paths))
    return StoredImages(images[: state.summary.count], state.failures, state.summary)
