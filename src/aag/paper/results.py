"""What was measured: the records under a folder, matched with the runs that the paper's tables ask for."""

import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from aag.config import TrainConfig
from aag.data.datasets import DATASETS
from aag.errors import AAGError
from aag.files import projection_file


@dataclass(frozen=True)
class Result:
    """One record: a run that was finished and evaluated."""

    path: Path
    record: dict[str, Any]
    config: TrainConfig  # as it was run; what its version did not know has its default
    strange: bool = False  # it was run with settings that are unknown here

    @property
    def name(self) -> str:
        return self.record["name"]

    @cached_property
    def identity(self) -> dict[str, Any]:
        return self.config.identity()

    @property
    def gpu(self) -> str | None:
        """Of the last session; None: a CPU."""
        return self.record["sessions"][-1]["gpu"]

    def measure(self, measure: str) -> float | None:
        """knn (the last epoch's), linear, or knn@E; in percent."""
        kind, _, epoch = measure.partition("@")
        if epoch:
            return dict(map(tuple, self.record["knn_by_epoch"])).get(int(epoch))
        if kind == "knn":
            return self.record["knn"]["last"]
        return next((r["accuracy"] for r in self.record["evaluation"] if r["protocol"]["evaluation"] == kind), None)


class Results:
    """All records of a folder. A file that cannot be read as one is passed over, and told of in `damaged`.

    So is a second record of the same run with the same seed: a number would count twice.
    """

    def __init__(self, folder: Path) -> None:
        if os.path.exists(folder) and not (folder.is_dir() and os.access(folder, os.R_OK | os.X_OK)):
            raise AAGError(f"{folder} is no folder of records that can be read; give the one that --record wrote to")
        self.folder = folder
        self.damaged: dict[Path, str] = {}
        found: dict[str, Result] = {}
        for path in sorted(folder.glob("*.json"), key=lambda path: path.name):
            try:
                result = _read(path)
            except _DAMAGE as error:
                self.damaged[path] = _why(error)
                continue
            key = json.dumps([result.identity, result.strange], sort_keys=True)
            there = found.get(key)
            if there is None or (path.stem == result.name and there.path.stem != result.name):
                found[key] = result
            if there is not None:
                other = there if found[key] is result else result
                self.damaged[other.path] = f"it is of the same run as {found[key].path.name}"
        self.all = list(found.values())

    def of(self, config: TrainConfig) -> list[Result]:
        """Of this run, with any seed, by seed."""
        wanted = _but(config.identity(), "seed")
        return self._where(lambda result: not result.strange and _but(result.identity, "seed") == wanted)

    def seed(self, config: TrainConfig) -> Result | None:
        """Of this run with this very seed."""
        return next((result for result in self.of(config) if result.config.seed == config.seed), None)

    def stale(self, config: TrainConfig) -> list[Result]:
        """By name this run's, but of settings that its recipe no longer has."""
        current = self.of(config)
        names = {seed: replace(config, seed=seed).run_name() for seed in {result.config.seed for result in self.all}}
        return self._where(lambda result: result not in current and result.name == names[result.config.seed])

    def short(self, config: TrainConfig) -> list[list[Result]]:
        """Of this run with fewer epochs, or fewer rounds of as many: what differs by seed alone together, by seed, and
        the longest first."""
        aside = ("seed", "epochs", "rounds", "warmup_epochs")
        wanted = _but(config.identity(), *aside)

        def shorter(other: TrainConfig) -> bool:
            same = other.rounds == config.rounds or other.epochs * config.rounds == config.epochs * other.rounds
            return same and other.epochs < config.epochs

        alike: dict[tuple[int, int, bool, int | None], list[Result]] = {}
        for result in self._where(
            lambda result: not result.strange and _but(result.identity, *aside) == wanted and shorter(result.config)
        ):
            of = result.config
            key = (of.epochs, of.rounds, of.warmup_epochs == config.warmup_epochs, of.warmup_epochs)
            alike.setdefault(key, []).append(result)
        return [alike[key] for key in sorted(alike, key=lambda key: key[:3], reverse=True)]

    def seconds(self, config: TrainConfig) -> float | None:
        """How long this run may take, by the fastest of the nearest records. None: there is none of its network."""
        like = [result for result in self.all if result.config.network == config.network and result.record["seconds"]]

        def far(result: Result) -> tuple[bool, bool, int]:
            other = result.config
            passes = (other.auxiliary == "none", other.symmetric) != (config.auxiliary == "none", config.symmetric)
            return other.method != config.method, passes, abs(other.batch_size - config.batch_size)

        nearest = min(map(far, like), default=None)
        paces = [
            result.record["seconds"] / result.config.epochs / images_of(result.config.data)
            for result in like
            if far(result) == nearest
        ]
        return min(paces) * config.epochs * images_of(config.data) if paces else None

    def projection_file(self, config: TrainConfig) -> Path:
        return projection_file(self.folder, config.run_name())

    def projection(self, config: TrainConfig) -> dict[str, Any] | None:
        """The t-SNE of this run: x, y and labels of its images, their classes, and how it was made."""
        path = self.projection_file(config)
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            x, y, labels = found["x"], found["y"], found["labels"]
            _need(len(x) == len(y) == len(labels) > 0, "x, y and labels differ in length")
            _need(all(map(number, (*x, *y))), "a point is not a pair of numbers")
            _need(all(isinstance(each, str) for each in found["classes"]), "a class has no name")
            _need(set(labels) <= set(range(len(found["classes"]))), "a label is of no class")
            same = TrainConfig.from_json(found["settings"]).identity() == config.identity()
            return found if same else None
        except FileNotFoundError:
            return None
        except _DAMAGE as error:
            self.damaged[path] = _why(error)
            return None

    def _where(self, wanted: Callable[[Result], bool]) -> list[Result]:
        return sorted(filter(wanted, self.all), key=lambda result: result.config.seed)


