"""Decode many images in parallel, in chunks that arrive in order."""

import logging
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from aag.data.decode import UnreadableImageError, decode, ignore_warnings
from aag.data.encoded import EncodedImages, Item, Part
from aag.data.summary import ChunkSummary, summarize_chunk
from aag.provenance import core_count

CONTENT_BYTES = 2**29  # of encoded images that wait to be decoded
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


def decode_chunk(folder: Path, items: Sequence[Item], size: int) -> Chunk:
    """Decode a few images, one after the other. Items are paths in the folder, contents, or reasons to skip them."""
    images = np.empty((len(items), 3, size, size), np.uint8)
    failures: dict[int, str] = {}
    row = 0
    for place, item in enumerate(items):
        try:
            if isinstance(item, UnreadableImageError):
                raise item
            images[row] = decode(folder / item if isinstance(item, str) else item, size).transpose(2, 0, 1)
            row += 1
        except UnreadableImageError as reason:
            failures[place] = str(reason)
    return Chunk(images[:row], summarize_chunk(images[:row]), failures, len(items))


def join_chunks(chunks: Sequence[Chunk]) -> Chunk:
    """Join consecutive chunks."""
    failures: dict[int, str] = {}
    files = 0
    for chunk in chunks:
        failures |= {files + place: reason for place, reason in chunk.failures.items()}
        files += chunk.files
    images = np.concatenate([chunk.images for chunk in chunks])
    return Chunk(images, summarize_chunk(images), failures, files)


def decode_parts(
    source: EncodedImages, size: int, done: int = 0, position: tuple[int, ...] = ()
) -> Generator[tuple[Part, Chunk], None, None]:
    """Decode a source after its first `done` images, on all cores. Only a few chunks are in memory at a time.

    Yields each chunk with the part that it was decoded from, without its items.
    """
    count = core_count()
    parts = source.parts(done, position, size)
    failure: Exception | None = None
    pending: deque[tuple[Future[tuple[Part, Chunk]], int]] = deque()  # with the memory of the contents
    with open_decoder(source.rough_count - done) as work, ignore_warnings():

        def decode_part(part: Part) -> tuple[Part, Chunk]:
            loaded = source.load(part)
            return replace(part, items=()), work(loaded.folder, list(loaded.items), size)

        pool = ThreadPoolExecutor(count)
        try:
            while True:
                try:
                    while len(pending) < 3 * count and sum(used for _, used in pending) < CONTENT_BYTES:
                        if (part := next(parts, None)) is None:
                            break
                        pending.append((pool.submit(decode_part, part), part.content_bytes))
                except Exception as error:  # what was read before it is kept
                    parts, failure = iter(()), error
                if pending:
                    yield pending.popleft()[0].result()
                elif failure:
                    raise failure
                else:
                    return
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # Ctrl-C must not wait for a million images


@contextmanager
def open_decoder(files: int) -> Iterator[Callable[[Path, Sequence[Item], int], Chunk]]:
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
