"""Verify downloaded files and read members of a .tar.gz without unpacking it to disk."""

import gzip
import hashlib
import io
import os
import tarfile
import zlib
from collections.abc import Collection
from pathlib import Path, PurePosixPath

from aag.data.datasets import Archive
from aag.errors import AAGError
from aag.files import open_regular
from aag.text import printable

MAX_MEMBER_BYTES = 400_000_000  # CIFAR-100's train file has 155 million
MAX_BYTES = 600_000_000  # of all members, unpacked; CIFAR's have 186 million
MAX_MEMBERS = 10_000


def find_mismatch(path: Path, archive: Archive) -> str | None:
    """Return how a file differs from the published one, in size or checksum; None if it does not."""
    sums = {"md5": hashlib.md5(usedforsecurity=False), "sha256": hashlib.sha256()}
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if archive.size not in (None, size):
                return f"{size:,} bytes, expected {archive.size:,}"
            while block := file.read(1 << 20):
                for each in sums.values():
                    each.update(block)
    except OSError as error:
        raise AAGError(f"cannot read {path}: {error.strerror or error}") from None
    for name, expected in {"md5": archive.md5, "sha256": archive.sha256}.items():
        if expected is not None and (found := sums[name].hexdigest()) != expected:
            return f"{name} {found}, expected {expected}"
    return None


def check_archive(path: Path, archive: Archive) -> None:
    """Raise unless a file is the published one."""
    if mismatch := find_mismatch(path, archive):
        raise AAGError(f"{path} is damaged or truncated ({mismatch}); delete it and fetch again")


def read_members(path: Path, names: Collection[str]) -> dict[str, bytes]:
    """Return the content of the named members of a .tar.gz. Raise if a path points outside the archive."""
    found: dict[str, bytes] = {}
    try:
        # Not tarfile's own decompression: only the gzip module reports a truncated file.
        with (
            open_regular(path) as file,
            gzip.GzipFile(fileobj=file) as unpacked,
            _LimitedStream(unpacked, path) as stream,
            tarfile.open(fileobj=stream, mode="r|") as tar,
        ):
            for number, member in enumerate(tar):
                if number >= MAX_MEMBERS:
                    raise AAGError(f"{path} contains more than {MAX_MEMBERS:,} files; it is a different archive")
                _check_member(path, member)
                if member.name in names and member.isfile():
                    content = tar.extractfile(member)
                    found[member.name] = content.read() if content else b""
                    if len(found[member.name]) != member.size:
                        raise EOFError
            while stream.read(1 << 20):  # gzip compares its checksum at the end
                pass
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile):
        raise AAGError(f"{path} is damaged or truncated; delete it and fetch again") from None
    except OSError as error:
        raise AAGError(f"cannot read {path}: {error.strerror or error}") from None
    missing = sorted(set(names) - set(found))
    if missing:
        raise AAGError(f"{path} does not contain {missing[0]}; it is a different archive")
    return found


class _LimitedStream(io.RawIOBase):
    """The unpacked bytes of an archive, up to a limit: a tar header may claim any length."""

    def __init__(self, stream: gzip.GzipFile, path: Path) -> None:
        self._stream, self._path, self._rest = stream, path, MAX_BYTES

    def read(self, size: int = -1) -> bytes:
        content = self._stream.read(size)
        self._rest -= len(content)
        if self._rest < 0:
            raise AAGError(f"{self._path} unpacks to more than {MAX_BYTES:,} bytes; it is a different archive")
        return content


def _check_member(path: Path, member: tarfile.TarInfo) -> None:
    parts, name = PurePosixPath(member.name.replace("\\", "/")), printable(member.name)[:200]
    if parts.is_absolute() or ".." in parts.parts or not (member.isfile() or member.isdir()):
        raise AAGError(f"{path} contains {name!r}, which points outside the archive; do not use this file")
    if member.size > MAX_MEMBER_BYTES:
        raise AAGError(f"{path} contains {name!r} of {member.size:,} bytes; it is a different archive")
