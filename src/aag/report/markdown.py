"""The same as Markdown, for the docs: tables of ours beside theirs, and the figures in words."""

import re
from collections.abc import Iterable
from pathlib import Path

from aag.paper import Result
from aag.report.content import (
    CLOSE,
    ELSEWHERE,
    QUOTED,
    Shown,
    ShownTable,
    figures,
    label,
    open_points,
    show_tables,
    summary,
)
from aag.report.findings import Found, find_in
from aag.report.page import signed
from aag.report.protocol import origin, protocols
from aag.report.records import link, results_of, write_text


def write_markdown(results_folder: Path, out: Path) -> Path:
    """Writes the Markdown, with links to the records from where it lies."""
    return write_text(out, markdown(results_folder, out))


def markdown(results_folder: Path, out: Path) -> str:
    results = results_of(results_folder)
    tables = show_tables(results)
    drawn = [find_in(figure, results) for figure in figures()]
    parts = [
        "# The paper's tables and figures, ours beside theirs",
        "Written by `make tables` from the records under `results/`; `aag reproduce page` makes a page of the same "
        "with the figures drawn. Accuracy in percent.",
        f"**{summary(tables)}**",
        *_state(tables, drawn, out),
        f"In a cell: ours (the paper's) and the difference. {QUOTED}: the paper took the number from earlier work. "
        f"{ELSEWHERE}: shown for comparison, not reproduced here. With several seeds: their mean ± standard deviation. "
        "A short version has fewer epochs than the cell asks for and is not compared. A stale record is of settings "
        "that its recipe no longer has; its number is not shown.",
    ]
    for table in tables:
        parts += _table(table, out)
    for found in drawn:
        parts += _figure(found, out)
    parts += ["## Records", _records(tables, drawn, out)]
    if results.damaged:
        parts.append("Files that are no records:")
        parts.append(_list(f"{_plain(path.name)}: {_plain(why)}" for path, why in sorted(results.damaged.items())))
    return "\n\n".join(part for part in parts if part) + "\n"


def _state(tables: list[ShownTable], drawn: list[Found], out: Path) -> list[str]:
    below = [f"{label(one.table)}, {shown.name}: {_cell(shown, out)}" for one in tables for shown in one.below]
    waiting = [f"{label(one.table)}: {one.open_words}" for one in tables if one.open]
    waiting += [f"{label(one.figure)}: {_plain('; '.join(one.missing))}" for one in drawn if one.missing]
    close = [f"{label(one.table)}: {one.close_words}" for one in tables if one.close]
    if whole := [label(one.figure) for one in drawn if one.results and not one.missing]:
        close.append(f"{', '.join(whole)}: drawn from our runs; what they show stands beside what the paper says")
    return [
        "## What is reproduced, and what is not",
        "Reproduced:",
        _list(close),
        f"Run, and more than {CLOSE} below the paper:",
        _list(below),
        "Not run yet:",
        _list(waiting),
        "Could not be reproduced:",
        _list(f"{what}: {why}." for what, why in open_points(tables)),
    ]


def _table(shown: ShownTable, out: Path) -> list[str]:
    table = shown.table
    heads = ["", *table.columns]
    rows = [[row[0].cell.row, *(_cell(each, out) for each in row)] for row in shown.rows]
    notes = sorted({f"{ELSEWHERE} {one.cell.row}: {one.cell.elsewhere}." for one in shown.where("elsewhere")})
    used = [result for each in shown.cells for result in each.results]
    said = protocols(dict.fromkeys(each.cell.measure for each in shown.wanted), used)
    return [
        f"## {label(table)}: {table.title}",
        f"{table.shows} {shown.tally}.",
        _grid(heads, rows),
        shown.order,
        "\n".join(notes),
        " ".join(said),
    ]


def _cell(shown: Shown, out: Path) -> str:
    if shown.state == "empty":
        return "–"
    if shown.state == "elsewhere":
        return shown.paper
    parts = []
    if shown.values:
        first, *rest = (link(result.path, out) for result in shown.results)
        parts.append(f"[{shown.mean:.2f}]({first})")
        if shown.spread is not None:
            more = ", ".join(
                f"[{result.config.seed}]({url})" for result, url in zip(shown.results[1:], rest, strict=True)
            )
            parts.append(f"± {shown.spread:.2f}, {len(shown.results)} seeds (also {more})")
    if shown.state == "short":
        parts.append(f"short: {shown.note}")
    elif shown.state == "unmeasured":
        parts.append(f"{shown.note}, [record]({link(shown.results[0].path, out)})")
    elif shown.state == "missing":
        parts.append("not run yet")
    parts.append(f"({shown.paper})")
    if shown.difference is not None:
        parts.append(signed(shown.difference))
    parts += [f"stale: [record]({link(result.path, out)})" for result in shown.stale]
    return " ".join(parts)


def _figure(found: Found, out: Path) -> list[str]:
    figure = found.figure
    measured = figure.curves if figure.kind == "sweep" else [name for name in figure.curves if name == "knn"]
    links = ", ".join(_linked(result, out) for result in found.results)
    ours = _list(map(_plain, found.words)) if found.words else ""
    if figure.kind == "views":
        ours = "The page shows photographs of the bundled sample with their views."
    return [
        f"## {label(figure)}: {figure.title}",
        figure.shows,
        f"The paper: {figure.behaviour}",
        f"Ours:\n\n{ours}" if ours else "Ours: nothing to compare yet.",
        f"Missing: {_plain('; '.join(found.missing))}." if found.missing else "",
        " ".join(protocols(measured, found.results)),
        f"From {links}." if links else "",
    ]


def _records(tables: list[ShownTable], drawn: list[Found], out: Path) -> str:
    cells = (result for table in tables for shown in table.cells for result in shown.results)
    curves = (result for found in drawn for result in found.results)
    results = sorted({each.path: each for each in (*cells, *curves)}.values(), key=lambda each: each.path.name)
    if not results:
        return "None yet."
    rows = [[_linked(result, out), *map(_plain, origin(result).values())] for result in results]
    return _grid(["record", *origin(results[0])], rows)


def _linked(result: Result, out: Path) -> str:
    return f"[{_plain(result.name)}]({link(result.path, out)})"


def _grid(heads: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(line) + " |" for line in (heads, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(heads), *lines[1:]])


def _list(items: Iterable[str]) -> str:
    return "\n".join(f"- {item}" for item in items) or "- nothing"


def _plain(text: str) -> str:
    """A record's own words as text: no markup, and on one line of a table."""
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", " ".join(text.split()))
