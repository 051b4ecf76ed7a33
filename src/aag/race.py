"""The race: which training reaches a target accuracy fastest. The leaderboard is made from ordinary records.

An entry is a run with a fixed number of epochs, over the seeds 0, 1, … on one kind of machine. It counts if the mean
kNN of the last epoch reaches the target, and its time is that of the whole training. So no test image decides when to
stop, or which epoch or seed counts.
"""

import json
import shlex
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

from rich.console import Console

from aag.errors import AAGError
from aag.paper import Experiment, Result, Results
from aag.paper.plan import PlannedRun, record_status
from aag.paper.recorded import recorded_experiment
from aag.paper.runner import Runner
from aag.settings import Range, check_fields
from aag.signals import stop_within
from aag.training import Execution, RunSettings
from aag.training.commands import train_options

DATA = "cifar10"
FULL_SEEDS = 3  # an entry with fewer is provisional


@dataclass(frozen=True)
class RaceSettings:
    """The target, and where an entry is run and recorded."""

    target: Annotated[float, Range(above=0, at_most=100)] = 90.0
    """kNN accuracy to reach, in percent."""
    seeds: Annotated[int, Range(at_least=1, at_most=1000)] = FULL_SEEDS
    """Runs of the entry, with the seeds 0, 1, …; an entry with fewer than 3 is provisional."""
    minutes: Annotated[float, Range(above=0, at_most=1e6)] | None = None
    """Save and stop within this many minutes, with exit code 75; the same command resumes."""
    results: Path = Path("results")
    """Folder of the records."""
    runs: Path = Path("runs")
    """Folder of the run folders."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True)
class Entry:
    """A run on one kind of machine, over its seeds."""

    results: tuple[Result, ...]  # seeds 0, 1, … in order

    @property
    def accuracies(self) -> list[float]:
        return [result.record["knn"]["last"] for result in self.results]

    @property
    def seconds(self) -> float:
        """Mean time of training, without evaluation and compilation."""
        return mean(result.seconds or 0 for result in self.results)

    @property
    def is_provisional(self) -> bool:
        return len(self.results) < FULL_SEEDS

    @property
    def machine(self) -> str:
        return self.results[0].machine

    @property
    def options(self) -> str:
        """The options after `aag race` that run this entry."""
        first = self.results[0]
        experiment = recorded_experiment(first)
        if experiment is None:  # the method is in a file that was not loaded, because it may be untrusted
            return f"--method {shlex.quote(first.options['method'])} --epochs {first.epochs} …"
        usual = Execution.for_recipe(experiment.recipe, experiment.settings)
        words = train_options(experiment.settings, experiment.recipe, usual, given=("epochs",))
        return shlex.join(words[2:] if words[:2] == ["--data", DATA] else words)

    def row(self) -> dict[str, Any]:
        """Return the entry as a row of a table."""
        low, high = min(self.accuracies), max(self.accuracies)
        return {
            "entry": self.options,
            "minutes": round(self.seconds / 60, 2),
            "kNN": round(mean(self.accuracies), 2),
            "range": f"{low:.2f}–{high:.2f}" if len(self.results) > 1 else "",
            "seeds": len(self.results),
            "machine": self.machine,
        }


def leaderboard(results: Results, target: float, settings: RunSettings) -> list[Entry]:
    """Return the entries whose mean kNN reaches the target, the fastest first.

    `settings` says which images, image size, network and width compete; its other settings do not matter.
    """
    wanted = _competition(settings.resolve().to_json())
    groups: dict[str, list[Result]] = {}
    for result in results.all:  # sorted by seed
        record, train = result.record["settings"], result.record["settings"]["train"]
        if _competition(record) != wanted or _unfair_option(result.options):
            continue
        if result.seconds and result.measure("knn") is not None:
            seedless = {**record, "train": {**train, "seed": 0}, "machine": result.machine}
            groups.setdefault(json.dumps(seedless, sort_keys=True), []).append(result)
    entries = []
    for group in groups.values():
        in_order = takewhile(lambda numbered: numbered[0] == numbered[1].seed, enumerate(group))
        if chosen := tuple(result for _, result in in_order):
            entries.append(Entry(chosen))
    return sorted((e for e in entries if mean(e.accuracies) >= target), key=lambda entry: entry.seconds)


def run_entry(experiment: Experiment, execution: Execution, race: RaceSettings, console: Console) -> int:
    """Train, evaluate and record an entry, seed by seed. Return 0, 2 where a run failed, or the exit code of a stop."""
    settings = experiment.settings
    if name := _unfair_option(settings.options()):
        raise AAGError(f"an entry trains new weights on all training images; leave out --{name.replace('_', '-')}")
    if settings.data.labels == "none":
        raise AAGError("an entry is judged by kNN, which needs labels; leave out --labels none")
    runs = [
        PlannedRun(
            each,
            replace(execution, out=race.runs / each.name),
            each.settings.train.epochs,
            ("race",),
            frozenset({"knn"}),
            needs_projection=False,
        )
        for each in (experiment.replace(seed=seed) for seed in range(race.seeds))
    ]
    records = Results(race.results)
    statuses = {run.name: record_status(run, records) for run in runs}
    with stop_within(race.minutes):
        runner = Runner(console, race.results, device=execution.device, data_root=execution.data_root)
        return runner.run_all(runs, statuses, records)


def _competition(settings: dict[str, Any]) -> tuple[Any, ...]:
    """Return what the entries of one race have in common."""
    data, encoder = settings["data"], settings["encoder"]
    return data["source"], data.get("image_size"), encoder["network"], encoder.get("width"), encoder.get("depth")


def _unfair_option(options: dict[str, Any]) -> str:
    """Return an option that bars a run from the race: fewer training images, or weights that took longer."""
    return next((name for name in ("holdout", "pretrained", "start_from") if options.get(name)), "")
