"""Run folders: their file names, how they are created, locked and read, and summaries of runs. Imports no torch."""

import contextlib
import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aag.errors import AAGError
from aag.files import (
    MAX_LOG,
    as_path,
    explain_write_errors,
    parse_json,
    read_json,
    read_text,
    remove_stale_temporaries,
    write_bytes,
    write_json,
)
from aag.locks import hold_lock, is_locked
from aag.metrics import parse_rows
from aag.text import pluralize

Json = dict[str, Any]
SECTIONS = ("data", "encoder", "method", "train")  # of the settings


class Run:
    """The files of a run. `settings` is nested JSON by section; see `aag.training.RunSettings`."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = as_path(folder)
        self.config_file = self.folder / "config.json"
        self.metrics_file = self.folder / "metrics.jsonl"
        self.checkpoint = self.folder / "last.ckpt"  # the newest; see `checkpoints`
        self.encoder_file = self.folder / "encoder.safetensors"
        self.evaluation_file = self.folder / "evaluation.json"
        self.skipped_file = self.folder / "skipped.txt"
        self.tracker_file = self.folder / "tracker.json"
        self.report_file = self.folder / "report.html"
        self.lock_file = self.folder / ".lock"

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"

    @staticmethod
    def open(folder: str | Path) -> "Run":
        """Return an existing run; the path may also be a file in its folder."""
        run = Run(folder)
        # Without permission, os.path returns False where pathlib raises.
        if os.path.isfile(folder) and os.path.isfile(run.folder.parent / "config.json"):
            run = Run(run.folder.parent)
        if os.path.isfile(run.folder):
            raise AAGError(f"{folder} is a file; give a run folder, which aag train makes")
        if not os.path.isdir(run.folder):
            raise AAGError(f"{folder}: no such run folder")
        if not os.path.isfile(run.config_file):
            raise AAGError(f"{folder} is not a run folder: it holds no config.json")
        return run

    # --- starting -----------------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        return os.path.exists(self.config_file)

    def check(self, settings: Json) -> None:
        """Raise unless the folder is new, empty, or a run with these settings (or fewer epochs, see `extends`)."""
        if self.exists():
            there = self.settings()
            if different := differences(there, settings):
                if extends(there, settings):
                    return
                listed = [f"{name} {a} there, {b} here" for name, (a, b) in different.items()]
                if len(listed) > 6:
                    listed[5:] = [f"{len(listed) - 5} more"]
                advice = "choose another --out"
                if different.keys() == {"epochs"} and there["train"]["epochs"] < settings["train"]["epochs"]:
                    advice = (
                        "this schedule depends on the number of epochs, so the run cannot be extended; "
                        f"to train on from its weights use --from {shlex.quote(str(self.folder))} with another --out"
                    )
                raise AAGError(f"{self.folder} holds a run with other settings ({'; '.join(listed)}); {advice}")
        elif os.path.exists(self.folder):
            if not os.path.isdir(self.folder):
                raise AAGError(f"{self.folder} is a file, not a run folder; choose another --out")
            with explain_write_errors(self.folder):
                found = sorted(name for name in os.listdir(self.folder) if not _is_ours(name))
            if found:
                raise AAGError(
                    f"{self.folder} is not empty and not a run: it holds {found[0]!r}"
                    f"{f' and {len(found) - 1} more' if len(found) > 1 else ''}; choose another --out"
                )

    def start(self, settings: Json, name: str = "") -> None:
        """Write the settings of a new run, or of a run that is extended by more epochs. Call it inside `lock`."""
        self.check(settings)
        if not self.exists() or self.settings() != settings:
            write_json(self.config_file, {"name": name or self.folder.name, **settings})

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder's lock. The system releases it however this process ends.

        Temporary files of killed processes are removed.
        """
        with explain_write_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        with hold_lock(self.lock_file):
            trained = (self.config_file, self.metrics_file, self.encoder_file, self.skipped_file, self.tracker_file)
            for path in (*trained, *self.checkpoints()):
                if os.path.lexists(path) and not os.path.isfile(path):  # a pipe would block
                    raise AAGError(f"{path} is not a regular file; remove it, or choose another --out")
            remove_stale_temporaries(self.folder, {path.name for path in (*trained, self.checkpoint)})
            yield

    def is_running(self) -> bool:
        """Return whether a process holds the lock."""
        return is_locked(self.lock_file)

    def checkpoint_file(self, age: int) -> Path:
        """Return the path of the newest checkpoint (age 0), or of the one written `age` checkpoints before it."""
        return self.folder / f"last.{age}.ckpt" if age else self.checkpoint

    def checkpoints(self) -> list[Path]:
        """Return the checkpoints that exist, newest first."""
        ages = [0] if os.path.lexists(self.checkpoint) else []
        with contextlib.suppress(OSError):
            found = (re.fullmatch(r"last\.([1-9]\d{0,3})\.ckpt", name) for name in os.listdir(self.folder))
            ages += sorted(int(match[1]) for match in found if match)
        return [self.checkpoint_file(age) for age in ages]

    # --- reading ------------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name that the run got from its settings, even if its folder was renamed."""
        return str(self._read(self.config_file).get("name", self.folder.name))

    def settings(self) -> Json:
        """Return the resolved settings by section."""
        found = self._read(self.config_file)
        settings = {name: found[name] for name in SECTIONS if isinstance(found.get(name), dict)}
        if len(settings) < len(SECTIONS):
            raise AAGError(f"{self.config_file} does not hold the settings of a run of this version; train again")
        return settings

    def evaluation(self) -> Json:
        if not os.path.exists(self.evaluation_file):
            raise AAGError(f"{self.folder} is not evaluated; run aag evaluate {shlex.quote(str(self.folder))}")
        found = self._read(self.evaluation_file)
        results = found.get("results")
        if type(found.get("epoch", 0)) is not int or not isinstance(results, list) or not all(map(_is_result, results)):
            path = shlex.quote(str(self.folder))
            raise AAGError(f"{self.evaluation_file} is damaged: it holds no results; run aag evaluate {path} again")
        return found

    def _read(self, path: Path) -> Json:
        try:
            found = read_json(path)
        except OSError as error:
            raise AAGError(f"cannot read {path}: {error.strerror}") from error
        except ValueError as error:
            raise AAGError(f"{path} is damaged: it is not JSON") from error
        if not isinstance(found, dict):
            raise AAGError(f"{path} is damaged: it holds {str(found)[:20]!r}, not settings by name")
        return found

    def metrics(self) -> list[Json]:
        """Return the rows logged so far; lines that are cut off or damaged are skipped."""
        try:
            return parse_rows(read_text(self.metrics_file, errors="replace", at_most=MAX_LOG))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise AAGError(f"cannot read {self.metrics_file}: {error.strerror}") from error

    def check_encoder(self, extra: Mapping[str, str]) -> None:
        """Raise if the header of an encoder, `extra`, says that it was trained with other settings than this run's."""
        try:
            trained = parse_json(extra["settings"])
            different = set(differences(trained, self.settings())) - {"epochs"}  # a run may be extended
        except KeyError:  # of an older version
            return
        except (ValueError, TypeError, AttributeError) as error:
            raise AAGError(f"{self.encoder_file} is damaged: the settings in its header are not readable") from error
        if different:
            raise AAGError(
                f"{self.encoder_file} was trained with another {', '.join(sorted(different))} than "
                f"{self.config_file.name} says; one of the two files belongs to another run"
            )

    # --- logging ------------------------------------------------------------------------------------------------------

    def log(self, rows: Iterable[Json]) -> None:
        text = "".join(json.dumps(row) + "\n" for row in rows)
        with explain_write_errors(self.metrics_file), self.metrics_file.open("a") as file:
            file.write(text)

    def filter_metrics(self, wanted: Callable[[Json], bool]) -> None:
        """Keep only the wanted rows. A resumed run drops those after its checkpoint, because it logs them again."""
        lines = "".join(json.dumps(row) + "\n" for row in self.metrics() if wanted(row))
        write_bytes(self.metrics_file, lines.encode())


