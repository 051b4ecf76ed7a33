"""How far the paper is reproduced as a whole, and from which records."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from aag.paper.cells import CLOSE, FAR, CellResult, find_tables
from aag.paper.experiments import PAPER, Figure, Part
from aag.paper.findings import find_figure
from aag.paper.results import Result, Results


@dataclass(frozen=True)
class Point:
    """A line of a list: the tables or figures, what in them, and a text or a cell."""

    parts: tuple[Part, ...]
    name: str = ""
    text: str = ""
    cell: CellResult | None = None


class Summary:
    """All tables and figures with the records of a folder."""

    def __init__(self, folder: Path) -> None:
        self.results = Results(folder)
        self.tables = find_tables(self.results)
        self.figures = [find_figure(part, self.results) for part in PAPER.values() if isinstance(part, Figure)]

    @property
    def headline(self) -> str:
        """Count runs, each once however many tables show it, without those that cannot be compared."""
        runs: dict[str, list[CellResult]] = {}
        for table in self.tables:
            for one in table.comparable:
                assert one.cell.experiment
                runs.setdefault(one.cell.experiment.name, []).append(one)
        own = {name: cells for name, cells in runs.items() if _method(cells[0]) == "aag"}
        reasons = dict.fromkeys(one.cell.incomparable for table in self.tables for one in table.wanted)
        left_out = ", ".join(filter(None, reasons))
        excluded = f" Runs that cannot be compared are not counted ({left_out})." if left_out else ""
        return f"Runs: {_count(runs)}, in every table. AAG's own: {_count(own)}.{excluded}"

    @cached_property
    def used(self) -> list[Result]:
        """The records of which a number or a curve is shown, each once."""
        in_tables = (result for table in self.tables for result in table.results)
        in_figures = (result for figure in self.figures for result in figure.results)
        used = {result.path: result for result in (*in_tables, *in_figures)}
        return sorted(used.values(), key=lambda result: result.path.name)

    @property
    def damaged(self) -> list[tuple[Path, str]]:
        return sorted(self.results.damaged.items())

    @property
    def warnings(self) -> list[str]:
        """What the user should know, one line each."""
        folder = self.results.folder
        if not folder.is_dir():
            return [f"there is no folder {folder}: the page shows only the paper's numbers"]
        if not self.results.all and not self.damaged:
            return [f"there is no record in {folder}: the page shows only the paper's numbers"]
        return [f"skipped {path}: {why}" for path, why in self.damaged]

    def lists(self) -> dict[str, list[Point]]:
        """Return what is reproduced and what is not, by heading."""

        def cells(name: str) -> list[Point]:
            return [Point((one.table,), cell.name, cell=cell) for one in self.tables for cell in getattr(one, name)]

        drawn = tuple(each.figure for each in self.figures if each.results and not each.missing)
        return {
            f"Within {CLOSE} points of the paper, or above": [
                Point((one.table,), text=one.describe_close()) for one in self.tables if one.close
            ],
            f"More than {FAR:g} points above the paper: the setups probably differ": cells("far_above"),
            f"More than {CLOSE} points below the paper": cells("below"),
            "Run, but not comparable with the paper": cells("incomparable"),
            "Drawn from our runs": [Point(drawn, text="compare ours with the paper's words below")] if drawn else [],
            "Not run yet": [
                *(Point((one.table,), text=text) for one in self.tables if (text := one.describe_open())),
                *(Point((one.figure,), text="; ".join(one.missing)) for one in self.figures if one.missing),
            ],
            "Not run here, and why": list(self._list_elsewhere()),
        }

    def _list_elsewhere(self) -> Iterator[Point]:
        for one in self.tables:
            for row in one.rows:
                if row[0].state == "elsewhere":
                    yield Point((one.table,), row[0].cell.row, row[0].cell.elsewhere)
        for found in self.figures:
            if found.figure.kind == "views":
                yield Point((found.figure,), text="a drawing of the framework; we show views of real images")


def _method(one: CellResult) -> str:
    assert one.cell.experiment
    return one.cell.experiment.settings.method


def _count(runs: dict[str, list[CellResult]]) -> str:
    done = [cells for cells in runs.values() if all(one.state == "done" for one in cells)]
    close = sum(all(one.is_close for one in cells) for cells in done)
    return f"{len(done)} of {len(runs)} done, {close} of these within {CLOSE} points of the paper or above it"
