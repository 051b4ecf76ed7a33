"""The progress bar of training, and signals that stop it cleanly."""

import contextlib
import signal
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from aag.data import ImageSet
from aag.distributed import backend, is_distributed, read_launch, world_size
from aag.evaluate.health import is_collapsed
from aag.signals import exit_code, handle_stops, raise_stop
from aag.text import pluralize
from aag.training.callbacks import Callback

if TYPE_CHECKING:
    from rich.console import Console

    from aag.training.trainer import Trainer


class Progress(Callback):
    """A progress bar with loss, time left, and kNN or, without labels, health; a line for each evaluation."""

    def __init__(self, console: "Console", test_set: ImageSet | None = None, *, brief: bool = False) -> None:
        """`brief`: show the bar while training, and print nothing but warnings."""
        self.console, self.test_set, self.brief = console, test_set, brief
        self.loss, self.labelled, self.has_warned = float("nan"), False, False
        self.bar = Bar(  # 80 columns at its widest
            TextColumn("epoch {task.fields[epoch]}/{task.fields[epochs]}"),
            BarColumn(bar_width=14),
            TextColumn("loss {task.fields[loss]}{task.fields[score]}{task.fields[speed]}"),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=console,
            speed_estimate_period=120,
            transient=brief,
            disable=brief and not console.is_terminal,
        )

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar.live.is_started:  # stopping one that never started prints an empty line
            self.bar.stop()

    def say(self, text: str) -> None:
        if self.brief and not text.startswith("warning"):
            return
        self.console.print(text, highlight=False, soft_wrap=True, markup=False)

    def on_start(self, trainer: "Trainer") -> None:
        images, test, settings = trainer.image_set, self.test_set, trainer.settings
        self.labelled = images.labels is not None and test is not None and test.labels is not None
        self._say_images(trainer)
        self._say_training(trainer)
        self._say_run(trainer)
        done, total = trainer.position()["step"], settings.epochs * trainer.steps_per_epoch
        if done == total:
            return
        score = "  kNN …" if self.labelled else "  rank …"
        fields: dict[str, Any] = {"epochs": settings.epochs, "loss": "…", "score": score, "speed": ""}
        self.task = self.bar.add_task("", total=total, completed=done, epoch=trainer.epoch, **fields)
        self.bar.start()

    def _say_images(self, trainer: "Trainer") -> None:
        images, test = trainer.image_set, self.test_set
        count, size = len(images.classes), images.image_size
        labels = pluralize(count, "class", "classes") if images.labels is not None else "no labels"
        if images.labels is not None and (unlabelled := len(images) - len(images.labelled())):
            labels += f", {pluralize(unlabelled, 'image')} without a label"
        and_test = f" + {len(test):,} test" if test is not None else ""
        self.say(f"data     {images.name}: {len(images):,} train{and_test} images, {size}×{size}, {labels}")
        skipped = len(images.skipped) + (len(test.skipped) if test else 0)
        if skipped and trainer.run:
            self.say(f"         {pluralize(skipped, 'file')} skipped, listed in {trainer.run.skipped_file}")

    def _say_training(self, trainer: "Trainer") -> None:
        settings, method, spec = trainer.settings, trainer.method, trainer.encoder.spec
        name = trainer.run_settings["method"]["name"]
        self.say(f"method   {name}: {method.describe_views()}, {method.describe_loss()}")
        width = f" (width {spec.width})" if spec.width not in (None, 64) else ""
        length = f"{pluralize(settings.epochs, 'epoch')} of {pluralize(trainer.steps_per_epoch, 'step')}"
        self.say(f"network  {spec.network}{width}, {length} of {settings.batch_size} images")
        self.say(f"runs on  {trainer.runtime}")
        if is_distributed():
            size, group = world_size(), spec.bn_group_size
            norm = f"in groups of {group}" if group else "synchronised"
            library, share = backend(trainer.runtime.device), settings.batch_size // size
            processes = pluralize(size, "process", "processes")
            self.say(f"         {processes} ({library}), each with {share} images of every batch; batch norm {norm}")
        if trainer.runtime.device.type == "cpu" and spec.width == 64:
            self.say("         a network of width 64 is slow on a CPU; use --recipe demo or a smaller --width")

    def _say_run(self, trainer: "Trainer") -> None:
        images, state = trainer.image_set, ""
        if trainer.epoch == trainer.settings.epochs:
            state = " (complete)"
        elif trainer.position()["step"]:
            state = f" (resumes in epoch {trainer.epoch + 1})"
        if trainer.run:
            self.say(f"run      {trainer.run.folder}{state}")
        if not self.labelled:
            self.say("         no labelled test images: training without kNN; rank and agree show its health")
            if images.labels is not None and images.names and self.test_set is None:
                self.say(
                    "         add --holdout 0.1 to hold out a tenth for kNN; the labels of a folder are its subfolders"
                )

    def on_ready(self, trainer: "Trainer", seconds: float) -> None:
        self.say(f"ready    {trainer.runtime}, after {seconds:.1f} s")

    def on_step(self, trainer: "Trainer", loss: float) -> None:
        done = trainer.position()["step"]
        self.bar.update(self.task, completed=done, epoch=trainer.epoch + 1, loss=f"{loss:.2f}")

    def on_log(self, trainer: "Trainer", row: dict[str, Any]) -> None:
        if row["kind"] == "epoch":
            self.loss = row["loss"]
            # Next to rank and agreement there is no room for the speed.
            speed = f"  {row['views_per_second']:,.0f} views/s" if self.labelled else ""
            self.bar.update(self.task, completed=row["step"], epoch=row["epoch"], loss=f"{self.loss:.2f}", speed=speed)
        elif row["kind"] == "knn":
            self.bar.update(self.task, score=f"  kNN {row['knn']:.1f}")
            self._say_score(row, f"kNN {row['knn']:5.2f} %")
        elif row["kind"] == "health":
            rank, dimensions, agree = row["rank"], row["dimensions"], 100 * row["agreement"]
            if not self.labelled:
                self.bar.update(self.task, score=f"  rank {rank:.0f}/{dimensions}  agree {agree:.0f} %")
                self._say_score(row, f"rank {rank:5.1f}/{dimensions}  agree {agree:4.1f} %")
            if is_collapsed(row) and not self.has_warned:
                self.has_warned = True
                self.say(
                    f"warning: collapse: all images get nearly the same embedding (rank {rank:.1f} of {dimensions}); "
                    "stop, lower --lr and use another --out"
                )

    def _say_score(self, row: dict[str, Any], score: str) -> None:
        after = f"epoch {row['epoch']:>4}  loss {self.loss:7.3f}" if row["epoch"] else "untrained             "
        self.say(f"{time.strftime('%H:%M:%S')}  {after}  {score}")


class StopRequest:
    """A request to stop by a signal. Call it after each step; it returns whether to stop.

    Before the first call there is nothing to save, so a signal stops at once.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self._polled = False

    def __call__(self) -> bool:
        self._polled = True
        return self.signum is not None

    def handle(self, signum: int, frame: object) -> None:
        """Ask for a stop after the current step. A second Ctrl-C, or any signal before the first step, stops at once.

        Closing a terminal sends SIGHUP twice, and schedulers may repeat theirs: the run is saved all the same.
        """
        if not self._polled or (self.signum is not None and signum == signal.SIGINT):
            raise_stop(signum)
        if self.signum is not None:
            return
        self.signum = signum
        if read_launch().rank == 0:
            with contextlib.suppress(OSError, RuntimeError):  # stderr is closed, or was being written to
                print("\nstopping after this step …", file=sys.stderr)

    @property
    def exit_code(self) -> int:
        """Exit code of a command that stopped on request."""
        return exit_code(self.signum)


@contextlib.contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Make stop signals end training after the current step, with a checkpoint."""
    request = StopRequest()
    with handle_stops(request.handle):
        yield request
