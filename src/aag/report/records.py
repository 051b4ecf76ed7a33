"""The records of a page, and links to them."""

import os
from pathlib import Path
from urllib.parse import quote

from aag.errors import AAGError
from aag.files import write_bytes, writing
from aag.paper import Results


def results_of(folder: Path) -> Results:
    """All records of the folder, where it is one."""
    if folder.exists() and not folder.is_dir():
        raise AAGError(f"{folder} is not a folder of records; give the folder that aag evaluate --record wrote to")
    return Results(folder)


def link(target: Path, page: Path) -> str:
    """From a page to a file, as a URL: what lies beside the page is found wherever both are moved to."""
    try:
        return quote(Path(os.path.relpath(target, page.parent)).as_posix(), safe="/=+")
    except ValueError:  # another drive of Windows
        return target.resolve().as_uri()


def write_text(out: Path, text: str) -> Path:
    if out.is_dir():
        raise AAGError(f"cannot write {out}: it is a folder; give the name of a file")
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(out, text.encode())
    return out
