"""Check the messages of an Arrow file before Arrow reads them: compressed ones could expand to any size.

The columnar format (arrow.apache.org/docs/format/Columnar.html) puts a flatbuffer before the body of each message.
"""

import struct
from typing import IO

MAGIC = b"ARROW1\0\0"  # begins a file; what follows is a stream
CONTINUATION = 0xFFFFFFFF  # before the length of a flatbuffer, since Arrow 0.15
MAX_METADATA_BYTES = 2**26
DICTIONARY_BATCH, RECORD_BATCH = 2, 3  # types of a message's header


def find_stream(file: IO[bytes]) -> int:
    """Return the position at which the stream of an Arrow file begins."""
    start = file.tell()
    return start + len(MAGIC) if file.read(len(MAGIC)) == MAGIC else start


def check_uncompressed(file: IO[bytes], start: int) -> None:
    """Raise ValueError if a batch of a stream is compressed: a few bytes could then take any amount of memory."""
    file.seek(start)
    while len(head := file.read(4)) == 4:
        (length,) = struct.unpack("<I", head)
        if length == CONTINUATION:
            (length,) = struct.unpack("<I", file.read(4).ljust(4, b"\0"))
        if not length:  # the end
            return
        if length > MAX_METADATA_BYTES:
            raise ValueError(f"a message has a header of {length:,} bytes")
        try:
            compressed, body_bytes = _parse_message(file.read(length))
        except struct.error as error:
            raise ValueError("the header of a message is damaged") from error
        if compressed:
            raise ValueError("its batches are compressed; write it without compression, or as Parquet")
        file.seek(body_bytes, 1)


def _parse_message(buffer: bytes) -> tuple[bool, int]:
    """Return whether a message holds compressed data, and the length of its body."""
    (message,) = struct.unpack_from("<I", buffer)
    kind, header, length = (_field(buffer, message, number) for number in (1, 2, 3))
    body_bytes = struct.unpack_from("<q", buffer, length)[0] if length else 0
    if body_bytes < 0:
        raise ValueError("a message has a negative length")
    batch = _follow(buffer, header) if header else 0
    number = buffer[kind] if kind and kind < len(buffer) else 0
    if number == DICTIONARY_BATCH:
        data = _field(buffer, batch, 1)
        batch = _follow(buffer, data) if data else 0
    return bool(number in (DICTIONARY_BATCH, RECORD_BATCH) and batch and _field(buffer, batch, 3)), body_bytes


def _follow(buffer: bytes, place: int) -> int:
    """Return the position of the table that the offset at `place` points to."""
    return place + int(struct.unpack_from("<I", buffer, place)[0])


def _field(buffer: bytes, table: int, number: int) -> int:
    """Return the position of a table's field; 0 if it is absent."""
    vtable = table - int(struct.unpack_from("<i", buffer, table)[0])
    if vtable < 0:
        raise ValueError("the header of a message is damaged")
    (size,) = struct.unpack_from("<H", buffer, vtable)
    entry = 4 + 2 * number
    (offset,) = struct.unpack_from("<H", buffer, vtable + entry) if entry + 2 <= size else (0,)
    return table + int(offset) if offset else 0
