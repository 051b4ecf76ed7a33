"""Decode many files in parallel, in chunks that arrive in order."""

import logging
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from aag.data.decode import UnreadableImageError, decode, ignore_warnings
from aag.data.summary import ChunkSummary, summarize_chunk
from aag.provenance import core_count

CHUNK_BYTES = 2**21  # of decoded pixels
# Processes take seconds to start, so they pay only for many files. With more cores, threads wait longer for the GIL.
PROCESS_FILES = 8192  # divided by the number of cores: the fewest files to start processes for
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Chunk:
    """Consecutive files: images uint8 [n, 3, S, S] of the readable ones, and the reasons for the others.

    `failures` maps the position of a file in the chunk to the reason. `files` counts all files.
    """

    images: np.ndarray
    summary: ChunkSummary
    failures: dict[int, str]
    files: int


def decode_chunk(folder: Path, paths: Sequence[str], size: int) -> Chunk:
    """Decode a few files, one after the other."""
    images = np.empty((len(paths), 3, size, size), np.uint8)
    failures: dict[int, str] = {}
    row = 0
    for place, path in enumerate(paths):
        try:
            images[row] = decode(folder / path, size).transpose(2, 0, 1)
            row += 1
        except UnreadableImageError as reason:
            failures[place] = str(reason)
    return Chunk(images[:row], summarize_chunk(images[:row]), failures, len(paths))


def join_chunks(chunks: Sequence[Chunk]) -> Chunk:
    """Join consecutive chunks."""
    failures: dict[int, str] = {}
    files = 0
    for chunk in chunks:
        failures |= {files + place: reason for place, reason in chunk.failures.items()}
        files += chunk.files
    images = np.concatenate([chunk.images for chunk in chunks])
    return Chunk(images, summarize_chunk(images), failures, files)


def decode_files(folder: Path, paths: Sequence[str], size: int) -> Iterator[Chunk]:
    """Yield all files as chunks, decoded on all cores. Only a few chunks are in memory at a time."""
    count = core_count()
    length = max(1, min(256, CHUNK_BYTES // (3 * size * size), -(-len(paths) // (4 * count))))
    starts = iter(range(0, len(paths), length))
    pending: deque[Future[Chunk]] = deque()
    with open_decoder(len(paths)) as work, ignore_warnings():
        pool = ThreadPoolExecutor(count)
        try:
            while True:
                while len(pending) < 3 * count and (start := next(starts, None)) is not None:
                    pending.append(pool.submit(work, folder, list(paths[start : start + length]), size))
                if not pending:
                    return
                yield pending.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # Ctrl-C must not wait for a million images


@contextmanager
def open_decoder(files: int) -> Iterator[Callable[[Path, list[str], int], Chunk]]:
    """Yield a function that decodes a chunk. For many files, each calling thread gets its own worker process."""
    if files < PROCESS_FILES // core_count() or sys.platform != "linux":
        yield decode_chunk
        return
    from aag.data.workers import Workers, WorkersUnavailableError

    try:
        workers = Workers()
    except WorkersUnavailableError as error:
        _log.warning("decoding in threads: %s", error)
        yield decode_chunk
        return
    try:
        yield workers.decode
    finally:
        workers.close()
