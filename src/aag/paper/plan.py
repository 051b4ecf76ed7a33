"""What to run for a table or figure: the choice of cells, how each run stands, and its commands. No torch here."""

import json
import math
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from aag.config import TrainConfig
from aag.errors import AAGError, unknown
from aag.paper.experiments import PAPER, Figure, Table, in_short, with_epochs
from aag.paper.results import Results, images_of

TSNE = "t-SNE projection"  # what a figure may need of a run; other needs are curves and measures
WORK = {"alexnet": 1, "resnet18": 3, "resnet50": 11}  # of a view, roughly


@dataclass(frozen=True)
class Reproduce:
    """The paper's tables and figures: runs what a table still needs, skips what is recorded, resumes what was cut off.
    Without a name: what each table and figure shows and needs, and what is done. `aag reproduce page` writes all of it
    as one page, ours beside the paper's."""

    what: tuple[str, ...]
    """table1 … table7, figure1 … figure6, several of them, or all."""
    dataset: str | None = None
    """Only the runs on this set."""
    network: str | None = None
    """Only the runs of this network."""
    row: str | None = None
    """Only this row of a table, or this curve of a figure: its name, or a part that several may share."""
    column: str | None = None
    """Only this column: its name, or a part that several may share."""
    epochs_scale: float = 1.0
    """A short version: this share of each run's epochs, recorded under a name of its own."""
    seeds: int = 1
    """Runs of each cell, with the seeds 0, 1, …"""
    shard: str | None = None
    """A part of the runs, recorded or not: 2/8 is the second of eight, the same on every machine and about as much
    work."""
    list: bool = False
    """Print each run: how it stands, how long it took or may take, and what needs it; and run nothing."""
    plan: bool = False
    """Print the commands, one run a line, and run nothing."""
    results: Path = Path("results")
    """Where the records lie."""
    runs: Path = Path("runs")
    """Where the run folders lie."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    data_root: Path | None = None
    """Where data sets lie. Default: $AAG_DATA, else the cache folder."""
    knn_every: int | None = None
    """Epochs between kNN evaluations, as in aag train. Default: the recipe's."""


@dataclass(frozen=True)
class Planned:
    """One run of a selection."""

    name: str  # of the run, its folder and its record
    config: TrainConfig  # complete: with its folder, its device and where data lie
    epochs: int  # of the full version
    parts: tuple[str, ...]  # the tables and figures of the selection that need it
    needs: frozenset[str]  # what they need of its record: measures, names of curves; and TSNE
    projected: bool  # by t-SNE together with its record: a figure shows it so, and its folder may not stay

    @property
    def folder(self) -> Path:
        assert self.config.out is not None
        return self.config.out

    @property
    def label(self) -> str:
        short = f"; short version, {self.config.epochs} of {self.epochs} epochs" * (self.config.epochs < self.epochs)
        return f"{self.name} ({', '.join(self.parts)}{short})"


class Standing(StrEnum):
    RECORDED = "recorded"
    PARTIAL = "in part"  # recorded, without something that a table or figure shows
    BEGUN = "begun"  # its folder has a checkpoint: trained in part, or wholly and not evaluated
    STALE = "stale"  # recorded with settings that its recipe no longer has
    MISSING = "missing"


# --- choosing ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """A cell of a table, or a curve of a figure."""

    row: str
    column: str
    config: TrainConfig | None
    measures: tuple[str, ...] = ()
    drawn: tuple[str, ...] = ()  # of one run, whatever the number of seeds: curves, or TSNE

    @property
    def dataset(self) -> str:
        return self.config.data if self.config else ""

    @property
    def network(self) -> str:
        """As the paper names it: a branch that a method adds (resnet18+sobel) is the method's."""
        return self.config.network.partition("+")[0] if self.config else ""


def places(part: Table | Figure) -> list[Place]:
    if isinstance(part, Table):
        return [Place(cell.row, cell.column, cell.config, (cell.measure,)) for cell in part.cells]
    measures = part.curves if part.kind == "sweep" else ()
    drawn = {"tsne": (TSNE,), "steps": part.curves}.get(part.kind, ())
    return [Place(series.name, "", series.config, measures, drawn) for series in part.series]


