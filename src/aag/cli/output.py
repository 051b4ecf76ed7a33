"""Printing: text, rows as a table or as JSON, and the progress of decoding and embedding."""

import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from aag.cli.streams import FaultTolerantStream
from aag.text import column_texts

USER_LOGGERS = ("aag.data", "aag.locks", "aag.serving", "aag.training")  # their messages are for users
MAX_UNWRAPPED_WIDTH = 12  # characters; narrower columns are never wrapped


def make_console(*, stderr: bool = False, quiet: bool = False, ignore_write_errors: bool = False) -> Console:
    """Return a console for text without markup. With `ignore_write_errors`, write errors do not end the program."""
    # A path is printed as it is: "photos [old]" holds no markup, and "a:b:c" no emoji.
    file: Any = FaultTolerantStream(sys.stderr if stderr else sys.stdout) if ignore_write_errors else None
    return Console(markup=False, emoji=False, stderr=stderr, quiet=quiet, file=file)


class Printer:
    """Prints lines of text to a console, without markup."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or make_console()

    def __call__(self, text: str = "") -> None:
        self.console.print(text, highlight=False, soft_wrap=True)


def print_rows(rows: Sequence[Mapping[str, Any]], *, as_json: bool = False, title: str = "") -> None:
    """Print rows, which share their keys, as a table; with `as_json`, as a JSON list of objects and nothing else.

    Numbers are aligned to the right. JSON has the raw values.
    """
    if as_json:
        print(json.dumps(list(rows), indent=1, ensure_ascii=False))
        return
    console = make_console()
    columns = {name: column_texts([row[name] for row in rows]) for name in (rows[0] if rows else ())}
    numeric = {name for name in columns if all(isinstance(row[name], int | float | None) for row in rows)}
    widths = {name: max(map(cell_len, (name, *cells))) for name, cells in columns.items()}
    fits = sum(widths.values()) + 3 * len(widths) + 1 <= console.width
    if (
        not fits
        and len(rows) < len(widths)
        and sum(min(width, MAX_UNWRAPPED_WIDTH) + 2 for width in widths.values()) > console.width
    ):
        # Too many columns for this terminal: they become the rows.
        (first, names), *others = columns.items()
        columns = {first: [name for name, _ in others]}
        columns |= {f"{name}\0{number}": [cells[number] for _, cells in others] for number, name in enumerate(names)}
        numeric, widths, fits = set(), dict.fromkeys(columns, MAX_UNWRAPPED_WIDTH + 1), True
    *leading, last = columns or [""]
    if not fits and last not in numeric and sum(widths[name] + 2 for name in leading) <= console.width:
        _print_with_long_column(console, columns, numeric, title)
        return
    table = Table(title=title or None, title_justify="left")
    if not fits:  # no borders leave more room
        table.box, table.show_edge, table.pad_edge, table.padding = SIMPLE_HEAD, False, False, (0, 1, 0, 0)
    for name in columns:
        justify: Literal["right", "left"] = "right" if name in numeric else "left"
        table.add_column(
            name.split("\0")[0], justify=justify, overflow="fold", no_wrap=widths[name] <= MAX_UNWRAPPED_WIDTH
        )
    for cells in zip(*columns.values(), strict=True):
        table.add_row(*cells)
    console.print(table)


def _print_with_long_column(
    console: Console, columns: Mapping[str, Sequence[str]], numeric: set[str], title: str
) -> None:
    """Print columns of which only the last is too wide. It is not wrapped, so that a path can be copied."""
    texts = [(name, *cells) for name, cells in columns.items()]
    widths = [max(map(cell_len, column)) for column in texts[:-1]]
    lines = [
        "".join(_pad(text, width, name in numeric) for text, width, name in zip(row, widths, columns, strict=False))
        + row[-1]
        for row in zip(*texts, strict=True)
    ]
    rule = "─" * min(console.width, max(map(cell_len, lines)))
    for line in [*([title] if title else []), lines[0], rule, *lines[1:]]:
        console.print(line, highlight=False, soft_wrap=True)


def _pad(text: str, width: int, is_number: bool) -> str:
    space = " " * (width - cell_len(text))
    return (space + text if is_number else text + space) + "  "


@contextmanager
def decoding_progress(console: Console | None = None) -> Iterator[Callable[[int, int], None]]:
    """Yield the `progress` that `aag.data.load` takes: a bar that appears while files are decoded.

    Messages of the library, such as the size of the decoded images, are printed above the bar. Without a console, both
    go to standard error, apart from the results.
    """
    console = console or make_console(stderr=True)
    bar: Progress | None = None

    def report(done: int, total: int) -> None:
        nonlocal bar
        if bar is None and done < total:
            bar = _make_bar("decoding", console, transient=True)
            bar.add_task("", total=total, completed=done)
            bar.start()
        if bar is not None:
            bar.update(bar.task_ids[0], completed=done, total=total)  # a total may be an estimate
            if done >= total:
                bar.stop()
                bar = None

    with _print_messages(console):
        try:
            yield report
        finally:
            if bar is not None:
                bar.stop()


@contextmanager
def _print_messages(console: Console) -> Iterator[None]:
    """Print what the library logs for users."""
    handler, logs = _PrintRecords(console), [logging.getLogger(name) for name in USER_LOGGERS]
    before = [(log.level, log.propagate) for log in logs]
    for log in logs:
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False  # the handler prints it; the root's would print it again
    try:
        yield
    finally:
        for log, (level, propagate) in zip(logs, before, strict=True):
            log.removeHandler(handler)
            log.setLevel(level)
            log.propagate = propagate


@contextmanager
def embedding_progress() -> Iterator[Callable[[int, int], None]]:
    """Yield a function (images done, all images) that shows a bar on standard error, where that is a terminal.

    Messages of the library are printed above it.
    """
    with _make_bar("embedding", make_console(stderr=True)) as bar, _print_messages(bar.console):

        def report(done: int, total: int) -> None:
            if not bar.task_ids:  # images of an earlier call do not count for the speed
                bar.add_task("", total=total, completed=done)
            bar.update(bar.task_ids[0], completed=done, total=total)  # a total may be an estimate

        yield report


def _make_bar(name: str, console: Console, *, transient: bool = False) -> Progress:
    columns = (TextColumn(name), BarColumn(bar_width=14), MofNCompleteColumn(), _Rate(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=transient, disable=not console.is_terminal)


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed
        if (task.elapsed or 0) > 1:  # the first chunks arrive together, which would look fast
            speed = speed or task.speed
        return Text(f"{speed:,.0f} images/s" if speed else "")


class _PrintRecords(logging.Handler):
    """Prints log records as lines of text."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console

    def emit(self, record: logging.LogRecord) -> None:
        prefix = "warning: " if record.levelno >= logging.WARNING else ""
        self.console.print(f"{prefix}{record.getMessage()}", highlight=False, soft_wrap=True)
