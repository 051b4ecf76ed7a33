"""The runs of a table or figure: the selected cells, the status of each run, and its commands."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from aag.errors import AAGError, unknown_name
from aag.paper.experiments import PAPER, Experiment, Figure, Part, Table, shorten_measure
from aag.paper.results import Results, setting_differences, train_images
from aag.runs import Run
from aag.training import Execution
from aag.training.commands import evaluate_command, train_command

TSNE = "t-SNE projection"  # figures need it of some runs, besides curves and measures
RELATIVE_WORK = {"alexnet": 1, "resnet18": 3, "resnet50": 11}  # of one view, roughly


@dataclass(frozen=True)
class ReproduceOptions:
    """Which runs of the paper to list or to run, and how."""

    what: tuple[str, ...]
    """table1 … table7, figure1 … figure6, several of them, or all."""
    dataset: str | None = None
    """Only runs on this data set."""
    network: str | None = None
    """Only runs of this network."""
    row: str | None = None
    """Only this row of a table, or this curve of a figure: its name, or a part of the name."""
    column: str | None = None
    """Only this column: its name, or a part of the name."""
    epochs_scale: float = 1.0
    """Run short versions with this fraction of each run's epochs, recorded under their own names."""
    seeds: int = 1
    """Runs per cell, with the seeds 0, 1, …"""
    shard: str | None = None
    """One part of the runs: 2/8 is the second of eight. The parts are the same on every machine and similar in work."""
    minutes: float | None = None
    """Save and stop within this many minutes, with exit code 75; the same command resumes."""
    list: bool = False
    """Print each run with its status and time; run nothing."""
    plan: bool = False
    """Print the commands, one run per line; run nothing."""
    json: bool = False
    """Print the listing as JSON: of the tables and figures or, with --list, of the runs."""
    save: Path | None = None
    """Draw one figure from the records into this .pdf, .svg or .png file; run nothing."""
    results: Path = Path("results")
    """Folder of the records."""
    runs: Path = Path("runs")
    """Folder of the run folders."""
    device: str = "auto"
    """cpu, cuda, cuda:N, or auto: the GPU if there is one, else the CPU."""
    data_root: Path | None = None
    """Where data sets are stored. Default: $AAG_DATA, else the cache folder."""
    knn_every: int | None = None
    """Epochs between kNN evaluations. Default: the recipe's."""


@dataclass(frozen=True)
class PlannedRun:
    """One run of a selection."""

    experiment: Experiment
    execution: Execution
    full_epochs: int  # more than the experiment's where that is a short version
    parts: tuple[str, ...]  # the selected tables and figures that need it
    needs: frozenset[str]  # what they need of its record: measures, names of curves, TSNE
    needs_projection: bool  # a figure shows its t-SNE; it is made with the record, because run folders may be deleted

    @property
    def name(self) -> str:
        return self.experiment.name

    @property
    def run(self) -> Run:
        assert self.execution.out is not None
        return Run(self.execution.out)

    @property
    def label(self) -> str:
        epochs = self.experiment.settings.train.epochs
        short = f"; short version, {epochs} of {self.full_epochs} epochs" * (epochs < self.full_epochs)
        return f"{self.name} ({', '.join(self.parts)}{short})"


class RecordStatus(StrEnum):
    """Whether a run is recorded; else how far it is."""

    RECORDED = "recorded"
    INCOMPLETE = "incomplete"  # recorded without something that a table or figure shows
    STARTED = "started"  # it has a checkpoint: training is not finished, or not evaluated
    STALE = "stale"  # recorded with settings that differ from the run's settings now
    MISSING = "missing"


# --- selecting --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """A cell of a table, or a curve of a figure."""

    row: str
    column: str
    experiment: Experiment | None
    measures: tuple[str, ...] = ()
    drawn: tuple[str, ...] = ()  # curves, or TSNE: only the first seed needs them

    @property
    def dataset(self) -> str:
        return self.experiment.settings.data.source if self.experiment else ""

    @property
    def network(self) -> str:
        """As the paper names it, without the branch that a method adds (resnet18+sobel)."""
        return self.experiment.settings.encoder.network.partition("+")[0] if self.experiment else ""