def named(what: Iterable[str]) -> list[Table | Figure]:
    """The tables and figures of these names, each once."""
    chosen: dict[str, Table | Figure] = {}
    for name in map(str.lower, what):
        if name == "page":
            raise AAGError("the page is of all tables and figures: aag reproduce page")
        if name != "all" and name not in PAPER:
            raise unknown("table or figure", name, [*PAPER, "all"])
        chosen |= PAPER if name == "all" else {name: PAPER[name]}
    return list(chosen.values())


def select(options: Reproduce, parts: Iterable[Table | Figure] | None = None) -> list[Planned]:
    """The runs of a selection, each once, whether recorded or not: so that a shard is the same on every machine."""
    parts = named(options.what) if parts is None else list(parts)
    if options.seeds < 1:
        raise AAGError(f"--seeds must be at least 1, not {options.seeds}")
    chosen = [(part.id, place) for part, place in _filtered(parts, options) if place.config]
    if options.knn_every is not None:
        _check_watched(chosen, options)
    clouds = [part for part in PAPER.values() if isinstance(part, Figure) and part.kind == "tsne"]
    shown = {with_epochs(config, options.epochs_scale).run_name() for part in clouds for config in part.configs}
    runs: dict[str, Planned] = {}
    for seed in range(options.seeds):  # the first seed of every cell comes before the second of any
        for part, place in chosen:
            assert place.config is not None
            full = replace(place.config, seed=seed)
            config = _complete(with_epochs(full, options.epochs_scale), full, options)
            needs = {in_short(measure, config, full) for measure in place.measures}
            needs |= set() if seed else set(place.drawn)  # a figure shows one run of each kind
            name = config.run_name()
            there = runs.get(name, Planned(name, config, full.epochs, (), frozenset(), name in shown))
            joined = tuple(dict.fromkeys((*there.parts, part)))
            runs[name] = replace(there, parts=joined, needs=there.needs | needs)
    return _shard(list(runs.values()), options.shard)


def _filtered(parts: list[Table | Figure], options: Reproduce) -> Iterator[tuple[Table | Figure, Place]]:
    wanted = {name: getattr(options, name) for name in ("dataset", "network", "row", "column")}
    wanted = {name: value for name, value in wanted.items() if value is not None}
    if "" in wanted.values():
        raise AAGError("an empty name fits everything; leave the option out")
    known: dict[str, set[str]] = {name: set() for name in wanted}
    found: dict[str, set[str]] = {name: set() for name in wanted}
    kept = []
    for part in parts:
        every = chosen = places(part)
        for name, value in wanted.items():
            names = {getattr(place, name) for place in every} - {""}
            matching = _matching(value, names)
            known[name] |= names
            found[name] |= matching
            chosen = [place for place in chosen if getattr(place, name) in matching]
        kept += [(part, place) for place in chosen]
    for name, value in wanted.items():
        if not known[name]:
            raise AAGError(f"--{name} {value}: nothing that is selected has a {name}; leave it out")
        if not found[name]:
            raise unknown(name, value, known[name])
    if wanted and not any(place.config for _, place in kept):
        asked = ", ".join(f"--{name} {value}" for name, value in wanted.items())
        raise AAGError(f"no run fits {asked}: such a cell is not there, is empty in the paper, or is of others")
    yield from kept


def _matching(wanted: str, names: set[str]) -> set[str]:
    """The name itself, where there is one (NT-Xent, not GNT-Xent); else all that it is a part of."""
    small = wanted.lower()
    return {name for name in names if name.lower() == small} or {name for name in names if small in name.lower()}


def _check_watched(chosen: list[tuple[str, Place]], options: Reproduce) -> None:
    """That kNN is evaluated after the epochs that a table shows."""
    for part, place in chosen:
        assert place.config is not None
        short = with_epochs(place.config, options.epochs_scale)
        for epoch in _watched([in_short(measure, short, place.config) for measure in place.measures]):
            if epoch != short.epochs and (not options.knn_every or epoch % options.knn_every):
                raise AAGError(f"--knn-every {options.knn_every} passes over epoch {epoch}, which {part} shows")


def _watched(measures: Iterable[str]) -> list[int]:
    """The epochs of knn@E."""
    return [int(measure.partition("@")[2]) for measure in measures if "@" in measure]


