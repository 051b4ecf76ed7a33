"""Read the records of a folder and match them with the runs that the paper's tables need."""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from aag.data.datasets import DATASETS
from aag.errors import AAGError
from aag.paper.experiments import Experiment
from aag.runs import differences, flatten, projection_file


@dataclass(frozen=True)
class Result:
    """The record of one run that was finished and evaluated."""

    path: Path
    record: dict[str, Any]

    @property
    def name(self) -> str:
        return self.record["name"]

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
    def gpu(self) -> str | None:
        """GPU of the last session; None: a CPU."""
        return self.record["sessions"][-1]["gpu"]

    def measure(self, measure: str) -> float | None:
        """Return knn (of the last epoch), linear, or knn@E, in percent."""
        kind, _, epoch = measure.partition("@")
        if epoch:
            return dict(map(tuple, self.record["knn_by_epoch"])).get(int(epoch))
        if kind == "knn":
            return self.record["knn"]["last"]
        return next((r["accuracy"] for r in self.record["evaluation"] if r["protocol"]["evaluation"] == kind), None)


@dataclass(frozen=True)
class Stale:
    """A record that has a run's name, but other settings than the run has now."""

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
        found: dict[str, Result] = {}
        for path in sorted(folder.glob("*.json"), key=lambda path: path.name):
            record = self._read(path, RECORD)
            if record is None:
                continue
            result = Result(path, record)
            key = json.dumps(record["settings"], sort_keys=True)
            there = found.get(key)
            if there is None or (path.stem == result.name and there.path.stem != result.name):
                found[key] = result
            if there is not None:
                other = there if found[key] is result else result
                self.damaged[other.path] = f"it is a second record of the run in {found[key].path.name}"
        # Where the precision does not matter, bf16 comes before fp32.
        self.all = sorted(found.values(), key=lambda result: (result.seed, result.options.get("precision", "")))

    def all_seeds(self, experiment: Experiment) -> list[Result]:
        """Return the records of this run with any seed, one per seed."""
        found = [result for result in self.all if not result.differences(experiment, "seed")]
        return list({result.seed: result for result in reversed(found)}.values())[::-1]

    def same_seed(self, experiment: Experiment) -> Result | None:
        """Return the record of this run with its own seed."""
        wanted = experiment.settings.train.seed
        return next((result for result in self.all_seeds(experiment) if result.seed == wanted), None)

    def stale(self, experiment: Experiment) -> list[Stale]:
        """Return the records that have this run's name with any seed, but other settings."""
        seeds = {seed: experiment.replace(seed=seed) for seed in {result.seed for result in self.all}}
        named = [result for result in self.all if result.name == seeds[result.seed].name]
        found = [Stale(result, result.differences(seeds[result.seed])) for result in named]
        return [stale for stale in found if stale.differences]

    def shorter(self, experiment: Experiment) -> list[list[Result]]:
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

        def distance(options: dict[str, Any]) -> tuple[bool, bool, int]:
            passes = [(each.get("auxiliary") == "none", each.get("symmetric")) for each in (options, wanted)]
            far = abs(options["batch_size"] - wanted["batch_size"])
            return options["method"] != wanted["method"], passes[0] != passes[1], far

        similar = [r for r in self.all if r.options["network"] == wanted["network"] and r.record["seconds"]]
        nearest = min((distance(result.options) for result in similar), default=None)
        per_image = [
            result.record["seconds"] / result.epochs / train_images(result.options["data"])
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
        if not len(found["x"]) == len(found["y"]) == len(found["labels"]) > 0:
            self.damaged[path] = "x, y and labels differ in length"
        elif not set(found["labels"]) <= set(range(len(found["classes"]))):
            self.damaged[path] = "a label has no class"
        else:
            return found
        return None

    def _read(self, path: Path, schema: "Schema") -> dict[str, Any] | None:
        """Read a file and check what tables and pages use of it."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            for name, check in schema.items():
                for value in _values(content, name.split(".")):
                    if not check(value):
                        raise _Invalid(f"its {name.replace('.*', '').rstrip('?')} is {str(value)[:40]!r}")
            return content
        except OSError as error:
            self.damaged[path] = f"cannot be read: {error.strerror}"
        except _Invalid as error:
            self.damaged[path] = " ".join(str(error).split())
        except (ValueError, RecursionError):
            self.damaged[path] = "it is empty, cut off, or not JSON"
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


# --- what a record must hold ------------------------------------------------------------------------------------------


class _Invalid(ValueError):
    pass


Check = Callable[[Any], bool]
Schema = dict[str, Check]


def of_type(*kinds: type) -> Check:
    return lambda value: isinstance(value, kinds) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e300 < value < 1e300


def is_count(value: Any) -> bool:
    return isinstance(value, int) and is_number(value) and value >= 0


def is_accuracy(value: Any) -> bool:
    return is_number(value) and 0 <= value <= 100


def is_curve(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(point, list) and len(point) == 2 and all(map(is_number, point)) for point in value
    )


def is_curves(value: Any) -> bool:
    """Lists of numbers by name, all of one length; or nothing."""
    if not isinstance(value, dict):
        return not value
    lists = list(value.values())
    return all(isinstance(x, list) and all(map(is_number, x)) for x in lists) and len(set(map(len, lists))) <= 1


# By path: * is each element of a list, ? may be missing.
RECORD: Schema = {
    "name": of_type(str),
    "settings.data": of_type(dict),
    "settings.data.source": of_type(str),
    "settings.encoder": of_type(dict),
    "settings.encoder.network": of_type(str),
    "settings.method": of_type(dict),
    "settings.method.name": of_type(str),
    "settings.train": of_type(dict),
    "settings.train.epochs": lambda value: is_count(value) and value > 0,
    "settings.train.batch_size": is_count,
    "settings.train.rounds": is_count,
    "settings.train.warmup_epochs": is_count,
    "settings.train.seed": is_count,
    "knn.last": lambda value: value is None or is_accuracy(value),
    "knn_by_epoch": is_curve,
    "loss_by_epoch?": is_curve,
    "curves?": is_curves,
    "evaluation": of_type(list),
    "evaluation.*.accuracy": is_accuracy,
    "evaluation.*.protocol.evaluation": of_type(str),
    "evaluation.*.protocol.dimensions?": is_count,
    "seconds": lambda value: value is None or is_number(value),
    "views_per_second?": lambda value: value is None or is_number(value),
    "sessions": lambda value: isinstance(value, list) and len(value) > 0,
    "sessions.*.gpu": of_type(str, type(None)),
}
PROJECTION: Schema = {
    **{name: check for name, check in RECORD.items() if name.startswith("settings")},
    "x.*": is_number,
    "y.*": is_number,
    "labels.*": is_count,
    "classes.*": of_type(str),
}


def _values(content: Any, path: Iterable[str]) -> Iterator[Any]:
    """Yield the values at a path."""
    step, *rest = path
    if step == "*":
        if not isinstance(content, list):
            raise _Invalid(f"it has {str(content)[:40]!r} in the place of a list")
        found = content
    else:
        name = step.rstrip("?")
        if not isinstance(content, dict):
            raise _Invalid("it is not a record")
        if name not in content:
            if step == name:
                raise _Invalid(f"it has no {name!r}")
            return
        found = [content[name]]
    for each in found:
        if rest:
            yield from _values(each, rest)
        else:
            yield each
