"""Printing: text, and rows as a table or as JSON."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table


def make_console() -> Console:
    # A path is printed as it is: "photos [old]" holds no markup, and "a:b:c" no emoji.
    return Console(markup=False, emoji=False)


class Printer:
    def __init__(self, console: Console | None = None) -> None:
        self.console = console or make_console()

    def __call__(self, text: str = "") -> None:
        self.console.print(text, highlight=False, soft_wrap=True)


def print_rows(rows: Sequence[Mapping[str, Any]], *, as_json: bool = False, title: str = "") -> None:
    """Print rows, which share their keys, as a table; with `as_json`, as a JSON list of objects and nothing else.

    Numbers are aligned to the right. Format them for people only through `str`: JSON has the raw values.
    """
    if as_json:
        print(json.dumps(list(rows), indent=1, ensure_ascii=False))
        return
    table = Table(title=title or None, title_justify="left")
    for name in rows[0] if rows else ():
        numeric = all(isinstance(row[name], int | float) or row[name] is None for row in rows)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*("–" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
                        for value in row.values()))  # fmt: skip
    make_console().print(table)
