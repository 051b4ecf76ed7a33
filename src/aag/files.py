"""Write files atomically: readers see the old file or the new one, never half of one."""

import csv
import io
import json
import os
import re
import stat
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

from aag.errors import AAGError, describe
from aag.text import readable_bytes

_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{32}\.tmp")  # of `atomic_write_path`, with the name of the file
MAX_TEXT = 100_000_000  # bytes of a text file
MAX_LOG = 1_000_000_000  # bytes of a run's log, which has about 130 per 50 steps
MAX_JSON = 1_000_000  # bytes of settings, which have a few thousand
STALE_SECONDS = 3600.0  # older temporary files are leftovers: no write takes this long


def as_path(value: object) -> Path:
    """Return a path that the user gave, as text or as a path."""
    if not isinstance(value, str | os.PathLike) or "\0" in os.fspath(value):  # bytes hold no text, either
        raise AAGError(f"a path must be text or a pathlib.Path without null characters, not {describe(value)}")
    return Path(value)


def temporary_path(path: Path) -> Path:
    """Return a new name next to `path`, which `remove_stale_temporaries` knows."""
    return path.with_name(f".{path.name}.{uuid4().hex}.tmp")


@contextmanager
def atomic_write_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to, and rename it to `path` at the end. After an error `path` is unchanged.

    Raises OSError.
    """
    temporary = temporary_path(path)
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power cut, where the system can."""
    with suppress(OSError):  # Windows and some network file systems cannot; the file is written all the same
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove_stale_temporaries(folder: Path, own: Collection[str]) -> None:
    """Remove the temporary files of killed processes in a folder.

    own: names of files that only the caller writes. Temporaries of other files are removed after an hour.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            found = _TEMPORARY.fullmatch(entry.name)
            with suppress(OSError):
                if found and (found[1] in own or time.time() - entry.stat().st_mtime > STALE_SECONDS):
                    os.unlink(entry)


def is_missing(path: Path) -> bool:
    """Return whether no file has this name. Without permission to look, return False: reading it gives the reason."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return True
    except OSError:
        pass
    return False


def open_regular(path: Path) -> IO[bytes]:
    """Open a file to read. Raises OSError, also for a pipe or a device, which could block or never end."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(None, "it is not a regular file")
    return open(descriptor, "rb")


def read_text(path: Path, errors: str = "strict", at_most: int = MAX_TEXT) -> str:
    """Read a regular file of UTF-8, of `at_most` bytes.

    Raises OSError, and ValueError for other bytes unless `errors` allows them.
    """
    with open_regular(path) as file:
        # A file that grows while it is read has no size to trust.
        if os.fstat(file.fileno()).st_size > at_most or len(content := file.read(at_most + 1)) > at_most:
            raise OSError(None, f"it has more than {readable_bytes(at_most)}")
        return content.decode("utf-8", errors)


def read_json(path: Path) -> Any:
    """Read settings from a regular file. Raises OSError, and ValueError with the reason for what is no JSON."""
    return parse_json(read_text(path, at_most=MAX_JSON))


def parse_json(text: str) -> Any:
    """Parse settings. Raises ValueError with the reason."""
    if len(text) > MAX_JSON:
        raise ValueError(f"it has more than {readable_bytes(MAX_JSON)}")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None


@contextmanager
def explain_write_errors(path: Path, advice: str = "") -> Iterator[None]:
    """Turn an OSError into an AAGError that names `path`, the reason and, where given, what to do."""
    try:
        yield
    except OSError as error:
        line = f"cannot write {path}: {error.strerror or error}"
        raise AAGError(f"{line}; {advice}" if advice else line) from error


def write_bytes(path: Path, *parts: bytes | memoryview) -> None:
    """Write a file atomically."""
    with explain_write_errors(path), atomic_write_path(path) as temporary, temporary.open("wb") as file:
        for part in parts:
            file.write(part)


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table as CSV atomically."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([columns, *rows])
    write_bytes(path, text.getvalue().encode())


def write_json(path: Path, content: object) -> None:
    """Write indented JSON atomically, with each list of plain values on one line."""
    text = json.dumps(content, indent=1)
    # Only raw newlines are replaced. A JSON string never contains one, so no string changes.
    text = re.sub(r"\[\n\s*([^\[\]{}]*?)\n\s*\]", lambda found: "[" + re.sub(r"\n\s*", " ", found[1]) + "]", text)
    write_bytes(path, (text + "\n").encode())
