"""Files that are whole or not there: written beside their place and swapped in; and where a projection lies."""

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from aag.errors import AAGError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path to write to; it takes the place of `path` at the end, or vanishes if anything goes wrong.

    Whoever reads `path`, even after a crash, sees the old file or the new one. Raises OSError.
    """
    temporary = path.with_name(f".{path.name}.{uuid4().hex}.tmp")
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """What the disk refuses, in one line."""
    try:
        yield
    except OSError as error:
        raise AAGError(f"cannot write {path}: {error.strerror or error}") from error


def write_bytes(path: Path, content: bytes) -> None:
    with writing(path), replacing(path) as temporary:
        temporary.write_bytes(content)


def write_json(path: Path, content: object) -> None:
    """Indented, with lists of plain values on one line each."""
    text = json.dumps(content, indent=1)
    # Between raw newlines only: a JSON string never holds one, so that no string is touched.
    text = re.sub(r"\[\n\s*([^\[\]{}]*?)\n\s*\]", lambda found: "[" + re.sub(r"\n\s*", " ", found[1]) + "]", text)
    write_bytes(path, (text + "\n").encode())


def projection_file(records: Path, run: str) -> Path:
    """Where a run's t-SNE lies, beside the record of the same name."""
    return records / "tsne" / f"{run}.json"
