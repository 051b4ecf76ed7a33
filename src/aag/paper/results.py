"""Read the records of a folder and match them with the runs that the paper's tables need."""

import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from aag.data.datasets import DATASETS
from aag.errors import AAGError
from aag.files import read_text
from aag.paper.experiments import Experiment
from aag.runs import differences, flatten, projection_file


@dataclass(frozen=True)
class Result:
    """The record of one run that was finished and evaluated."""

    path: Path
    record: dict[str, Any]

    @property
    def name(self) -> str:
        """The file's name. After a recipe changes, old records are renamed to match their settings."""
        return self.path.stem

    @cached_property
    def options(self) -> dict[str, Any]:
        """The resolved settings by option name."""
        return flatten(self.record["settings"])

    def differences(self, experiment: Experiment, *ignored: str) -> dict[str, tuple[Any, Any]]:
        return setting_differences(self.record["settings"], experiment, *ignored)

    @property
    def seed(self) -> int:
        return self.options["seed"]

    @property
    def epochs(self) -> int:
        return self.options["epochs"]

    @property
    def seconds(self) -> float | None:
        """Training time, if known."""
        return self.record.get("seconds")

    @property
    def machine(self) -> str:
        """GPU of the last session, else its CPU. A run whose metrics are lost has no sessions."""
        session = (self.record["sessions"] or [{}])[-1]
        return session.get("gpu") or session.get("cpu") or "an unknown machine"

    def measure(self, measure: str) -> float | None:
        """Return knn (of the last epoch), linear, or knn@E, in percent."""
        kind, _, epoch = measure.partition("@")
        if epoch:
            return dict(map(tuple, self.record["knn_by_epoch"])).get(int(epoch))
        if kind == "knn":
            return self.record["knn"].get("last")
        return next((r["accuracy"] for r in self.record["evaluation"] if r["protocol"]["evaluation"] == kind), None)


@dataclass(frozen=True)
class StaleRecord:
    """A record whose file has a run's name, but other settings than the run has now: the run will replace it."""

    result: Result
    differences: dict[str, tuple[Any, Any]]  # option: its value in the record, and now

    def __str__(self) -> str:
        return "; ".join(f"{name} {there}, now {here}" for name, (there, here) in self.differences.items())


class Results:
    """All records of a folder. Files that are no records, and second records of a run, are in `damaged`."""

    def __init__(self, folder: Path) -> None:
        if os.path.exists(folder) and not (folder.is_dir() and os.access(folder, os.R_OK | os.X_OK)):
            raise AAGError(f"{folder} is not a folder of records that can be read; give the one that --record wrote to")
        self.folder = folder
        self.damaged: dict[Path, str] = {}
        paths = sorted(folder.glob("*.json"), key=lambda path: path.name)
        read = [Result(path, record) for path in paths if (record := self._read(path, RECORD))]
        found: dict[str, Result] = {}
        for result in sorted(read, key=lambda result: result.name != result.record["name"]):  # copies come last
            first = found.setdefault(json.dumps(result.record["settings"], sort_keys=True), result)
            if first is not result:
                self.damaged[result.path] = f"it is a second record of the run in {first.path.name}"
        # Where the precision does not matter, bf16 comes before fp32.
        self.all = sorted(found.values(), key=lambda result: (result.seed, result.options.get("precision", "")))

    def all_seeds(self, experiment: Experiment) -> list[Result]:
        """Return the records of this run with any seed, one per seed."""
        found = [result for result in self.all if not result.differences(experiment, "seed")]
        return list({result.seed: result for result in reversed(found)}.values())[::-1]

    def find_result(self, experiment: Experiment) -> Result | None:
        """Return the record of this run with the same seed; None without one."""
        wanted = experiment.settings.train.seed
        return next((result for result in self.all_seeds(experiment) if result.seed == wanted), None)

    def stale_records(self, experiment: Experiment) -> list[StaleRecord]:
        """Return the records whose files have this run's name with any seed, but other settings."""
        seeds = {seed: experiment.replace(seed=seed) for seed in {result.seed for result in self.all}}
        named = [result for result in self.all if result.name == seeds[result.seed].name]
        found = [StaleRecord(result, result.differences(seeds[result.seed])) for result in named]
        return [stale for stale in found if stale.differences]

    def short_versions(self, experiment: Experiment) -> list[list[Result]]:
        """Return the records of short versions of this run: with fewer epochs, or fewer rounds of the same length.

        Records that differ only in their seed are one group; the longest group comes first.
        """
        train = experiment.settings.train
        groups: dict[tuple[int, int, int], list[Result]] = {}
        for result in self.all:
            if result.differences(experiment, "seed", "epochs", "rounds", "warmup_epochs"):
                continue
            epochs, rounds, warmup = (result.options[name] for name in ("epochs", "rounds", "warmup_epochs"))
            if epochs < train.epochs and (rounds == train.rounds or epochs * train.rounds == train.epochs * rounds):
                groups.setdefault((-epochs, -rounds, warmup), []).append(result)
        return [groups[key] for key in sorted(groups)]

    def estimate_seconds(self, experiment: Experiment) -> float | None:
        """Estimate the training time from the fastest of the most similar records. None: its network has none."""
        wanted = experiment.options

        def auxiliary_views(options: dict[str, Any]) -> int:
            return options.get("auxiliary_views", 1) if options.get("auxiliary") not in (None, "none") else 0

        def distance(options: dict[str, Any]) -> tuple[bool, bool, int]:
            passes = [(each.get("auxiliary") == "none", each.get("symmetric")) for each in (options, wanted)]
            far = abs(options["batch_size"] - wanted["batch_size"])
            return options["method"] != wanted["method"], passes[0] != passes[1], far

        similar = [r for r in self.all if r.options["network"] == wanted["network"] and r.seconds]
        nearest = min((distance(result.options) for result in similar), default=None)
        per_image = [
            (result.seconds or 0)
            / result.epochs
            / train_images(result.options["data"])
            * (2 + auxiliary_views(wanted))
            / (2 + auxiliary_views(result.options))
            for result in similar
            if distance(result.options) == nearest
        ]
        return min(per_image) * wanted["epochs"] * train_images(wanted["data"]) if per_image else None

    def projection_file(self, experiment: Experiment) -> Path:
        return projection_file(self.folder, experiment.name)

    def projection(self, experiment: Experiment) -> dict[str, Any] | None:
        """Return the t-SNE of this run: x, y and labels of its images, their classes, and how it was made."""
        path = self.projection_file(experiment)
        found = self._read(path, PROJECTION) if path.exists() else None
        if found is None or setting_differences(found["settings"], experiment):
            return None
        sizes = {len(found[name]) for name in ("x", "y", "labels")}
        if len(sizes) == 1 and 0 <= min(found["labels"], default=-1) <= max(found["labels"]) < len(found["classes"]):
            return found
        self.damaged[path] = "its x, y, labels and classes do not match"
        return None

    def _read(self, path: Path, schema: dict[str, type]) -> dict[str, Any] | None:
        """Read a file and check what tables and pages use of it."""
        try:
            content = json.loads(read_text(path))
            for name, expected in schema.items():
                _check(content, name, expected)
            return content
        except OSError as error:
            self.damaged[path] = f"cannot be read: {error.strerror}"
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
            self.damaged[path] = "it is empty, cut off, or not JSON"
        except KeyError as error:
            self.damaged[path] = f"it has no {error}"
        except (TypeError, AttributeError):
            self.damaged[path] = "it is not a record"
        except ValueError as error:
            self.damaged[path] = str(error)
        return None


