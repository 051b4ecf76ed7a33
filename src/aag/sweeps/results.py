"""The results of a sweep: one row per setting, best first, as JSON and as Markdown."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from aag.errors import AAGError
from aag.evaluate.health import is_collapsed
from aag.files import read_text
from aag.pages.markdown import escape, make_table
from aag.runs import Run, run_status
from aag.sweeps.candidates import Candidate
from aag.tensor_files import read_header
from aag.text import duration, readable_value

Measure = Literal["knn", "linear", "agreement"]
MEASURE_TITLES: dict[str, str] = {"knn": "kNN %", "linear": "linear %", "agreement": "agree %"}
LINEAR_RESULT = "linear (features)"  # in evaluation.json
DONE, COLLAPSED = "done", "collapsed"
TO_DO, STOPPED, RUNNING = "to do", "stopped", "running"
UNFINISHED = (TO_DO, STOPPED, RUNNING)
INVALID, NOT_FINITE, OUT_OF_MEMORY, FAILED = "invalid", "not finite", "out of memory", "failed"


@dataclass(frozen=True)
class Outcome:
    """The status and the numbers of one run."""

    seed: int
    folder: Path
    status: str  # done, collapsed, to do, stopped, running, or how it failed
    message: str = ""  # why it failed
    knn: float | None = None  # all three in percent, of the last epoch
    linear: float | None = None
    agreement: float | None = None
    seconds: float | None = None  # of training

    def to_json(self) -> dict[str, Any]:
        measures = {name: _round(getattr(self, name)) for name in MEASURE_TITLES}
        return {**vars(self), **measures, "folder": self.folder.name}


def read_outcome(run: Run, epochs: int, seed: int, measure: Measure) -> Outcome:
    """Read the outcome of a run from its folder. It is done when its last epoch is saved and measured."""
    status = run_status(run)
    state = RUNNING if status.state == "running" else STOPPED if run.checkpoints() else TO_DO
    unfinished = Outcome(seed, run.folder, state, seconds=status.seconds)
    if status.epoch < epochs or _saved_epoch(run) < epochs:
        return unfinished
    last = {row["kind"]: row for row in run.metrics() if row["epoch"] == epochs}
    health = last.get("health")
    found = Outcome(
        seed,
        run.folder,
        COLLAPSED if health and is_collapsed(health) else DONE,
        knn=last["knn"]["knn"] if "knn" in last else None,
        linear=_linear_accuracy(run, epochs) if measure == "linear" else None,
        agreement=100 * health["agreement"] if health else None,
        seconds=status.seconds,
    )
    return unfinished if getattr(found, measure) is None else found


def read_failures(file: Path) -> dict[str, tuple[str, str]]:
    """Return status and message of each failed run in sweep.json, by the run's name. A damaged file holds none."""
    try:
        found = json.loads(read_text(file))["failures"]
        return {str(name): (str(status), str(message)) for name, (status, message) in found.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def read_measure(file: Path) -> Measure | None:
    """Return what sweep.json ranks by; None without that file."""
    try:
        found = json.loads(read_text(file))["rank_by"]
        return found if isinstance(found, str) and found in MEASURE_TITLES else None  # type: ignore[return-value]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _saved_epoch(run: Run) -> int:
    """Return the epoch of the run's encoder file. A run that fails in its last epoch logs it, and does not save it."""
    try:
        return int(read_header(run.encoder_file).metadata["epoch"])
    except (AAGError, KeyError, ValueError):
        return 0


def _linear_accuracy(run: Run, epochs: int) -> float | None:
    try:
        found = run.evaluation()
    except AAGError:
        return None
    accuracies = {row["name"]: float(row["accuracy"]) for row in found["results"]}
    return accuracies.get(LINEAR_RESULT) if found.get("epoch") == epochs else None


@dataclass(frozen=True)
class SweepRow:
    """One setting with the outcomes of its runs, one per seed."""

    candidate: Candidate = field(repr=False)
    epochs: int
    runs: tuple[Outcome, ...]
    measure: Measure  # that rows are ranked by

    @property
    def values(self) -> dict[str, Any]:
        """The values of the swept options."""
        return self.candidate.values

    @property
    def options(self) -> dict[str, Any]:
        """The recipe and all given and swept options: `aag.train(images, **row.options)`."""
        candidate, settings = self.candidate, self.candidate.settings.options()
        recipe = {} if candidate.recipe == "auto" else {"recipe": candidate.recipe}
        given = {name: settings[name] for name in sorted(candidate.given) if settings.get(name) is not None}
        if candidate.settings.encoder.is_custom:  # a module, which the caller has
            given.pop("network")
        return {**recipe, **given, "method": candidate.settings.method}

    @property
    def status(self) -> str:
        """That of the runs; where they differ, of the first one that is not done."""
        found = [run.status for run in self.runs if run.status != DONE]
        return found[0] if found else DONE

    @property
    def message(self) -> str:
        return next((run.message for run in self.runs if run.message), "")

    @property
    def is_finished(self) -> bool:
        return self.status not in UNFINISHED

    @property
    def is_done(self) -> bool:
        return self.status == DONE

    def mean(self, name: str) -> float | None:
        """Return the mean of knn, linear, agreement or seconds over the seeds that have it."""
        found = self._numbers(name)
        return sum(found) / len(found) if found else None

    def range(self, name: str) -> tuple[float, float] | None:
        found = self._numbers(name)
        return (min(found), max(found)) if found else None

    @property
    def score(self) -> float | None:
        """What the row is ranked by, in percent."""
        return self.mean(self.measure)

    def _numbers(self, name: str) -> list[float]:
        return [value for run in self.runs if (value := getattr(run, name)) is not None]

    def to_json(self) -> dict[str, Any]:
        measures = {name: _round(self.mean(name)) for name in MEASURE_TITLES}
        low, high = self.range(self.measure) or (None, None)
        return {
            "values": {name: list(value) if isinstance(value, tuple) else value for name, value in self.values.items()},
            "epochs": self.epochs,
            **measures,
            "lowest": _round(low),
            "highest": _round(high),
            "seconds": _round(self.mean("seconds"), 1),
            "status": self.status,
            "message": self.message,
            "runs": [run.to_json() for run in self.runs],
        }


def _markdown_cell(value: Any) -> str:
    return "–" if value is None else f"{value:.2f}" if isinstance(value, float) else escape(str(value))


def _round(value: float | None, digits: int = 3) -> float | None:
    return None if value is None else round(value, digits)


def rank_rows(rows: Sequence[SweepRow]) -> list[SweepRow]:
    """Sort rows, best first: those that are done, then collapsed ones, then those without a result."""

    def key(row: SweepRow) -> tuple[int, float]:
        order = 0 if row.is_done else 1 if row.status == COLLAPSED else 2 if not row.is_finished else 3
        return order, math.inf if row.score is None else -row.score

    return sorted(rows, key=key)


def table_rows(rows: Sequence[SweepRow], *, one_at_a_time: bool = False) -> list[dict[str, Any]]:
    """Return the rows as cells of one table: values, accuracies, time and status."""
    names = list(dict.fromkeys(name for row in rows for name in row.values))
    has_several_seeds = any(len(row.runs) > 1 for row in rows)
    shows_epochs = len({row.epochs for row in rows}) > 1 and "epochs" not in names
    measure = rows[0].measure
    # With --rank-by linear, kNN is shown, too.
    other_measures: list[Measure] = ["knn"] if measure == "linear" else []
    baseline = next((row.score for row in rows if not row.values), None)
    cells = []
    for row in rows:
        cell: dict[str, Any]
        if one_at_a_time:
            cell = {"change": describe_values(row.values)}
        else:
            cell = {name.replace("_", " "): describe_value(row.values.get(name)) for name in names}
        if shows_epochs:
            cell["epochs"] = row.epochs
        for name in (measure, *other_measures):
            cell[MEASURE_TITLES[name]] = _round(row.mean(name), 2)
            if has_several_seeds and name == measure:
                ends = row.range(name)
                cell["range"] = f"{ends[0]:.2f}–{ends[1]:.2f}" if ends and len(row.runs) > 1 else ""
        if one_at_a_time:
            known = [] if row.score is None or baseline is None else [row.score - baseline]
            cell["difference"] = f"{known[0]:+.2f}" if known and row.values else ""
        seconds = row.mean("seconds")
        cells.append({**cell, "time": None if seconds is None else duration(seconds), "status": row.status})
    return cells


def describe_values(values: dict[str, Any]) -> str:
    """Return the values of a row in one line."""
    return " ".join(f"{name}={describe_value(value)}" for name, value in values.items()) or "baseline"


def describe_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()  # as --grid takes it
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else str(value)
    return readable_value(list(value) if isinstance(value, tuple) else value)


@dataclass(frozen=True)
class SweepResult:
    """All rows of a sweep, best first."""

    rows: list[SweepRow]
    folder: Path
    measure: Measure  # that rows are ranked by
    held_out_count: int | None  # images that accuracies are measured on; None without labels
    is_complete: bool  # False: stopped on request, or some runs are in other processes
    command: str = ""  # that trains the best setting on all images; empty for images in memory

    @property
    def best(self) -> SweepRow | None:
        """The first row that is done; None without one. Before the end, only the current rung counts."""
        return next((row for row in (self.rows if self.is_complete else self.rows[:1]) if row.is_done), None)

    @property
    def protocol(self) -> str:
        """What the rows are ranked by, in words."""
        if self.measure == "agreement":
            without = " (there are no labels)" if self.held_out_count is None else ""
            return f"two-view agreement{without}: a hint, not an accuracy"
        kind = "kNN" if self.measure == "knn" else "linear evaluation"
        if not self.held_out_count:
            return f"{kind} of held-out training images"
        error = ""
        if self.best and self.best.score is not None:
            share = self.best.score / 100
            error = f" (± {100 * math.sqrt(share * (1 - share) / self.held_out_count):.1f}, one standard error)"
        return f"{kind} of {self.held_out_count:,} held-out training images{error}"

    def to_markdown(self, title: str, *, one_at_a_time: bool = False) -> str:
        cells = table_rows(self.rows, one_at_a_time=one_at_a_time)
        table = make_table(list(cells[0]), [list(map(_markdown_cell, row.values())) for row in cells])
        lines = [f"# {title}", "", f"Ranked by {self.protocol}.", "", table]
        lines += ["", *(f"- {describe_values(row.values)}: {row.message}" for row in self.rows if row.message)]
        if self.command and self.best:
            lines += ["", "Train the best setting on all images:", "", "```", self.command, "```"]
        return "\n".join(lines) + "\n"
