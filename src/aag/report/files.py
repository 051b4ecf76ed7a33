"""Links from a page to its records, and how pages are written."""

import os
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

from aag.errors import AAGError
from aag.files import atomic_write_path, explain_write_errors


def link(target: Path, page: Path) -> str:
    """From a page to a file, as a URL: what lies beside the page is found wherever both are moved to."""
    try:
        return quote(Path(os.path.relpath(target, page.parent)).as_posix(), safe="/=+")
    except ValueError:  # another drive of Windows
        return target.resolve().as_uri()


def write_texts(texts: list[tuple[Path, str]]) -> None:
    """All of them, or none where one cannot be written."""
    if len({out.resolve() for out, _ in texts}) < len(texts):
        raise AAGError(f"cannot write {texts[0][0]} twice; give two names")
    with ExitStack() as last:  # the files take their places when all are written
        for out, text in texts:
            if out.is_dir():
                raise AAGError(f"cannot write {out}: it is a folder; give the name of a file")
            last.enter_context(explain_write_errors(out))
            out.parent.mkdir(parents=True, exist_ok=True)
            last.enter_context(atomic_write_path(out)).write_bytes(text.encode())
