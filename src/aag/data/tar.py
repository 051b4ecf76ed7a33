"""Read the samples of a tar archive in one pass, as WebDataset writes them.

Members with the same name up to the first dot of their file name are one sample: `a/001.jpg` and `a/001.cls` have the
key `a/001`. A sample has one image, in any format that is read from a folder, and may have a label: a member `.cls`, or
the field `label` or `cls` of a member `.json`. Nothing is extracted to disk.
"""

import json
import os
import tarfile
from collections.abc import Callable, Iterator
from typing import IO, Any, NamedTuple

from aag.data.decode import UnreadableImageError, readable_extensions
from aag.data.encoded import MAX_FILE_BYTES, Item, Label
from aag.text import readable_bytes

MAX_LABEL_BYTES = 2**20  # of a member .cls or .json


class Sample(NamedTuple):
    """An encoded image by name. `item` is None for an image that is not wanted, which is not read."""

    name: str
    item: Item | None
    label: Label = None


def read_tar(file: IO[bytes], wanted: Callable[[int], bool]) -> Iterator[Sample]:
    """Yield the samples of an archive. `wanted(i)`: whether to read sample i.

    A damaged archive raises nearly anything, after the samples before the damage.
    """
    with tarfile.open(fileobj=_BoundedFile(file), mode="r:") as archive:  # type: ignore[call-overload]
        number, current = -1, None
        try:
            for member in _members(archive):
                folder, base = os.path.split(member.name)
                if not member.isreg() or member.issparse() or base.startswith("."):
                    continue
                stem, _, extension = base.partition(".")
                key = f"{folder}/{stem}" if folder else stem
                if current is None or key != current.key:
                    if current is not None:
                        yield current.close()
                    number += 1
                    current = _OpenSample(key, wanted(number))
                current.add(archive, member, extension.lower())
        except Exception:
            if current is not None and current.has_image:
                yield current.close()
            raise
        if current is not None:
            yield current.close()


def _members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield all members, and raise where tarfile would stop silently or read the same bytes forever."""
    end = 0
    while (member := archive.next()) is not None:
        archive.members = []  # type: ignore[attr-defined]  # tarfile would keep all of them
        if member.size < 0 or archive.offset <= end:
            raise tarfile.ReadError("a member has a negative size")
        end = archive.offset
        yield member
    file: Any = archive.fileobj
    file.seek(archive.offset)
    if any(file.read(tarfile.BLOCKSIZE)):
        raise tarfile.ReadError("a header is damaged")


class _OpenSample:
    """A sample whose members are being read."""

    def __init__(self, key: str, is_wanted: bool) -> None:
        self.key, self.is_wanted, self.has_image = key, is_wanted, False
        self.item: Item | None = None
        self.label: Label = None

    def add(self, archive: tarfile.TarFile, member: tarfile.TarInfo, extension: str) -> None:
        if not self.has_image and f".{extension.rpartition('.')[2]}" in readable_extensions():
            self.item = _read_image(archive, member) if self.is_wanted else None
            self.has_image = True
        elif extension in ("cls", "json") and self.label is None:
            self.label = _read_label(archive, member, extension)

    def close(self) -> Sample:
        item = self.item
        if not self.has_image and self.is_wanted:
            item = UnreadableImageError("the sample has no image")
        return Sample(self.key, item, self.label)


def as_label(value: Any) -> Label:
    """Return a label as an integer or a short text; None if it is neither."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str):
        text = value.strip()[:200]
        return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else text or None
    return value if isinstance(value, int) else None


class _BoundedFile:
    """A file that refuses to read much at once: the headers of a hostile archive can ask for any amount."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.seek, self.tell = file.seek, file.tell

    def read(self, count: int) -> bytes:
        if not 0 <= count <= MAX_FILE_BYTES:
            raise ValueError(f"a header asks for {count:,} bytes")
        return self._file.read(count)


def _read_image(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Item:
    if member.size > MAX_FILE_BYTES:
        return UnreadableImageError(f"its {readable_bytes(member.size)} exceed {readable_bytes(MAX_FILE_BYTES)}")
    return _read_member(archive, member)


def _read_label(archive: tarfile.TarFile, member: tarfile.TarInfo, extension: str) -> Label:
    if member.size > MAX_LABEL_BYTES:
        return None
    try:
        text = _read_member(archive, member).decode()
        if extension == "cls":
            return as_label(text)
        fields = json.loads(text)
        return as_label(fields.get("label", fields.get("cls"))) if isinstance(fields, dict) else None
    except (ValueError, RecursionError):
        return None


def _read_member(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    content = file.read() if file else b""
    if len(content) != member.size:
        raise tarfile.ReadError("unexpected end of data")
    return content
