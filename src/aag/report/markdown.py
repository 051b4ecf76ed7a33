"""The same as Markdown, for the docs: tables of ours beside theirs, and the figures in words."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from aag.paper import Result
from aag.report.cells import ELSEWHERE, QUOTED, Shown, ShownTable, label, signed
from aag.report.content import WORDS, Content, Point
from aag.report.files import link
from aag.report.findings import Found
from aag.report.protocol import origin


def markdown(content: Content, out: Path) -> str:
    """With links to the records from where it is to lie."""
    parts = [
        "# The paper's tables and figures, ours beside theirs",
        "Written from the records that it links to, not by hand; `aag reproduce page` makes a page of the same with "
        "the figures drawn. Accuracy in percent.",
        f"**{content.summary}**",
        "## What is reproduced, and what is not",
    ]
    for head, points in content.state().items():
        parts += [f"{head}:", _list(_point(each, out) for each in points)]
    parts.append(
        f"In a cell: ours (the paper's) and the difference. {QUOTED}: the paper took the number from earlier work. "
        f"{ELSEWHERE}: shown for comparison, not run here. With several seeds: their mean ± standard deviation. {WORDS}"
    )
    for table in content.tables:
        parts += _table(table, out)
    for figure in content.figures:
        parts += _figure(figure, out)
    parts += ["## Records", _records(content.used, out)]
    if content.damaged:
        parts.append("Files that are passed over:")
        parts.append(_list(f"{_plain(path.name)}: {_plain(why)}" for path, why in content.damaged))
    return "\n\n".join(part for part in parts if part) + "\n"


def _point(point: Point, out: Path) -> str:
    name = ", ".join([*map(label, point.of), *([point.name] if point.name else [])])
    return f"{name}: {_cell(point.cell, out, with_seeds=True) if point.cell else _plain(point.text)}"


def _table(shown: ShownTable, out: Path) -> list[str]:
    table = shown.table
    heads = ["", *table.columns]
    rows = [[row[0].cell.row, *(_cell(each, out, with_seeds=not shown.even) for each in row)] for row in shown.rows]
    return [
        f"## {label(table)}: {table.title}",
        table.shows,
        f"{shown.tally}.",
        grid(heads, rows),
        shown.gains,
        shown.order,
        *shown.notes,
        _plain(" ".join(shown.protocols)),
    ]


def _cell(shown: Shown, out: Path, with_seeds: bool) -> str:
    """`with_seeds`: with the number of seeds, which a table names once where it is that of all."""
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
            parts.append(f"± {shown.spread:.2f}, {shown.seeds} (also {more})")
        elif with_seeds:
            parts[-1] += f", {shown.seeds}"
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
    links = ", ".join(f"[{_plain(name)}]({link(path, out)})" for name, path in found.files.items())
    which = f" ({found.seeds})" * bool(found.seeds)
    ours = _list(map(_plain, found.words)) if found.words else ""
    if figure.kind == "views":
        ours = "The page shows photographs of the bundled sample with their views."
    return [
        f"## {label(figure)}: {figure.title}",
        figure.shows,
        f"The paper: {figure.behaviour}",
        f"Ours:\n\n{ours}" if ours else "Ours: nothing to compare yet.",
        f"Missing: {_plain('; '.join(found.missing))}." if found.missing else "",
        _plain(" ".join(found.protocols)),
        f"From {links}{which}." if links else "",
    ]


def _records(results: list[Result], out: Path) -> str:
    if not results:
        return "None yet."
    rows = [[_linked(result, out), *map(_plain, origin(result).values())] for result in results]
    return grid(["record", *origin(results[0])], rows)


def _linked(result: Result, out: Path) -> str:
    return f"[{_plain(result.name)}]({link(result.path, out)})"


def grid(heads: list[Any], rows: list[list[Any]], left: int | None = None) -> str:
    """A table: its first columns to the left, the others to the right; None: all to the left."""
    lines = ["| " + " | ".join(map(str, line)) + " |" for line in (heads, *rows)]
    left = len(heads) if left is None else left
    return "\n".join([lines[0], "|" + "---|" * left + "---:|" * (len(heads) - left), *lines[1:]])


def _list(items: Iterable[str]) -> str:
    return "\n".join(f"- {item}" for item in items) or "- nothing"


def _plain(text: str) -> str:
    """A record's own words as text: no markup, and on one line of a table."""
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", " ".join(text.split()))
