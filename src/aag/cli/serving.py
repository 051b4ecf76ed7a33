"""What the commands that use an encoder share: options, and the progress of embedding."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from aag.serving.embedder import ProgressCall
from aag.text import pluralize


class _Speed(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.0f} images/s" if speed else "")


@contextmanager
def embedding_progress() -> Iterator[ProgressCall]:
    """Show a bar on stderr while images are embedded, where that is a terminal. stdout stays free for results."""
    console = Console(stderr=True, markup=False, emoji=False)
    columns = (
        TextColumn("embedding"),
        BarColumn(bar_width=24),
        TextColumn("{task.completed:,}/{task.total:,}"),
        _Speed(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = None

        def update(done: int, total: int) -> None:
            nonlocal task
            if task is None:  # images of an earlier call do not count for the speed
                task = bar.add_task("", total=total, completed=done)
            bar.update(task, completed=done)

        yield update


def describe_skipped(lines: list[str], file: object = None) -> str:
    """Return one line about the files that could not be read."""
    where = f"listed in {file}" if file else f"first: {lines[0]}"
    return f"{pluralize(len(lines), 'file')} skipped, {where}"