def list_entries(part: Part) -> list[Entry]:
    """Return the cells of a table, or the curves of a figure."""
    if isinstance(part, Table):
        return [Entry(cell.row, cell.column, cell.experiment, (cell.measure,)) for cell in part.cells]
    measures = part.curves if part.kind == "sweep" else ()
    drawn = {"tsne": (TSNE,), "steps": part.curves}.get(part.kind, ())
    return [Entry(series.name, "", series.experiment, measures, drawn) for series in part.series]


def find_parts(names: Iterable[str]) -> list[Part]:
    """Return the tables and figures of these names, each once."""
    found: dict[str, Part] = {}
    for name in map(str.lower, names):
        if name == "page":
            raise AAGError("the page shows all tables and figures; use aag reproduce page alone")
        if name != "all" and name not in PAPER:
            raise unknown_name("table or figure", name, [*PAPER, "all"])
        found |= PAPER if name == "all" else {name: PAPER[name]}
    return list(found.values())


def select_runs(options: ReproduceOptions, parts: Iterable[Part] | None = None) -> list[PlannedRun]:
    """Return the runs of a selection, each once, recorded or not: a shard must be the same on every machine."""
    parts = find_parts(options.what) if parts is None else list(parts)
    if options.seeds < 1:
        raise AAGError(f"--seeds must be at least 1, not {options.seeds}")
    chosen = [(part.id, entry, entry.experiment) for part, entry in _filter(parts, options) if entry.experiment]
    if options.knn_every is not None:
        _check_knn_every(options.knn_every, chosen, options.epochs_scale)
    with_tsne = [part for part in PAPER.values() if isinstance(part, Figure) and part.kind == "tsne"]
    projected = {each.shorten(options.epochs_scale).name for part in with_tsne for each in part.experiments}
    runs: dict[str, PlannedRun] = {}
    for seed in range(options.seeds):  # the first seed of every cell comes before the second of any
        for part, entry, first in chosen:
            full = first.replace(seed=seed)
            short = full.shorten(options.epochs_scale)
            needs = {*_shorten_all(entry.measures, short, full), *(() if seed else entry.drawn)}
            planned = runs.get(short.name) or PlannedRun(
                short,
                _execution(short, first, options),
                full.settings.train.epochs,
                (),
                frozenset(),
                short.name in projected,
            )
            joined = tuple(dict.fromkeys((*planned.parts, part)))
            runs[short.name] = replace(planned, parts=joined, needs=planned.needs | needs)
    return _take_shard(list(runs.values()), options.shard)


def _filter(parts: list[Part], options: ReproduceOptions) -> list[tuple[Part, Entry]]:
    wanted = {name: getattr(options, name) for name in ("dataset", "network", "row", "column")}
    wanted = {name: value for name, value in wanted.items() if value is not None}
    if "" in wanted.values():
        raise AAGError("an empty name matches everything; leave the option out")
    every = [(part, entry) for part in parts for entry in list_entries(part)]
    chosen = every
    for name, value in wanted.items():
        known: dict[str, set[str]] = {part.id: set() for part in parts}
        for part, entry in every:
            known[part.id] |= {getattr(entry, name)} - {""}
        if not any(known.values()):
            raise AAGError(f"--{name} {value}: nothing selected has a {name}; leave the option out")
        matching = {part: _matches(value, names) for part, names in known.items()}
        if not any(matching.values()):
            raise unknown_name(name, value, set().union(*known.values()))
        chosen = [(part, entry) for part, entry in chosen if getattr(entry, name) in matching[part.id]]
    if wanted and not any(entry.experiment for _, entry in chosen):
        asked = ", ".join(f"--{name} {value}" for name, value in wanted.items())
        raise AAGError(f"no run matches {asked}: the cell does not exist, is empty, or is not reproduced here")
    return chosen


def _matches(wanted: str, names: set[str]) -> set[str]:
    """Return the name itself, where it exists (NT-Xent, not GNT-Xent); else all names that contain it."""
    small = wanted.lower()
    return {name for name in names if name.lower() == small} or {name for name in names if small in name.lower()}


def _check_knn_every(every: int, chosen: list[tuple[str, Entry, Experiment]], scale: float) -> None:
    """Raise unless kNN is evaluated after the epochs that a table shows."""
    for part, entry, experiment in chosen:
        short = experiment.shorten(scale)
        for epoch in _knn_epochs(_shorten_all(entry.measures, short, experiment)):
            if epoch != short.settings.train.epochs and (not every or epoch % every):
                raise AAGError(f"--knn-every {every} skips epoch {epoch}, which {part} shows; leave it out")


