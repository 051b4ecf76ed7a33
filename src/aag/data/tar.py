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

    Raises tarfile.TarError, OSError or ValueError for a damaged archive.
    """
    number, key, item, label, has_image = -1, None, None, None, False
    with tarfile.open(fileobj=_BoundedFile(file), mode="r:") as archive:  # type: ignore[call-overload]
        end = -1
        while (member := archive.next()) is not None:
            archive.members = []  # tarfile would keep all of them
            if member.size < 0 or archive.offset <= end:  # it would be read forever
                raise tarfile.ReadError("a member has a negative size")
            end = archive.offset
            folder, base = os.path.split(member.name)
            if not member.isreg() or member.issparse() or base.startswith("."):
                continue
            stem, _, extension = base.partition(".")
            own_key = f"{folder}/{stem}" if folder else stem
            if own_key != key:
                if key is not None:
                    yield _sample(key, item, label, has_image)
                number, key, item, label, has_image = number + 1, own_key, None, None, False
            if not has_image and os.path.splitext(base)[1].lower() in readable_extensions():
                has_image = True
                item = _read_image(archive, member) if wanted(number) else None
            elif extension.lower() in ("cls", "json") and label is None:
                label = _read_label(archive, member, extension.lower())
    if key is not None:
        yield _sample(key, item, label, has_image)


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


def _sample(key: str, item: Item | None, label: Label, has_image: bool) -> Sample:
    return Sample(key, item if has_image else UnreadableImageError("the sample has no image"), label)


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