def _is_ours(name: str) -> bool:
    """Return whether a file is a lock or a temporary file, of a run that another process is starting."""
    return name == ".lock" or (name.startswith(".") and name.endswith(".tmp"))


def _is_result(row: Any) -> bool:
    """Return whether a row of evaluation.json holds an accuracy with its protocol."""
    types = {"name": (str,), "accuracy": (int, float), "protocol": (dict,)}
    return isinstance(row, dict) and all(type(row.get(name)) in allowed for name, allowed in types.items())


def flatten(settings: Mapping[str, Any]) -> Json:
    """Return settings by section as one dict by option; the names of the sections become `data` and `method`."""
    flat: Json = {}
    for section, values in settings.items():
        for name, value in values.items():
            flat[section if name in ("source", "name") else name] = value
    return flat


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the options whose values differ, with both values; None where one side has no such option."""
    a, b = flatten(there), flatten(here)
    return {name: (a.get(name), b.get(name)) for name in {**a, **b} if a.get(name) != b.get(name)}


def extends(there: Mapping[str, Any], here: Mapping[str, Any]) -> bool:
    """Return whether `here` only trains longer than `there`, and no setting is a fraction of the epochs.

    By convention, such settings of a method have names that end in `_start` or `_until`.
    """
    different, train = differences(there, here), here["train"]
    constant = train["schedule"] == "constant" and train["rounds"] == 1 and not train.get("low_res_size")
    constant = constant and not any(name.endswith(("_start", "_until")) for name in here["method"])
    return set(different) == {"epochs"} and different["epochs"][0] < different["epochs"][1] and constant


@dataclass(frozen=True)
class RunSummary:
    """The main numbers of a run, from its metrics."""

    knn_untrained: float | None
    knn_last: float | None  # of the last epoch logged
    knn_best: float | None  # chosen on the test set: logged, not reported
    knn_best_epoch: int | None
    seconds: float | None  # of training, without evaluation
    views_per_second: float | None  # the median epoch's
    missing: str  # what the metrics lack; empty where they are whole


def summarize(run: Run, epochs: int) -> RunSummary:
    """Return the summary of a run that has finished `epochs` epochs."""
    rows = run.metrics()
    knn = {row["epoch"]: row["knn"] for row in rows if row["kind"] == "knn"}
    logged = {row["epoch"]: row for row in rows if row["kind"] == "epoch"}
    trained = {epoch: accuracy for epoch, accuracy in knn.items() if epoch > 0}
    best = max(trained, key=trained.__getitem__, default=None)
    speeds = sorted(row["views_per_second"] for row in logged.values())
    absent = [epoch for epoch in range(1, epochs + 1) if epoch not in logged]
    return RunSummary(
        knn_untrained=knn.get(0),
        knn_last=trained[max(trained)] if trained else None,
        knn_best=None if best is None else trained[best],
        knn_best_epoch=best,
        seconds=logged[epochs]["seconds"] if epochs in logged else None,
        views_per_second=speeds[len(speeds) // 2] if speeds else None,
        missing=f"{pluralize(len(absent), 'epoch')} of {epochs} not in {run.metrics_file.name}" if absent else "",
    )


@dataclass(frozen=True)
class RunStatus:
    """A summary of a run for lists. Of a damaged run, only the folder and the state are known."""

    folder: Path
    state: str  # running, complete, stopped, not started or damaged: …
    data: str = ""
    network: str = ""
    method: str = ""
    epoch: int = 0
    epochs: int = 0
    knn: float | None = None  # of the last evaluation, in percent
    rank: float | None = None  # effective rank, of the last evaluation
    seconds: float | None = None  # of training


def find_runs(folder: str | Path) -> list[Run]:
    """Return the runs in a folder and in its subfolders, sorted by path; the folder may be a run itself.

    Links are not followed. Unreadable folders are skipped.
    """
    found = []
    for path, folders, files in os.walk(folder):
        folders.sort()
        if "config.json" in files:
            found.append(Run(path))
            folders.clear()  # a run holds no other runs
    return found


def run_status(run: Run) -> RunStatus:
    """Return the status of a run. A damaged run does not raise."""
    try:
        settings, rows = run.settings(), run.metrics()
        epochs, method = int(settings["train"]["epochs"]), str(settings["method"]["name"])
        data, network = str(settings["data"]["source"]), str(settings["encoder"]["network"])
        logged = [row for row in rows if row["kind"] == "epoch"]
        epoch = max((int(row["epoch"]) for row in logged), default=0)
        state = (
            "running" if run.is_running() else "complete" if epoch >= epochs else "stopped" if epoch else "not started"
        )
        seconds = max((float(row["seconds"]) for row in logged), default=None)
        knn, rank = (_last_value(rows, key) for key in ("knn", "rank"))
        return RunStatus(run.folder, state, data, network, method, epoch, epochs, knn, rank, seconds)
    except (AAGError, KeyError, TypeError, ValueError, OSError) as error:
        reason = str(error) if isinstance(error, AAGError) else "its files hold unexpected values"
        return RunStatus(run.folder, f"damaged: {reason}")


def _last_value(rows: list[Json], key: str) -> float | None:
    """Return the value of `key` in the last row that has it; None without one."""
    return next((float(row[key]) for row in reversed(rows) if isinstance(row.get(key), int | float)), None)


def projection_file(records: Path, run_name: str) -> Path:
    """Return the path of a run's t-SNE file, next to its record."""
    return records / "tsne" / f"{run_name}.json"
