"""aag runs"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from aag.cli.output import Printer, print_rows
from aag.cli.parsing import parse
from aag.errors import AAGError
from aag.runs import RunStatus, find_runs, run_status
from aag.text import duration


@dataclass(frozen=True)
class Runs:
    """List runs with their status: running, complete, stopped, not started or damaged."""

    folders: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[FOLDER ...]")] = (Path("runs"),)
    """Folders to search, with their subfolders."""
    json: bool = False
    """Print JSON, for programs."""


def run(arguments: list[str]) -> int:
    options = parse(Runs, "runs", arguments)
    for folder in options.folders:
        if not os.path.isdir(folder):
            hint = "give an existing one" if options.folders != Runs.folders else "nothing was trained here yet"
            raise AAGError(f"no such folder: {folder}; {hint}")
    found = [run_status(one) for folder in options.folders for one in find_runs(folder)]
    if not found and not options.json:
        Printer()(f"no runs in {', '.join(map(str, options.folders))}")
        return 0
    rows = [_as_json(one) if options.json else _as_text(one) for one in found]
    if not options.json and len({one.method for one in found}) == 1:  # leaves room for the folder
        rows = [{name: value for name, value in row.items() if name != "method"} for row in rows]
    print_rows(rows, as_json=options.json)
    return 0


def _as_json(status: RunStatus) -> dict[str, Any]:
    return {**vars(status), "folder": str(status.folder)}


def _as_text(status: RunStatus) -> dict[str, Any]:
    return {
        "status": status.state,
        "data": os.path.basename(status.data),
        "network": status.network,
        "method": os.path.basename(status.method),  # of FILE.py:CLASS
        "epoch": f"{status.epoch}/{status.epochs}" if status.epochs else "",
        "kNN %": None if status.knn is None else round(status.knn, 2),
        "rank": None if status.rank is None else round(status.rank, 1),
        "time": "" if status.seconds is None else duration(status.seconds),
        "folder": str(status.folder),
    }
