"""Embed images to a file, part by part. The same call resumes after an interruption; a crash loses one part."""

import hashlib
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aag.data.decode import ignore_warnings
from aag.data.store import ProgressCallback
from aag.errors import AAGError
from aag.files import explain_write_errors, write_bytes
from aag.serving.embedder import Embedder
from aag.serving.sources import ImageSource
from aag.serving.table import EmbeddingTable, check_format, read_table, write_table, write_tables


@dataclass(frozen=True)
class EmbedResult:
    """The result of `embed_to_file`."""

    file: Path
    count: int  # rows in the file
    new: int  # images embedded by this call; the others were done before
    skipped: list[str]  # "path: reason"
    skipped_file: Path | None


def embed_to_file(
    embedder: Embedder,
    source: ImageSource,
    out: Path,
    *,
    features: bool = False,
    thumbnails: int = 0,
    indices: range | None = None,
    on_progress: ProgressCallback | None = None,
) -> EmbedResult:
    """Embed images to a .parquet, .npz or .csv. Parts are kept in OUT.parts until the file is complete.

    Parts are reused only with the same model, files and options. If the file is complete already, nothing is done;
    only a .csv is made again, for it has no metadata. Files that cannot be read are listed in OUT.skipped.txt.
    """
    check_format(out)
    indices = range(len(source)) if indices is None else indices
    key = table_key(embedder, source, indices, features, thumbnails)
    skipped_file = out.with_name(f"{out.name}.skipped.txt")
    if (done := _completed(out, key, skipped_file)) is not None:
        return done
    with explain_write_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    with _lock(parts_folder(out)):
        if (done := _completed(out, key, skipped_file)) is not None:  # by another process, while this one waited
            return done
        parts = _Parts(out, key)
        return _embed(embedder, source, indices, parts, skipped_file, features, thumbnails, on_progress)


def _embed(
    embedder: Embedder, source: ImageSource, indices: range, parts: "_Parts", skipped_file: Path, features: bool,
    thumbnails: int, on_progress: ProgressCallback | None,
) -> EmbedResult:  # fmt: skip
    start = parts.find_finished(indices.start)
    new = indices.stop - start

    def progress(count: int, _: int) -> None:
        if on_progress:
            on_progress(start - indices.start + count, len(indices))

    progress(0, 0)
    rest = range(start, indices.stop)
    with ignore_warnings():
        for rows, table, skipped in embedder.embed(
            source, rest, features=features, thumbnails=thumbnails, on_progress=progress
        ):
            parts.write(rows, table, skipped)
    found = [*source.skipped, *parts.skipped()]
    count = parts.merge(source.source)
    if found:
        write_bytes(skipped_file, "".join(f"{line}\n" for line in found).encode())
    else:
        skipped_file.unlink(missing_ok=True)
    return EmbedResult(parts.out, count, new, found, skipped_file if found else None)


def table_key(embedder: Embedder, source: ImageSource, indices: range, features: bool, thumbnails: int) -> str:
    """Return a hash of the model, the images and the options, which decide a table's content."""
    options = [embedder.model_hash, embedder.precision, embedder.decode, features, thumbnails, indices.start]
    digest = hashlib.sha256(json.dumps([*options, indices.stop]).encode())
    for state in source.states():
        digest.update(state.encode() + b"\n")
    return digest.hexdigest()[:24]


