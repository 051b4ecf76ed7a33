"""The race: how fast an encoder reaches a target accuracy. The leaderboard is made of ordinary records.

An entry is a run with a fixed number of epochs, over several seeds. It counts if the mean kNN of the last epoch reaches
the target, and its time is that of the whole training. So no test image decides when to stop, or which epoch counts.
"""

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

from rich.console import Console

from aag.errors import AAGError
from aag.paper import Experiment, Result, Results
from aag.paper.plan import PlannedRun, Reproduce, run_status
from aag.paper.runner import Runner
from aag.paper.written import all_written, changed_options
from aag.settings import Range, check_fields
from aag.signals import stop_within
from aag.training import Execution
from aag.training.commands import type_options

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
    """A run that reached the target, over all its seeds."""

    experiment: Experiment
    results: tuple[Result, ...]  # one per seed

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
        return ", ".join(dict.fromkeys(result.machine for result in self.results))

    @property
    def options(self) -> str:
        """The options after `aag race` that run this entry."""
        options = {"recipe": self.experiment.recipe, "epochs": self.experiment.settings.train.epochs}
        return shlex.join(word for words in type_options(options | changed_options(self.experiment)) for word in words)

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


def leaderboard(results: Results, target: float, data: str, network: str) -> list[Entry]:
    """Return the runs on these images with this network whose mean kNN reaches the target, the fastest first."""
    found: dict[str, Entry] = {}
    for result, experiment in all_written(results):
        options = result.options
        barred = any(options.get(name) for name in ("holdout", "pretrained", "start_from"))
        if barred or (options["data"], options["network"]) != (data, network):
            continue
        first = experiment.replace(seed=0)
        if result.seconds and result.measure("knn") is not None and first.name not in found:
            timed = [each for each in results.all_seeds(first) if each.seconds and each.measure("knn") is not None]
            found[first.name] = Entry(first, tuple(timed))
    reached = (entry for entry in found.values() if mean(entry.accuracies) >= target)
    return sorted(reached, key=lambda entry: entry.seconds)


def run_entry(experiment: Experiment, execution: Execution, race: RaceSettings, console: Console) -> int:
    """Train, evaluate and record an entry, seed by seed. Return 0, 2 where a run failed, or the exit code of a stop."""
    if experiment.settings.data.holdout:
        raise AAGError("a race is judged on the test split; choose settings with aag sweep, then leave out --holdout")
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
    where = Reproduce((), results=race.results, runs=race.runs, device=execution.device, data_root=execution.data_root)
    records = Results(race.results)
    with stop_within(race.minutes):
        return Runner(where, console).run_all(runs, {run.name: run_status(run, records) for run in runs}, records)