def _shard(runs: list[Planned], shard: str | None) -> list[Planned]:
    """Each run, the longest first, to the part that has the least to do."""
    if shard is None:
        return runs
    found = re.fullmatch(r"(\d+)/(\d+)", shard)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise AAGError(f"--shard takes a part and the number of parts, as in 2/8, not {shard!r}")
    loads = [0.0] * int(found[2])
    mine = set()
    for run in sorted(runs, key=lambda run: -work(run.config)):
        lightest = loads.index(min(loads))
        loads[lightest] += work(run.config)
        if lightest == int(found[1]) - 1:
            mine.add(run.name)
    return [run for run in runs if run.name in mine]


def work(config: TrainConfig) -> float:
    """How much a run is of all: by its settings alone, so that every machine finds the same."""
    network = re.split(r"[+-]", config.network)[0]
    return WORK.get(network, 1) * config.epochs * images_of(config.data)


def _complete(config: TrainConfig, full: TrainConfig, options: Reproduce) -> TrainConfig:
    """With where it runs; kNN is evaluated after all epochs that a table shows, whatever table is asked for now."""
    where: dict[str, Any] = {"device": options.device, "data_root": options.data_root}
    if options.knn_every is not None:
        where["knn_every"] = options.knn_every
    elif watched := _watched(in_short(measure, config, full) for measure in _shown(replace(full, seed=0))):
        where["knn_every"] = math.gcd(config.knn_every, *watched) or 1
    return replace(config, out=options.runs / config.run_name(), **where).validate()


def _shown(config: TrainConfig) -> Iterator[str]:
    """What the paper's tables show of this run."""
    for part in PAPER.values():
        for place in places(part):
            if place.config == config:
                yield from place.measures


# --- how a run stands -------------------------------------------------------------------------------------------------


def standing(run: Planned, results: Results) -> Standing:
    if results.seed(run.config):
        return Standing.PARTIAL if lacking(run, results) else Standing.RECORDED
    if holds(run.folder, run.config) and (run.folder / "last.ckpt").exists():
        return Standing.BEGUN
    if any(result.config.seed == run.config.seed for result in results.stale(run.config)):
        return Standing.STALE
    return Standing.MISSING


def lacking(run: Planned, results: Results) -> frozenset[str]:
    """What a recorded run does not have of what the selected tables and figures need."""
    result = results.seed(run.config)
    if result is None:
        return run.needs

    def there(need: str) -> bool:
        if need == TSNE:
            return results.projection(run.config) is not None
        return need in (result.record.get("curves") or {}) or result.measure(need) is not None

    return frozenset(need for need in run.needs if not there(need))


def holds(folder: Path, config: TrainConfig) -> bool:
    """Whether a run folder is of these settings. Read here and not by aag.training.Run, which would import torch."""
    try:
        there = TrainConfig.from_json(json.loads((folder / "config.json").read_text(encoding="utf-8")))
        return there.identity() == config.identity()
    except (OSError, ValueError, TypeError, AttributeError, AAGError):
        return False


# --- commands ---------------------------------------------------------------------------------------------------------


def train_options(config: TrainConfig) -> list[str]:
    """The words after `aag train` that give exactly this config."""
    base = config.base()
    settings = {"data": config.data, "recipe": base.recipe}
    if not config.by_recipe():
        settings["method"] = config.method
    for name in (field.name for field in fields(config)):
        if name not in ("data", "recipe", "method") and getattr(config, name) != getattr(base, name):
            settings[name] = getattr(config, name)
    return [word for words in options(settings) for word in words]


def options(settings: Mapping[str, Any]) -> list[list[str]]:
    """Each setting as one would type it, in words."""
    return [_option(name.replace("_", "-"), value) for name, value in settings.items()]


def _option(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    return [f"--{name}", *map(str, value if isinstance(value, list | tuple) else (value,))]


def command(run: Planned, results: Path) -> str:
    """One line for a shell, on any machine: train or go on, evaluate, record."""
    evaluate = ["aag", "evaluate", str(run.folder), "--record", str(results)]
    if run.config.device != TrainConfig.device:
        evaluate += ["--device", run.config.device]
    if run.config.data_root:
        evaluate += ["--data-root", str(run.config.data_root)]
    if run.projected:
        evaluate.append("--tsne")
    return f"{shlex.join(['aag', 'train', *train_options(run.config)])} && {shlex.join(evaluate)}"
