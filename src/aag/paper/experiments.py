"""The paper's tables and figures, read from paper.toml: each cell's number, and the run that should give it."""

import tomllib
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from aag.config import TrainConfig, recipe_config
from aag.errors import AAGError

EMPTY = "–"  # a cell that the paper leaves so


@dataclass(frozen=True)
class Cell:
    row: str
    column: str
    paper: float | None  # percent; None: left empty
    measure: str  # knn, linear, or knn@E: the kNN after epoch E
    config: TrainConfig | None  # the run, with seed 0; None: nothing to run, for an empty cell or a number of others
    quoted: bool = False  # by the paper, from earlier work
    elsewhere: str = ""  # where a number comes from that is not reproduced
    added: bool = False  # a row of ours, which the paper has not: its number is of another run


@dataclass(frozen=True)
class Table:
    id: str
    title: str
    shows: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    against: str = ""  # the row or column that the table compares the others with

    @property
    def cells(self) -> tuple[Cell, ...]:
        return tuple(cell for row in self.rows for cell in row)

    @cached_property
    def configs(self) -> tuple[TrainConfig, ...]:
        """The runs it needs, each once."""
        return _each_once([cell.config for cell in self.cells if cell.config])


@dataclass(frozen=True)
class Series:
    """One run of a figure: its name in the legend, and its place where the figure is a sweep."""

    name: str
    config: TrainConfig
    x: float | None = None


@dataclass(frozen=True)
class Figure:
    id: str
    title: str
    shows: str
    kind: str  # views, sweep, steps, epochs or tsne
    behaviour: str  # what the paper says one sees
    series: tuple[Series, ...]
    curves: tuple[str, ...] = ()  # of a sweep the measures, else what was logged
    x: str = ""  # the axis of a sweep
    log: bool = False  # whether that axis is logarithmic

    @cached_property
    def configs(self) -> tuple[TrainConfig, ...]:
        return _each_once([one.config for one in self.series])


def _each_once(configs: list[TrainConfig]) -> tuple[TrainConfig, ...]:
    return tuple({config.run_name(): config for config in configs}.values())


def _config(settings: dict[str, Any], suffix: str = "") -> TrainConfig:
    """The run of a cell: what differs from its recipe. `suffix` goes behind the network's name."""
    settings = dict(settings)
    base = recipe_config(settings.pop("recipe", "auto"), settings.pop("data"), settings.pop("method", "aag"))
    if suffix:
        settings["network"] += suffix
    return replace(base, **settings).validate()


def _table(raw: dict[str, Any]) -> Table:
    rows = []
    for row in raw["rows"]:
        cells = []
        for column, number in zip(raw["columns"], row["paper"], strict=True):
            empty, elsewhere = number == EMPTY, row.get("elsewhere", "")
            settings = {**raw.get("settings", {}), **column.get("settings", {}), **row.get("settings", {})}
            cells.append(
                Cell(
                    row["name"],
                    column["name"],
                    None if empty else float(number),
                    column.get("measure") or row.get("measure") or raw["measure"],
                    None if empty or elsewhere else _config(settings, row.get("suffix", "")),
                    row.get("quoted", False),
                    elsewhere,
                    row.get("added", False),
                )
            )
        rows.append(tuple(cells))
    columns = tuple(column["name"] for column in raw["columns"])
    return Table(raw["id"], raw["title"], raw["shows"], columns, tuple(rows), raw.get("against", ""))


def _figure(raw: dict[str, Any]) -> Figure:
    series = tuple(Series(run["name"], _config(run["settings"]), run.get("x")) for run in raw["runs"])
    curves = tuple(raw.get("curves") or raw.get("measures") or ())
    return Figure(
        raw["id"], raw["title"], raw["shows"], raw["kind"], raw["behaviour"], series, curves, raw.get("x", ""),
        raw.get("log", False),
    )  # fmt: skip


def _read() -> dict[str, Table | Figure]:
    raw = tomllib.loads((Path(__file__).parent / "paper.toml").read_text(encoding="utf-8"))
    parts: list[Table | Figure] = [*map(_table, raw["tables"]), *map(_figure, raw["figures"])]
    return {part.id: part for part in parts}


PAPER: dict[str, Table | Figure] = _read()


def with_epochs(config: TrainConfig, scale: float) -> TrainConfig:
    """A short version of a run: whole rounds of so many times their epochs, at least one."""
    if not 0 < scale <= 1:
        raise AAGError(f"--epochs-scale must lie above 0 and be at most 1, not {scale}")
    if scale == 1:
        return config
    each = max(1, round(config.epochs / config.rounds * scale))
    warmup = None if config.warmup_epochs is None else min(round(config.warmup_epochs * scale), each - 1)
    return replace(config, epochs=config.rounds * each, warmup_epochs=warmup)


def in_short(measure: str, short: TrainConfig, full: TrainConfig) -> str:
    """What a short version has in the place of a measure: of the kNN after an epoch, the one at the same share of it.

    A round is a run of its own: where there are only fewer of them, an epoch is the same one.
    """
    kind, _, epoch = measure.partition("@")
    if not epoch or short.rounds != full.rounds:
        return measure
    return f"{kind}@{round(int(epoch) * short.epochs / full.epochs)}"
