"""aag compare"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from aag.cli.output import Printer, print_rows
from aag.cli.parsing import parse
from aag.runs import Run
from aag.signals import hold_stops
from aag.text import duration

PAGE_ONLY_KEYS = ("seconds", "status", "alignment", "uniformity")


@dataclass(frozen=True)
class Compare:
    """Compare runs: print the settings that differ and the numbers, and write an HTML page with the curves."""

    runs: Annotated[tuple[Path, ...], tyro.conf.arg(metavar="RUN ...")]
    """Run folders, two or more."""
    out: Path = Path("compare.html")
    """Page to write."""
    page: bool = True
    """Write the page."""
    json: bool = False
    """Print JSON, for programs."""


def run(arguments: list[str]) -> int:
    options = parse(Compare, "compare", arguments)
    with hold_stops():
        from aag.serving.compare import compare_runs, write_comparison
    runs = [Run.open(folder) for folder in options.runs]
    rows = compare_runs(runs)
    path = write_comparison(runs, options.out) if options.page else None
    print_rows(rows if options.json else [_as_text(row) for row in rows], as_json=options.json)
    if path and not options.json:
        Printer()(f"page     {path}")
    return 0


def _as_text(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row without the columns that make a terminal's table too wide."""
    from aag.serving.compare import column_title

    shown = {column_title(key): value for key, value in row.items() if key not in PAGE_ONLY_KEYS}
    return {**shown, "time": "" if row.get("seconds") is None else duration(row["seconds"])}
