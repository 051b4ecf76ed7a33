"""What a page says on the whole, whatever it is written in: how far the paper is reproduced, and from which records."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from aag.paper import PAPER, Figure, Result, Results, Table
from aag.report.cells import CLOSE, FAR, Shown, show_tables
from aag.report.findings import find_in
from aag.text import pluralize

WORDS = (
    "A short version has fewer epochs than the cell asks for and is not compared. A stale record is of settings that "
    "its recipe no longer has; its number is not shown. What follows “We add” is ours, not the paper's."
)


@dataclass(frozen=True)
class Point:
    """A line of a list: of which tables or figures, of what in them, and what there is to say, or the cell to show."""

    of: tuple[Table | Figure, ...]
    name: str = ""
    text: str = ""
    cell: Shown | None = None


class Content:
    """All that both pages are written from."""

    def __init__(self, folder: Path) -> None:
        self.results = Results(folder)
        self.tables = show_tables(self.results)
        self.figures = [find_in(part, self.results) for part in PAPER.values() if isinstance(part, Figure)]

    @property
    def summary(self) -> str:
        """One line for the whole paper, and for its own method's cells."""
        every = [each for table in self.tables for each in table.wanted]
        runs = len({result.path for table in self.tables for one in table.where("done") for result in one.results})
        own = [each for each in every if each.cell.config and each.cell.config.method == "aag"]
        return f"Cells: {_run(every)}, from {pluralize(runs, 'run')}. Of AAG's own: {_run(own)}."

    @cached_property
    def used(self) -> list[Result]:
        """The records that a number or a curve is shown of, each once."""
        cells = (result for table in self.tables for result in table.results)
        drawn = (result for figure in self.figures for result in figure.results)
        return sorted({result.path: result for result in (*cells, *drawn)}.values(), key=lambda each: each.path.name)

    @property
    def damaged(self) -> list[tuple[Path, str]]:
        """Files that are passed over, and why."""
        return sorted(self.results.damaged.items())

    @property
    def warnings(self) -> list[str]:
        """What whoever asks for a page should hear of, in a line each."""
        folder = self.results.folder
        if not folder.is_dir():
            return [f"there is no folder {folder}: the page shows nothing of ours"]
        if not self.results.all and not self.damaged:
            return [f"there is no record in {folder}: the page shows nothing of ours"]
        return [f"{path} is passed over: {why}" for path, why in self.damaged]

    def state(self) -> dict[str, list[Point]]:
        """What is reproduced, and what is not: a list under each heading."""
        drawn = tuple(each.figure for each in self.figures if each.results and not each.missing)
        what = "whether they show what the paper says stands under each, ours beside its words"
        waiting = [Point((one.table,), text=one.open_words) for one in self.tables if one.open]
        return {
            f"Run, within {CLOSE} of the paper or above": [
                Point((one.table,), text=one.close_words) for one in self.tables if one.close
            ],
            f"Of these more than {FAR:g} above the paper: more than the method may differ": [
                Point((one.table,), shown.name, cell=shown) for one in self.tables for shown in one.far_above
            ],
            f"Run, and more than {CLOSE} below the paper": [
                Point((one.table,), shown.name, cell=shown) for one in self.tables for shown in one.below
            ],
            "Drawn from our runs": [Point(drawn, text=what)] if drawn else [],
            "Not run yet": [
                *waiting,
                *(Point((one.figure,), text="; ".join(one.missing)) for one in self.figures if one.missing),
            ],
            "Not run here, and why": list(self._not_ours()),
        }

    def _not_ours(self) -> Iterator[Point]:
        for one in self.tables:
            for row in one.rows:
                if row[0].state == "elsewhere":
                    yield Point((one.table,), row[0].cell.row, row[0].cell.elsewhere)
        for found in self.figures:
            if found.figure.kind == "views":
                yield Point((found.figure,), text="a drawing of the framework; views of real images stand in its place")


def _run(wanted: list[Shown]) -> str:
    done = [each for each in wanted if each.state == "done"]
    close = sum(each.close for each in done)
    return f"{len(done)} of {len(wanted)} run, {close} within {CLOSE} of the paper or above"
