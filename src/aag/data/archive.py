"""Verify downloaded files and read members of a .tar.gz without unpacking it to disk."""

import gzip
import hashlib
import tarfile
import zlib
from collections.abc import Collection
from pathlib import Path, PurePosixPath

from aag.errors import AAGError

MAX_MEMBER_BYTES = 400_000_000  # CIFAR-100's train file has 155 million


def file_md5(path: Path) -> str:
    """Return a file's md5, which is what the authors publish. It detects damage, not malice."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    except OSError as error:
        raise AAGError(f"cannot read {path}: {error.strerror or error}") from None


def check_md5(path: Path, expected: str) -> None:
    """Refuse a file whose md5 is not the expected one."""
    found = file_md5(path)
    if found != expected:
        raise AAGError(f"{path} is damaged or truncated (md5 {found}, expected {expected}); delete it and fetch again")


def read_members(path: Path, names: Collection[str]) -> dict[str, bytes]:
    """Return the content of the named members of a .tar.gz. Refuse an archive with a path that leaves it."""
    found: dict[str, bytes] = {}
    try:
        # Not tarfile's own decompression: only the gzip module reports a truncated file.
        with gzip.open(path) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
            for member in tar:
                _check_member(path, member)
                if member.name in names and member.isfile():
                    file = tar.extractfile(member)
                    found[member.name] = file.read() if file else b""
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


def _check_member(path: Path, member: tarfile.TarInfo) -> None:
    parts = PurePosixPath(member.name.replace("\\", "/"))
    if parts.is_absolute() or ".." in parts.parts or not (member.isfile() or member.isdir()):
        raise AAGError(f"{path} contains {member.name!r}, which points outside the archive; do not use this file")
    if member.size > MAX_MEMBER_BYTES:
        raise AAGError(f"{path} contains {member.name!r} of {member.size:,} bytes; it is a different archive")
