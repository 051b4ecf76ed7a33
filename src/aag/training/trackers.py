"""Experiment trackers as callbacks: TensorBoard, Weights & Biases, trackio.

A tracker that fails, for example without internet, warns once, and training continues.
"""

import json
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from aag.errors import AAGError, first_line, unknown_name
from aag.files import read_json, write_json
from aag.runs import flatten
from aag.training.callbacks import Callback

if TYPE_CHECKING:
    from aag.training.trainer import Trainer

TrackerName = Literal["tensorboard", "wandb", "trackio"]
PROJECT = "aag"
POSITION_KEYS = ("kind", "epoch", "step")  # of a row; the rest are its values


class Tracker(Callback):
    """Base class: turns logged rows into named values by step. Its failures never stop training."""

    package: ClassVar[str]

    def __init__(self, project: str = PROJECT) -> None:
        if find_spec(self.package) is None:
            raise AAGError(f"--track {self.package} needs {self.package}; install it with: pip install {self.package}")
        self.project = project
        self.is_open = False

    def open(self, trainer: "Trainer", settings: dict[str, Any]) -> None:
        """Start or resume tracking a run. `settings`: plain values by option."""
        raise NotImplementedError

    def write(self, values: dict[str, float], step: int) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def on_start(self, trainer: "Trainer") -> None:
        if trainer.epoch < trainer.settings.epochs:
            settings = flatten(trainer.run_settings)
            self.is_open = self._try_or_warn(
                lambda: self.open(trainer, {name: _plain(value) for name, value in settings.items()})
            )

    def on_log(self, trainer: "Trainer", row: dict[str, Any]) -> None:
        if self.is_open:
            self.is_open = self._try_or_warn(lambda: self._write_row(row))

    def _write_row(self, row: dict[str, Any]) -> None:
        if values := row_values(row):
            self.write(values, row["step"])

    def on_end(self, trainer: "Trainer") -> None:
        if self.is_open:
            self._try_or_warn(self.close)
            self.is_open = False

    def _try_or_warn(self, work: Callable[[], None]) -> bool:
        try:
            work()
        except Exception as error:  # no internet, no account, a full disk: training is worth more
            line = f"--track {self.package} failed; training continues without it: {first_line(error)[:200]}"
            print(f"warning: {line}", file=sys.stderr)
            return False
        return True


class TensorBoard(Tracker):
    """Write event files to the run's folder `tensorboard`: `tensorboard --logdir runs` shows all runs."""

    package = "tensorboard"

    def open(self, trainer: "Trainer", settings: dict[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        if trainer.run is None:
            raise AAGError("TensorBoard writes into a run folder; give the trainer a run")
        step = trainer.position()["step"]
        # Rows after the checkpoint will be logged again: their first versions are hidden.
        folder = str(trainer.run.folder / "tensorboard")
        self.writer = SummaryWriter(folder, purge_step=step + 1 if step else None)
        if step == 0:
            for summary in hparams(settings, {}):
                self.writer._get_file_writer().add_summary(summary)

    def write(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()  # so that a killed run keeps its rows

    def close(self) -> None:
        self.writer.close()


class WandB(Tracker):
    """Log to Weights & Biases. Its environment variables apply, such as WANDB_MODE=offline."""

    package = "wandb"

    def open(self, trainer: "Trainer", settings: dict[str, Any]) -> None:
        import wandb

        saved = _read_state(trainer)
        self.tracked = wandb.init(
            project=self.project,
            name=trainer.run_name or None,
            id=saved.get("wandb"),
            resume="allow",
            config=settings,
            dir=trainer.run.folder if trainer.run else None,
            settings=wandb.Settings(console="off", silent=True),
        )
        if trainer.run:
            write_json(trainer.run.tracker_file, {**saved, "wandb": self.tracked.id})

    def write(self, values: dict[str, float], step: int) -> None:
        if step >= self.tracked.step:  # a resumed run repeats some rows exactly, and wandb takes no step twice
            self.tracked.log(values, step=step)

    def close(self) -> None:
        self.tracked.finish()


class Trackio(Tracker):
    """Log to trackio's local dashboard: `trackio show --project aag`."""

    package = "trackio"

    def open(self, trainer: "Trainer", settings: dict[str, Any]) -> None:
        import trackio

        saved = _read_state(trainer)
        known = saved.get("trackio")  # trackio finds a run by its name, which other folders may share
        self.tracked = trackio.init(
            project=self.project,
            name=known or trainer.run_name or None,
            config=settings,
            resume="allow" if known else "never",
            embed=False,
        )
        if trainer.run:
            write_json(trainer.run.tracker_file, {**saved, "trackio": self.tracked.name})

    def write(self, values: dict[str, float], step: int) -> None:
        self.tracked.log(values, step=step)

    def close(self) -> None:
        self.tracked.finish()


TRACKERS: dict[str, type[Tracker]] = {cls.package: cls for cls in (TensorBoard, WandB, Trackio)}


def make_trackers(name: str | None) -> list[Tracker]:
    """Return a list with the tracker of this name; empty for None."""
    if name is not None and name not in TRACKERS:
        raise unknown_name("tracker", name, TRACKERS)
    return [TRACKERS[name]()] if name else []


def row_values(row: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of a logged row, named by its kind: epoch/loss, steps/loss, knn/knn, health/rank."""
    if row["kind"] == "start":
        return {}
    numbers = {
        name: value for name, value in row.items() if name not in POSITION_KEYS and isinstance(value, int | float)
    }
    return {f"{row['kind']}/{name}": float(value) for name, value in numbers.items()} | {"epoch": float(row["epoch"])}


def _plain(value: Any) -> str | int | float | bool:
    """Return a setting as trackers take it: lists and None as text."""
    return value if isinstance(value, str | int | float) else json.dumps(value)


def _read_state(trainer: "Trainer") -> dict[str, Any]:
    """Return the ids that trackers saved in the run folder; empty if the file is missing or damaged."""
    try:
        found = read_json(trainer.run.tracker_file) if trainer.run else {}
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