_DAMAGE = (
    OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError, AAGError,
)  # fmt: skip


class _Unfit(ValueError):
    """A part of a record is not of its kind; the words are ours."""


def _why(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"it has no {error}"
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
        return "it is empty, cut off, or no JSON"
    return " ".join(str(error).split()) if isinstance(error, OSError | _Unfit | AAGError) else "it is no record"


def _read(path: Path) -> Result:
    """A record of which every part that tables and pages read is there, of its kind, and a number where it is one."""
    record = json.loads(path.read_text(encoding="utf-8"))
    settings = record["settings"]
    _need(isinstance(settings["data"], str), f"its data are {settings['data']!r}")
    strange = not settings.keys() <= {field.name for field in fields(TrainConfig)}
    result = Result(path, record, TrainConfig.from_json(settings).validate(), strange)
    _ = result.identity
    _need(isinstance(record["name"], str), f"its name is {record['name']!r}")
    _need(len(record["sessions"]) > 0, "it has no sessions")
    for session in record["sessions"]:
        _need(isinstance(session["gpu"], str | None), f"its GPU is {session['gpu']!r}")
    seconds, last = record["seconds"], record["knn"]["last"]
    _need(seconds is None or number(seconds), f"its training took {seconds!r} seconds")
    pace = record.get("views_per_second")
    _need(pace is None or number(pace), f"it trained at {pace!r} views a second")
    _need(last is None or accuracy(last), f"its kNN is {last!r}")
    _need(all(number(epoch) and accuracy(knn) for epoch, knn in record["knn_by_epoch"]), "its kNN curve is broken")
    for row in record["evaluation"]:
        _need(accuracy(row["accuracy"]), f"an accuracy is {row['accuracy']!r}")
        _need(isinstance(row["protocol"]["evaluation"], str), "an accuracy has no protocol")
        _need(isinstance(row["protocol"].get("dimensions", 0), int), "a protocol's dimensions are no number")
    _need(all(number(x) and number(y) for x, y in record.get("loss_by_epoch", [])), "its loss curve is broken")
    curves = record.get("curves") or {}
    _need(len({len(values) for values in curves.values()}) <= 1, "its curves over the steps differ in length")
    _need(all(map(number, chain.from_iterable(curves.values()))), "its curves over the steps are broken")
    return result


def _need(true: bool, else_say: str) -> None:
    if not true:
        raise _Unfit(else_say)


def number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def accuracy(value: Any) -> bool:
    return number(value) and 0 <= value <= 100


def images_of(data: str) -> int:
    """For training; a set that is not known counts as large as CIFAR's."""
    return DATASETS[data].train if data in DATASETS else 50_000


def _but(identity: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in identity.items() if name not in names}
