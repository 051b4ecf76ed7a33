"""What a person sees of a run. The base class is silent; `Terminal` draws a progress bar."""

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from aag.config import TrainConfig
from aag.text import pluralize

if TYPE_CHECKING:
    from rich.console import Console

    from aag.training.loop import Trainer
    from aag.training.runtime import Runtime


class Reporter:
    """Told what happens, in the order it happens; `reached` counts the steps an earlier session did."""

    def start(self, trainer: "Trainer", reached: int) -> None: ...

    def warm(self, runtime: "Runtime", seconds: float) -> None: ...

    def step(self, epoch: int, step: int, steps: int, loss: float) -> None: ...

    def epoch(self, epoch: int, loss: float, views_per_second: float) -> None: ...

    def knn(self, epoch: int, accuracy: float) -> None: ...


class Terminal(Reporter):
    """A progress bar with loss, kNN and time left; a line for each kNN where the output is not a terminal."""

    def __init__(self, console: "Console") -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self.console = console
        self.bar = Progress(  # 80 columns at its widest
            TextColumn("epoch {task.fields[epoch]}/{task.fields[epochs]}"),
            BarColumn(bar_width=14),
            TextColumn("loss {task.fields[loss]}  kNN {task.fields[knn]}  {task.fields[speed]}"),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=console,
            speed_estimate_period=120,
        )

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar.live.is_started:  # stopping one that never started prints an empty line
            self.bar.stop()

    def start(self, trainer: "Trainer", reached: int) -> None:
        config, runtime, run, steps = trainer.config, trainer.runtime, trainer.run, trainer.steps
        train_set, test_set = trainer.train_set, trainer.test_set
        count = len(train_set.classes)
        labels = f"{count} class{'es' * (count != 1)}" if train_set.labels is not None else "no labels"
        test = f" + {len(test_set):,} test" if test_set is not None else ""
        size = train_set.image_size
        self.say(f"data     {train_set.name}: {len(train_set):,} train{test} images, {size}×{size}, {labels}")
        skipped = len(train_set.skipped) + (len(test_set.skipped) if test_set else 0)
        if skipped:
            self.say(f"         {pluralize(skipped, 'file')} skipped, listed in {run.skipped_file}")
        tempered = f", τ {config.temperature}" * config.tempered()
        self.say(f"method   {config.method}: {_views(trainer)}, {config.loss_name()}{tempered}")
        width = f" (width {config.width})" if config.width != TrainConfig.width else ""
        epochs = pluralize(config.epochs, "epoch")
        self.say(f"network  {config.network}{width}, {epochs} of {steps} steps of {config.batch_size} images")
        self.say(f"runs on  {runtime}")
        if runtime.device.type == "cpu" and config.width == TrainConfig.width:
            self.say("         a network of full width is slow on a CPU; aag train --recipe demo is made for one")
        epoch, complete = reached // steps, reached == config.epochs * steps
        after = " (complete)" if complete else f" (going on in epoch {epoch + 1})" if reached else ""
        self.say(f"run      {run.folder}{after}")
        if trainer.labels is None:
            self.say("         no labelled test part: trained without kNN")
        if complete:
            return
        self.steps = steps
        fields: dict[str, Any] = {"epoch": epoch, "epochs": config.epochs, "loss": "…", "knn": "…", "speed": ""}
        self.task = self.bar.add_task("", total=config.epochs * steps, completed=reached, **fields)
        self.bar.start()

    def warm(self, runtime: "Runtime", seconds: float) -> None:
        self.say(f"ready    {runtime}, after {seconds:.1f} s")

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True, markup=False)

    def step(self, epoch: int, step: int, steps: int, loss: float) -> None:
        self.bar.update(self.task, completed=epoch * steps + step, epoch=epoch + 1, loss=f"{loss:.2f}")

    def epoch(self, epoch: int, loss: float, views_per_second: float) -> None:
        speed = f"{views_per_second:,.0f} views/s"
        self.bar.update(self.task, completed=epoch * self.steps, epoch=epoch, loss=f"{loss:.2f}", speed=speed)
        self.loss = loss

    def knn(self, epoch: int, accuracy: float) -> None:
        self.bar.update(self.task, knn=f"{accuracy:.1f}")
        after = f"epoch {epoch:>4}  loss {self.loss:7.3f}" if epoch else "untrained             "
        self.say(f"{time.strftime('%H:%M:%S')}  {after}  kNN {accuracy:5.2f} %")

    loss = float("nan")


def _views(trainer: "Trainer") -> str:
    count = len(trainer.method.views)
    if trainer.config.method == "aag" and count == 3:
        return f"2 basic views + {trainer.config.auxiliary}"
    return pluralize(count, "basic view")


@contextlib.contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """Ctrl-C (or a scheduler's SIGTERM) asks for a stop after the step under way; a second one stops at once.

    Yields the question whether a stop was asked for. Until it is put for the first time there is nothing to save,
    and a signal stops at once.
    """
    asked = polled = False

    def ask(signum: int, frame: object) -> None:
        nonlocal asked
        if asked or not polled:
            raise KeyboardInterrupt
        asked = True
        with contextlib.suppress(OSError, RuntimeError):  # nobody reads it any more, or it was being written to
            print("\nstopping after this step …", file=sys.stderr)

    def should_stop() -> bool:
        nonlocal polled
        polled = True
        return asked

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield should_stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
