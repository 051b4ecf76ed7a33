"""Links from a page to files, and how pages are written."""

import os
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

from aag.errors import AAGError
from aag.files import atomic_write_path, explain_write_errors


def relative_url(target: Path, page: Path) -> str:
    """Return the URL of a file relative to a page, so that both can be moved together."""
    try:
        return quote(Path(os.path.relpath(target, page.parent)).as_posix(), safe="/=+")
    except ValueError:  # another drive of Windows
        return target.resolve().as_uri()


def write_texts(texts: dict[Path, str]) -> None:
    """Write all files, or none where one cannot be written."""
    if len({path.resolve() for path in texts}) < len(texts):
        raise AAGError(f"cannot write two pages to {next(iter(texts))}; give two names")
    with ExitStack() as stack:  # files are renamed into place when all are written
        for path, text in texts.items():
            if path.is_dir():
                raise AAGError(f"cannot write {path}: it is a folder; give the name of a file")
            stack.enter_context(explain_write_errors(path))
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(atomic_write_path(path)).write_bytes(text.encode())