def parse_shard(text: str) -> tuple[int, int]:
    """Return (number, count) of a shard such as 3/8."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise AAGError(f"--shard {text!r} is not NUMBER/COUNT with numbers from 1, such as 3/8")
    return int(match[1]), int(match[2])


def shard_indices(total: int, number: int, count: int) -> range:
    """Return the consecutive images of a shard: shards in order are the whole list."""
    return range(total * (number - 1) // count, total * number // count)


def _completed(out: Path, key: str, skipped_file: Path) -> EmbedResult | None:
    """Return what a file holds that was made with the same key, else None."""
    if not out.exists() or out.suffix.lower() == ".csv":  # a .csv has no metadata
        return None
    try:
        table = read_table(out, features=False, thumbnails=False)
    except AAGError:
        return None
    if table.metadata.get("key") != key:
        return None
    skipped = skipped_file.read_text(encoding="utf-8").splitlines() if skipped_file.exists() else []
    return EmbedResult(out, len(table), 0, skipped, skipped_file if skipped else None)


def parts_folder(out: Path) -> Path:
    """Return the folder of the parts of an output file."""
    return out.with_name(f"{out.name}.parts")


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Make the folder of the parts, and wait until no other process uses it; at the end remove it if it is empty."""
    with explain_write_errors(folder):
        descriptor = _open_locked(folder)
    try:
        yield
    finally:
        with suppress(OSError):
            folder.rmdir()
        if descriptor is not None:
            os.close(descriptor)


def _open_locked(folder: Path) -> int | None:
    """Return the descriptor that holds the lock; None on Windows, which cannot open a folder."""
    while True:
        folder.mkdir(exist_ok=True)
        try:
            import fcntl
        except ImportError:
            return None
        descriptor = os.open(folder, os.O_RDONLY)
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):  # removed by the process that had the lock
            if os.stat(folder).st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        os.close(descriptor)


class _Parts:
    """The finished parts of an output file, in OUT.parts, named by the range of images."""

    def __init__(self, out: Path, key: str) -> None:
        self.out, self.key = out, key
        self.folder = parts_folder(out)
        key_file = self.folder / "key"
        with explain_write_errors(self.folder):
            if not key_file.exists() or key_file.read_text() != key:
                self._remove()
        write_bytes(key_file, key.encode())
        self.files: list[Path] = []

    def find_finished(self, start: int) -> int:
        """Find the finished parts from index `start` on, and return the first index that is in none of them."""
        found = {}
        for name in os.listdir(self.folder):
            if match := re.fullmatch(r"(\d+)-(\d+)\.parquet", name):
                found[int(match[1])] = (int(match[2]), self.folder / name)
        while start in found and found[start][0] > start:
            start, file = found[start]
            self.files.append(file)
        return start

    def write(self, rows: range, table: EmbeddingTable, skipped: list[str]) -> None:
        file = self.folder / f"{rows.start}-{rows.stop}.parquet"
        metadata = {**table.metadata, "key": self.key, "skipped": json.dumps(skipped)}
        write_table(file, replace(table, metadata=metadata))
        self.files.append(file)

    def skipped(self) -> list[str]:
        return [line for part in self._read() for line in json.loads(part.metadata["skipped"])]

    def merge(self, source: str) -> int:
        """Join all parts into the output file, atomically, remove them, and return the number of rows."""
        count = 0

        def rows() -> Iterator[EmbeddingTable]:
            nonlocal count
            for part in self._read(features=True, thumbnails=True):
                count += len(part)
                if len(part):
                    yield replace(part, metadata={k: v for k, v in part.metadata.items() if k != "skipped"})

        if not any(len(part) for part in self._read()):
            reason = next(iter(self.skipped()), "it is empty")
            self._remove()
            raise AAGError(f"no readable image in {source}: {reason}")
        write_tables(self.out, rows())
        self._remove()
        return count

    def _read(self, **columns: Any) -> Iterator[EmbeddingTable]:
        from aag.serving.arrow import read_parquet

        leave_out = {name for name in ("features", "thumbnail") if not columns}
        for file in self.files:
            yield read_parquet(file, leave_out)

    def _remove(self) -> None:
        """Remove our files; the folder goes with its lock, unless it has other files."""
        for name in os.listdir(self.folder):
            if name == "key" or re.fullmatch(r"\d+-\d+\.parquet|\..*\.tmp", name):
                (self.folder / name).unlink(missing_ok=True)
