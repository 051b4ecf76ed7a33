"""Parse metrics.jsonl and skip rows that lack what their kind must hold."""

import io
import json
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

Row = dict[str, Any]
MAX_DAMAGED = 1000  # lines: to read millions of them takes minutes
NUMBERS = {  # that the readers of a kind need; all other values of these kinds must be numbers too
    "steps": ("loss",),
    "epoch": ("loss", "seconds", "views_per_second"),
    "knn": ("knn",),
    "health": ("rank", "dimensions", "alignment", "uniformity", "agreement", "images"),
}


def parse_rows(text: str) -> list[Row]:
    """Return the rows of a log, one JSON object per line. Lines that are cut off, damaged or malformed are skipped.

    After `MAX_DAMAGED` of them, the rest is skipped too.
    """
    rows: list[Row] = []
    damaged = 0
    for line in io.StringIO(text):
        row: Any = None
        with suppress(ValueError, RecursionError):
            row = json.loads(line)
        if _is_valid(row):
            rows.append(row)
        elif (damaged := damaged + 1) == MAX_DAMAGED:
            break
    return rows


def _is_valid(row: Any) -> bool:
    if not isinstance(row, dict) or not isinstance(kind := row.get("kind"), str):
        return False
    if not all(type(row.get(name)) is int and 0 <= row[name] < 2**53 for name in ("epoch", "step")):
        return False
    if kind == "start" and type(row.get("images", 0)) is not int:
        return False
    return kind not in NUMBERS or (
        row.keys() >= {*NUMBERS[kind]} and _are_numbers(value for name, value in row.items() if name != "kind")
    )


def _are_numbers(values: Iterable[Any]) -> bool:
    """Return whether all are finite numbers that a float can hold."""
    return all(type(value) in (int, float) and abs(value) < 2**1000 for value in values)
