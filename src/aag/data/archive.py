"""Reading an archive's members from its stream, by exact name, without ever unpacking it to disk."""

import gzip
import hashlib
import tarfile
import zlib
from collections.abc import Collection
from pathlib import Path, PurePosixPath

from aag.errors import AAGError

LARGEST_MEMBER = 400_000_000  # bytes; CIFAR-100's train file has 155 million


def md5_of(path: Path) -> str:
    """The md5 of a file: what the authors publish. It guards against damage, not against malice."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    except OSError as error:
        raise AAGError(f"cannot read {path}: {error.strerror or error}") from None


def check_md5(path: Path, expected: str) -> None:
    found = md5_of(path)
    if found != expected:
        raise AAGError(f"{path} is damaged or cut off (md5 {found}, expected {expected}); delete it and fetch it again")


def read_members(path: Path, wanted: Collection[str]) -> dict[str, bytes]:
    """The bytes of the wanted members of a .tar.gz. Any member that points outside the archive fails the whole."""
    found: dict[str, bytes] = {}
    try:
        # gzip, not tarfile's own stream: it alone says when the file ends too early.
        with gzip.open(path) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
            for member in tar:
                _check_member(path, member)
                if member.name in wanted and member.isfile():
                    file = tar.extractfile(member)
                    found[member.name] = file.read() if file else b""
                    if len(found[member.name]) != member.size:
                        raise EOFError
            while stream.read(1 << 20):  # to the end, so that gzip compares its checksum
                pass
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile):
        raise AAGError(f"{path} is damaged or cut off; delete it and fetch it again") from None
    except OSError as error:
        raise AAGError(f"cannot read {path}: {error.strerror or error}") from None
    missing = sorted(set(wanted) - set(found))
    if missing:
        raise AAGError(f"{path} holds no {missing[0]}; it is not the archive it is named after")
    return found


def _check_member(path: Path, member: tarfile.TarInfo) -> None:
    parts = PurePosixPath(member.name.replace("\\", "/"))
    if parts.is_absolute() or ".." in parts.parts or not (member.isfile() or member.isdir()):
        raise AAGError(f"{path} holds {member.name!r}, which points outside the archive; do not use this file")
    if member.size > LARGEST_MEMBER:
        raise AAGError(f"{path} holds {member.name!r} of {member.size:,} bytes; it is another file than it is named")
