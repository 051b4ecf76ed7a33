"""Decode many files at once, in chunks that arrive in order."""

import os
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from aag.data.decode import UnreadableImageError, decode
from aag.data.summary import ChunkSummary, summarize_chunk

CHUNK_BYTES = 2**21  # of decoded pixels


@dataclass(frozen=True)
class Chunk:
    """Some consecutive files: the images uint8 [n, 3, S, S] of those that can be read, and the reasons of the others.

    `failures` are by place in the chunk. `files` counts both.
    """

    images: np.ndarray
    summary: ChunkSummary
    failures: dict[int, str]
    files: int


def decode_chunk(folder: Path, paths: Sequence[str], size: int) -> Chunk:
    """Decode some files, one after the other."""
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


def decode_files(folder: Path, paths: Sequence[str], size: int) -> Iterator[Chunk]:
    """Yield the chunks of all files, decoded on all cores. Only a few chunks are in memory at a time."""
    workers = os.cpu_count() or 1
    chunk = max(1, min(256, CHUNK_BYTES // (3 * size * size), -(-len(paths) // (4 * workers))))
    starts = iter(range(0, len(paths), chunk))
    pending: deque[Future[Chunk]] = deque()
    pool = ThreadPoolExecutor(workers)
    try:
        with warnings.catch_warnings():
            # Images that Pillow warns about are either decoded or listed as skipped.
            warnings.simplefilter("ignore")
            while True:
                while len(pending) < 3 * workers and (start := next(starts, None)) is not None:
                    pending.append(pool.submit(decode_chunk, folder, paths[start : start + chunk], size))
                if not pending:
                    return
                yield pending.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # Ctrl-C must not wait for a million images
