"""The paper's tables and figures, read from paper.toml: each cell's number, and the run that should give it."""

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from aag.errors import AAGError
from aag.training import RunSettings, choose_recipe, recipe_settings, run_name

EMPTY_CELL = "–"  # the paper leaves it empty


@dataclass(frozen=True)
class Experiment:
    """A run that a table or figure needs: its settings as written, and the recipe that they start from."""

    settings: RunSettings
    recipe: str

    @cached_property
    def name(self) -> str:
        return run_name(self.settings, self.recipe)

    @cached_property
    def resolved(self) -> dict[str, Any]:
        """The settings as records hold them; the precision stays "auto" unless one is chosen."""
        return self.settings.resolve().to_json()

    @cached_property
    def options(self) -> dict[str, Any]:
        return self.settings.options()

    def replace(self, **options: Any) -> "Experiment":
        return Experiment(self.settings.replace(**options), self.recipe)

    def shorten(self, scale: float) -> "Experiment":
        """Return a short version: the same rounds, with `scale` times their epochs, at least one."""
        if not 0 < scale <= 1:
            raise AAGError(f"--epochs-scale must be above 0 and at most 1, not {scale}")
        if scale == 1:
            return self
        train = self.settings.train
        epochs = max(1, round(train.round_epochs * scale))
        warmup = None if train.warmup_epochs is None else min(round(train.warmup_epochs * scale), epochs - 1)
        return self.replace(epochs=train.rounds * epochs, warmup_epochs=warmup)


@dataclass(frozen=True)
class Cell:
    row: str
    column: str
    paper: float | None  # percent; None: the paper leaves it empty
    measure: str  # knn, linear, or knn@E: the kNN after epoch E
    experiment: Experiment | None  # with seed 0; None: nothing to run
    quoted: bool = False  # the paper took the number from earlier work
    elsewhere: str = ""  # source of a number that is shown and not reproduced here
    added: bool = False  # a row of ours, next to the paper's number of another run
    incomparable: str = ""  # why our number cannot be compared with the paper's


@dataclass(frozen=True)
class Table:
    id: str
    title: str
    shows: str
    notes: tuple[str, ...]  # ours, not the paper's
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    against: str = ""  # the row or column that the table compares the others with
    text_column: str = ""  # head of a column of words
    texts: tuple[str, ...] = ()  # its cells, one per row

    @property
    def cells(self) -> tuple[Cell, ...]:
        return tuple(cell for row in self.rows for cell in row)

    @cached_property
    def experiments(self) -> tuple[Experiment, ...]:
        return _unique(cell.experiment for cell in self.cells if cell.experiment)


@dataclass(frozen=True)
class Series:
    """One run of a figure: its name in the legend, and its x value in a sweep."""

    name: str
    experiment: Experiment
    x: float | None = None


@dataclass(frozen=True)
class Figure:
    id: str
    title: str
    shows: str
    notes: tuple[str, ...]  # ours, not the paper's
    kind: str  # views, sweep, steps, epochs or tsne
    behaviour: str  # what the paper says about it
    series: tuple[Series, ...]
    curves: tuple[str, ...] = ()  # measures of a sweep, else names of logged curves
    x: str = ""  # what a sweep varies
    log: bool = False  # whether its axis is logarithmic

    @cached_property
    def experiments(self) -> tuple[Experiment, ...]:
        return _unique(series.experiment for series in self.series)


Part = Table | Figure


def _unique(experiments: Iterable[Experiment]) -> tuple[Experiment, ...]:
    """Return experiments without repetitions, in order."""
    return tuple({each.name: each for each in experiments}.values())


def make_experiment(data: str, recipe: str = "auto", method: str | None = None, **options: Any) -> Experiment:
    """Return a recipe's run on a data set, with some options changed."""
    recipe, method = choose_recipe(recipe, data, method)
    return Experiment(recipe_settings(recipe, data, method).replace(**options), recipe)


def _cell(table: dict[str, Any], row: dict[str, Any], column: dict[str, Any], number: Any) -> Cell:
    empty, elsewhere = number == EMPTY_CELL, row.get("elsewhere", "")
    own = row.get("cells", {}).get(column["name"], {})
    options = {**table.get("settings", {}), **column.get("settings", {}), **row.get("settings", {}), **own}
    if "suffix" in row:
        options["network"] += row["suffix"]
    return Cell(
        row["name"],
        column["name"],
        None if empty else float(number),
        column.get("measure") or row.get("measure") or table["measure"],
        None if empty or elsewhere else make_experiment(**options),
        row.get("quoted", False),
        elsewhere,
        row.get("added", False),
        column.get("incomparable", ""),
    )


def _table(raw: dict[str, Any]) -> Table:
    columns = raw["columns"]
    rows = tuple(
        tuple(_cell(raw, row, column, number) for column, number in zip(columns, row["paper"], strict=True))
        for row in raw["rows"]
    )
    names = tuple(column["name"] for column in columns)
    notes = tuple(raw.get("notes", ()))
    text_column = raw.get("text_column", "")
    texts = tuple(row.get("text", "") for row in raw["rows"]) if text_column else ()
    return Table(raw["id"], raw["title"], raw["shows"], notes, names, rows, raw.get("against", ""), text_column, texts)


def _figure(raw: dict[str, Any]) -> Figure:
    raw = dict(raw)
    runs = raw.pop("runs")
    series = tuple(Series(run["name"], make_experiment(**run["settings"]), run.get("x")) for run in runs)
    lists: Any = {name: tuple(raw.pop(name, ())) for name in ("notes", "curves")}
    return Figure(series=series, **lists, **raw)


def _read() -> dict[str, Part]:
    raw = tomllib.loads((Path(__file__).parent / "paper.toml").read_text(encoding="utf-8"))
    parts: list[Part] = [*map(_table, raw["tables"]), *map(_figure, raw["figures"])]
    return {part.id: part for part in parts}


PAPER: dict[str, Part] = _read()


def shorten_measure(measure: str, epochs: int, rounds: int, full: Experiment) -> str:
    """Return the measure of a short version that stands for one of the full run: knn@E at the same fraction of epochs.

    If the short version has fewer rounds of the same length, E does not change.
    """
    kind, _, epoch = measure.partition("@")
    train = full.settings.train
    if not epoch or rounds != train.rounds:
        return measure
    return f"{kind}@{round(int(epoch) * epochs / train.epochs)}"
