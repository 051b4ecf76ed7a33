"""The records a page may rely on, and links to them."""

import math
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

from aag.errors import AAGError
from aag.files import write_bytes, writing
from aag.paper import Result, Results


def sound_results(folder: Path) -> Results:
    """All records of the folder; one that is no record after all counts as damaged, and the page goes on without it."""
    if folder.exists() and not folder.is_dir():
        raise AAGError(f"{folder} is not a folder of records; give the folder that aag evaluate --record wrote to")
    results = Results(folder)
    for result in list(results.all):
        if why := _fault(result):
            results.all.remove(result)
            results.damaged[result.path] = why
    return results


def _fault(result: Result) -> str:
    """What would make a page fail, or show a number that is none. Empty: nothing."""
    record = result.record
    try:
        result.config.validate()
        _need(isinstance(record["name"], str), "its name is no text")
        last = record["knn"]["last"]
        _need(last is None or accuracy(last), f"its kNN is {last!r}")
        _need(all(number(epoch) and accuracy(knn) for epoch, knn in record["knn_by_epoch"]), "its kNN curve is broken")
        for row in record["evaluation"]:
            _need(accuracy(row["accuracy"]), f"an accuracy is {row['accuracy']!r}")
            _need(isinstance(row["protocol"]["evaluation"], str), "an accuracy has no protocol")
        _need(all(number(x) and number(y) for x, y in record.get("loss_by_epoch", [])), "its loss curve is broken")
        sessions = record.get("sessions", [])
        _need(isinstance(sessions, list) and all(isinstance(one, dict) for one in sessions), "its sessions are broken")
    except (AAGError, KeyError, TypeError, ValueError) as error:
        return str(error) if isinstance(error, AAGError) else f"{type(error).__name__}: {error}"
    return ""


def _need(true: bool, else_say: str) -> None:
    if not true:
        raise AAGError(else_say)


def number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def accuracy(value: Any) -> bool:
    return number(value) and 0 <= value <= 100


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
