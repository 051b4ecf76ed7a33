"""Limits on what reading an image file takes, which its size and its pixels do not limit."""

import io
import re
import struct
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

import numpy as np

from aag.data.memory import decoding_budget

MAX_SECONDS = 10.0  # of CPU time to read a file: the time that some headers take grows with their length squared
# A few bytes of a JPEG can make a scan, which costs time for every pixel. Encoders write about 10 scans.
MAX_SCANS = 500
MAX_SEGMENTS = 100_000
# Values in a tag of a TIFF, such as the places of its strips: Pillow makes an object of each, except in bytes and text.
MAX_TAG_VALUES = 1 << 18
_BYTES_AND_TEXT = (1, 2, 6, 7)
_TIFF = (b"II*\0", b"MM\0*", b"MM*\0", b"II\0*", b"II+\0", b"MM\0+")  # what Pillow takes for a TIFF
_SEGMENT = re.compile(rb"\xff([\xc0-\xcf\xd8-\xfe])")  # the markers of a JPEG that have a length, or end it
_SCAN, _END = b"\xda", b"\xd9"


class UnreadableImageError(Exception):
    """A file cannot be read as an image; the message is the reason."""


class TimedFile(io.BufferedReader):
    """A file that raises after `MAX_SECONDS` of CPU time, if it is read a little at a time."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path))
        self._deadline = time.thread_time() + MAX_SECONDS

    def read(self, size: int | None = -1, /) -> bytes:
        _check_time(self._deadline)
        return super().read(size)


class TimedBytes(io.BytesIO):
    """A `TimedFile` in memory."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self._deadline = time.thread_time() + MAX_SECONDS

    def read(self, size: int | None = -1, /) -> bytes:
        _check_time(self._deadline)
        return super().read(size)


def _check_time(deadline: float) -> None:
    if time.thread_time() > deadline:
        raise UnreadableImageError(f"reading it takes more than {MAX_SECONDS:g} s of CPU time")


def read_jpeg(source: Path | bytes) -> np.ndarray:
    """Return the content of a JPEG as uint8 [N]. Raise if it has so many scans that decoding would take minutes."""
    # The copy is writable, as torch expects it.
    content = np.frombuffer(source, np.uint8).copy() if isinstance(source, bytes) else np.fromfile(source, np.uint8)
    position, scans = 2, 0
    for _ in range(MAX_SEGMENTS):
        found = _SEGMENT.search(content.data, position)
        if found is None or found[1] == _END:
            return content
        scans += found[1] == _SCAN
        if scans > MAX_SCANS:
            break
        position = found.end() + int.from_bytes(content[found.end() : found.end() + 2].tobytes())
    raise UnreadableImageError(f"it has more than {MAX_SCANS} scans or {MAX_SEGMENTS:,} segments")


def is_tiff(file: IO[bytes]) -> bool:
    """Return whether a file is a TIFF. Raise if its tags, which Pillow reads at once, hold too much."""
    head = file.read(16)
    if not head.startswith(_TIFF):
        return False
    order, is_big = "<" if head.startswith(b"II") else ">", head[2] == 43
    start, count, entry = ("8xQ", "Q", "HHQ8x") if is_big else ("4xI", "H", "HHI4x")
    with suppress(struct.error, OSError, OverflowError):  # Pillow gives the reason
        file.seek(*struct.unpack_from(order + start, head))
        (entries,) = struct.unpack(order + count, file.read(struct.calcsize(order + count)))
        for _ in range(min(entries, 65536)):
            tag, kind, values = struct.unpack(order + entry, file.read(struct.calcsize(order + entry)))
            most = decoding_budget().total if kind in _BYTES_AND_TEXT else MAX_TAG_VALUES
            if values > most:
                raise UnreadableImageError(f"its TIFF tag {tag} has {values:,} values, more than {most:,}")
    return True