def _shorten_all(measures: Iterable[str], short: Experiment, full: Experiment) -> list[str]:
    train = short.settings.train
    return [shorten_measure(measure, train.epochs, train.rounds, full) for measure in measures]


def _knn_epochs(measures: Iterable[str]) -> list[int]:
    """Return the epochs of knn@E."""
    return [int(measure.partition("@")[2]) for measure in measures if "@" in measure]


def _take_shard(runs: list[PlannedRun], shard: str | None) -> list[PlannedRun]:
    """Give each run, the longest first, to the shard with the least work; return one shard."""
    if shard is None:
        return runs
    found = re.fullmatch(r"(\d+)/(\d+)", shard)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise AAGError(f"--shard takes a part and the number of parts, such as 2/8, not {shard!r}")
    loads = [0.0] * int(found[2])
    selected = set()
    for run in sorted(runs, key=lambda run: -estimate_work(run.experiment)):
        lightest = loads.index(min(loads))
        loads[lightest] += estimate_work(run.experiment)
        if lightest == int(found[1]) - 1:
            selected.add(run.name)
    return [run for run in runs if run.name in selected]


def estimate_work(experiment: Experiment) -> float:
    """Return the relative work of a run, from its settings alone: every machine must find the same."""
    settings = experiment.settings
    network = re.split(r"[+-]", settings.encoder.network)[0]
    return RELATIVE_WORK.get(network, 1) * settings.train.epochs * train_images(settings.data.source)


def _execution(short: Experiment, full: Experiment, options: ReproduceOptions) -> Execution:
    """Evaluate kNN after all epochs that any table shows of this run, whichever table is selected now."""
    execution = Execution.for_recipe(
        short.recipe,
        short.settings,
        knn_every=options.knn_every,
        out=options.runs / short.name,
        device=options.device,
        data_root=options.data_root,
    )
    if options.knn_every is not None:
        return execution
    shown = (entry for part in PAPER.values() for entry in list_entries(part) if entry.experiment == full)
    epochs = _knn_epochs(_shorten_all((m for entry in shown for m in entry.measures), short, full))
    return replace(execution, knn_every=math.gcd(execution.knn_every, *epochs) or 1) if epochs else execution


# --- status -----------------------------------------------------------------------------------------------------------


def record_status(planned: PlannedRun, results: Results) -> RecordStatus:
    """Return whether a run is recorded with all that is needed of it; else how far it is."""
    if results.find_result(planned.experiment):
        return RecordStatus.INCOMPLETE if missing_needs(planned, results) else RecordStatus.RECORDED
    if has_run_folder(planned) and planned.run.checkpoints():
        return RecordStatus.STARTED
    seed = planned.experiment.settings.train.seed
    if any(stale.result.seed == seed for stale in results.stale_records(planned.experiment)):
        return RecordStatus.STALE
    return RecordStatus.MISSING


def missing_needs(planned: PlannedRun, results: Results) -> frozenset[str]:
    """Return what the record of a run lacks of what the selected tables and figures need."""
    result = results.find_result(planned.experiment)
    if result is None:
        return planned.needs

    def is_there(need: str) -> bool:
        if need == TSNE:
            return results.projection(planned.experiment) is not None
        return need in (result.record.get("curves") or {}) or result.measure(need) is not None

    return frozenset(need for need in planned.needs if not is_there(need))


def has_run_folder(planned: PlannedRun) -> bool:
    """Return whether the run folder exists and has these settings."""
    try:
        return not setting_differences(planned.run.settings(), planned.experiment)
    except AAGError:
        return False


# --- commands ---------------------------------------------------------------------------------------------------------


def command(planned: PlannedRun, results: Path) -> str:
    """Return one line for a shell on any machine: train or resume, evaluate, record."""
    execution = planned.execution
    more = ["--record", str(results), *(["--tsne"] if planned.needs_projection else [])]
    train = train_command(planned.experiment.settings, planned.experiment.recipe, execution)
    return f"{train} && {evaluate_command(planned.run.folder, execution, *more)}"
