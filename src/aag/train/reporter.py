"""What a person sees of a run. The base class is silent; `Terminal` draws a progress bar."""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from aag.config import TrainConfig

if TYPE_CHECKING:
    from rich.console import Console

    from aag.data import ImageSet
    from aag.train.run import Run
    from aag.train.runtime import Runtime


class Reporter:
    """Told what happens, in the order it happens."""

    def start(
        self,
        config: TrainConfig,
        runtime: "Runtime",
        run: "Run",
        train_set: "ImageSet",
        test_set: "ImageSet | None",
        steps: int,
        epoch: int,
    ) -> None: ...

    def warm(self, runtime: "Runtime", seconds: float) -> None: ...

    def step(self, epoch: int, step: int, steps: int, loss: float) -> None: ...

    def epoch(self, epoch: int, loss: float, views_per_second: float) -> None: ...

    def knn(self, epoch: int, accuracy: float) -> None: ...


class Terminal(Reporter):
    """A progress bar with loss, kNN and time left; a line for each kNN where the output is not a terminal."""

    def __init__(self, console: "Console") -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        self.console = console
        self.bar = Progress(
            TextColumn("epoch {task.fields[epoch]}/{task.fields[epochs]}"),
            BarColumn(bar_width=24),
            TextColumn(
                "{task.percentage:>3.0f} %  loss {task.fields[loss]}  kNN {task.fields[knn]}  {task.fields[speed]}"
            ),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            speed_estimate_period=120,
        )

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def start(
        self,
        config: TrainConfig,
        runtime: "Runtime",
        run: "Run",
        train_set: "ImageSet",
        test_set: "ImageSet | None",
        steps: int,
        epoch: int,
    ) -> None:
        show = self.console.print
        labels = f"{len(train_set.classes)} classes" if train_set.labels is not None else "no labels"
        test = f" + {len(test_set):,} test" if test_set is not None else ""
        size = train_set.image_size
        show(
            f"data     {train_set.name}: {len(train_set):,} train{test} images, {size}×{size}, {labels}",
            highlight=False,
        )
        if train_set.skipped:
            show(f"         {len(train_set.skipped)} files skipped, such as {train_set.skipped[0]}", highlight=False)
        third = "" if config.auxiliary == "none" else f" + {config.auxiliary}"
        show(f"method   {config.method}: 2 basic views{third}, {config.loss}, τ {config.temperature}", highlight=False)
        show(
            f"network  {config.network}, {config.epochs} epochs of {steps} steps of {config.batch_size}",
            highlight=False,
        )
        show(f"runs on  {runtime}", highlight=False)
        show(f"run      {run.folder}" + (f" (going on after epoch {epoch})" if epoch else ""), highlight=False)
        if train_set.labels is None or test_set is None:
            show("         no labelled test part: trained without kNN", highlight=False)
        self.steps = steps
        fields = {"epoch": epoch, "epochs": config.epochs, "loss": "…", "knn": "…", "speed": ""}
        self.task = self.bar.add_task("", total=config.epochs * steps, completed=epoch * steps, **fields)  # type: ignore[arg-type]
        self.bar.start()

    def warm(self, runtime: "Runtime", seconds: float) -> None:
        self.bar.console.print(f"ready    {runtime}, after {seconds:.1f} s", highlight=False)

    def step(self, epoch: int, step: int, steps: int, loss: float) -> None:
        self.bar.update(self.task, completed=epoch * steps + step, epoch=epoch + 1, loss=f"{loss:.2f}")

    def epoch(self, epoch: int, loss: float, views_per_second: float) -> None:
        speed = f"{views_per_second:,.0f} views/s"
        self.bar.update(self.task, completed=epoch * self.steps, loss=f"{loss:.2f}", speed=speed)
        self.loss = loss

    def knn(self, epoch: int, accuracy: float) -> None:
        self.bar.update(self.task, knn=f"{accuracy:.1f}")
        after = f"epoch {epoch:>4}  loss {self.loss:7.3f}" if epoch else "untrained             "
        self.bar.console.print(f"{time.strftime('%H:%M:%S')}  {after}  kNN {accuracy:5.2f} %", highlight=False)

    loss = float("nan")


@contextlib.contextmanager
def stop_signals() -> Iterator[Callable[[], bool]]:
    """Ctrl-C (or a scheduler's SIGTERM) asks for a stop after the step under way; a second one stops at once."""
    asked = False

    def ask(signum: int, frame: object) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
