"""Mutate valid files."""

import re
import struct
from collections.abc import Callable, Sequence
from random import Random

from fuzz.target import Target

MAX_BYTES = 1 << 20
# Limits of integer types, and sizes of pictures and arrays that are large but not impossible.
_NUMBERS = (
    0,
    1,
    2,
    127,
    128,
    255,
    256,
    4096,
    9400,
    13000,
    32767,
    32768,
    65535,
    65536,
    2**24,
    2**31 - 1,
    2**31,
    2**32 - 1,
)
_NUMBERS_64 = (2**32, 2**40, 2**63 - 1, 2**63, 2**64 - 1)
_TEXTS = (
    b"0",
    b"-1",
    b"9999999999",
    b"1e999",
    b"NaN",
    b"null",
    b"[" * 5000,
    b"{",
    b'"',
    b"\n",
    b"\0",
    b"../../x",
    b"\xff",
)


def make_input(target: Target, seeds: Sequence[bytes], rng: Random) -> bytes:
    """Return a mutated seed; in every second case with correct checksums, where the target can repair them."""
    content = mutate(seeds, rng)
    if target.repair is not None and rng.random() < 0.5:
        content = target.repair(content)
    return content


def mutate(seeds: Sequence[bytes], rng: Random) -> bytes:
    """Apply one to eight mutations to one of the seeds."""
    content = bytearray(rng.choice(seeds))
    for _ in range(rng.choice((1, 1, 2, 3, 4, 8))):
        if not content:
            break
        if rng.random() < 0.1:
            _splice(content, rng.choice(seeds), rng)
        else:
            rng.choice(_MUTATIONS)(content, rng)
    return bytes(content[:MAX_BYTES])


def _place(content: bytearray, rng: Random) -> int:
    """Return a random position; in every second case near the start, where headers are."""
    return rng.randrange(len(content) if rng.random() < 0.5 else min(len(content), 128))


def _flip_bit(content: bytearray, rng: Random) -> None:
    content[_place(content, rng)] ^= 1 << rng.randrange(8)


def _set_byte(content: bytearray, rng: Random) -> None:
    content[_place(content, rng)] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))


def _set_number(content: bytearray, rng: Random) -> None:
    code = rng.choice("BHIIQ")
    width = struct.calcsize(code)
    value = rng.choice(_NUMBERS + _NUMBERS_64 if code == "Q" else _NUMBERS) % 256**width
    place = _place(content, rng)
    content[place : place + width] = struct.pack(rng.choice("<>") + code, value)


def _set_decimal(content: bytearray, rng: Random) -> None:
    """Replace a number that is written as text."""
    found = [match.span() for match in re.finditer(rb"\d+", content[:65536])]
    if found:
        start, end = rng.choice(found)
        content[start:end] = str(rng.choice(_NUMBERS + _NUMBERS_64)).encode()


def _set_text(content: bytearray, rng: Random) -> None:
    place = _place(content, rng)
    content[place : place + rng.choice((0, 1, 4))] = rng.choice(_TEXTS)


def _delete(content: bytearray, rng: Random) -> None:
    place = _place(content, rng)
    del content[place : place + rng.choice((1, 2, 4, 16, 256))]


def _repeat(content: bytearray, rng: Random) -> None:
    place = _place(content, rng)
    part = content[place : place + rng.choice((1, 4, 16, 64, 1024))]
    content[place:place] = part * rng.choice((1, 2, 16, 100))


def _insert(content: bytearray, rng: Random) -> None:
    place = _place(content, rng)
    count = rng.choice((1, 2, 4, 16, 64))
    content[place:place] = bytes(count) if rng.random() < 0.5 else rng.randbytes(count)


def _move(content: bytearray, rng: Random) -> None:
    start, end = _place(content, rng), _place(content, rng)
    part = content[start : start + rng.choice((2, 4, 12, 32))]
    content[end : end + len(part)] = part


def _truncate(content: bytearray, rng: Random) -> None:
    del content[_place(content, rng) :]


def _splice(content: bytearray, other: bytes, rng: Random) -> None:
    """Continue with the rest of another seed."""
    place = _place(content, rng)
    content[place:] = other[min(place, len(other)) :]


_MUTATIONS: tuple[Callable[[bytearray, Random], None], ...] = (
    _flip_bit, _flip_bit, _set_byte, _set_byte, _set_number, _set_number, _set_decimal, _set_text, _delete, _repeat,
    _insert, _move, _truncate,
)  # fmt: skip