def setting_differences(settings: dict[str, Any], experiment: Experiment, *ignored: str) -> dict[str, tuple[Any, Any]]:
    """Return the options in which resolved settings differ from a run's, each with both values.

    What a run leaves to the device (precision) or to a user's own images (image size) is ignored.
    """
    found = differences(settings, experiment.resolved)
    open_names = [name for name in ("precision", "image_size") if found.get(name, (0, 0))[1] in ("auto", None)]
    return {name: values for name, values in found.items() if name not in (*ignored, *open_names)}


def train_images(data: str) -> int:
    """Return the number of training images; of an unknown data set, CIFAR's."""
    return DATASETS[data].train if data in DATASETS else 50_000


# What tables and pages read, and its type. *: each element; ?: may be None or missing.
SETTINGS: dict[str, type] = {
    "settings.data.source": str,
    "settings.encoder.network": str,
    "settings.method.name": str,
    **{f"settings.train.{name}": int for name in ("epochs", "batch_size", "rounds", "warmup_epochs", "seed")},
}
RECORD = SETTINGS | {
    "name": str,
    "knn.last?": float,
    "knn_by_epoch.*.*": float,
    "loss_by_epoch?.*.*": float,
    "curves?.*.*": float,
    "evaluation.*.accuracy": float,
    "evaluation.*.protocol.evaluation": str,
    "seconds?": float,
    "views_per_second?": float,
    "sessions.*.gpu?": str,
}
PROJECTION = SETTINGS | {"x.*": float, "y.*": float, "labels.*": int, "classes.*": str}


def _check(value: Any, path: str, expected: type, name: str = "") -> None:
    """Raise unless the values at a path have a type; numbers must be finite."""
    step, _, rest = path.partition(".")
    if not step:
        types: Any = (int, float) if expected is float else expected
        if isinstance(value, bool) or not isinstance(value, types) or (expected is not str and not abs(value) < 1e300):
            raise ValueError(f"its {name} is {str(value)[:40]!r}")
    elif step == "*":
        for each in value.values() if isinstance(value, dict) else value:
            _check(each, rest, expected, name)
    elif step.rstrip("?") == step or value.get(step[:-1]) is not None:
        key = step.rstrip("?")
        _check(value[key], rest, expected, f"{name}.{key}".lstrip("."))
