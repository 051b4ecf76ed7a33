"""Write files atomically: readers see the old file or the new one, never half of one."""

import csv
import io
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from uuid import uuid4

from aag.errors import AAGError, describe


def as_path(value: object) -> Path:
    """Return a path that the user gave, as text or as a path."""
    if not isinstance(value, str | os.PathLike) or "\0" in os.fspath(value):  # bytes hold no text, either
        raise AAGError(f"a path must be text or a pathlib.Path without null characters, not {describe(value)}")
    return Path(value)


@contextmanager
def atomic_write_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to, and rename it to `path` at the end. After an error `path` is unchanged.

    Raises OSError.
    """
    temporary = path.with_name(f".{path.name}.{uuid4().hex}.tmp")
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def open_regular(path: Path) -> IO[bytes]:
    """Open a file to read. Raises OSError, also for a pipe or a device, which could block or never end."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(None, "it is no regular file")
    return open(descriptor, "rb")


@contextmanager
def explain_write_errors(path: Path, advice: str = "") -> Iterator[None]:
    """Turn an OSError into an AAGError that names `path`, the reason and, where given, what to do."""
    try:
        yield
    except OSError as error:
        line = f"cannot write {path}: {error.strerror or error}"
        raise AAGError(f"{line}; {advice}" if advice else line) from error


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    with explain_write_errors(path), atomic_write_path(path) as temporary:
        temporary.write_bytes(content)


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
