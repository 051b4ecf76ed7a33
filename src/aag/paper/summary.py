"""A summary of the whole reproduction: its headline, the records it uses, and warnings."""

from functools import cached_property
from pathlib import Path

from aag.paper.cells import CLOSE_POINTS, CellResult, CellState, find_tables
from aag.paper.experiments import PAPER, Figure
from aag.paper.findings import find_figure
from aag.paper.results import Result, Results


class Summary:
    """All tables and figures with the records of a folder."""

    def __init__(self, folder: Path) -> None:
        self.results = Results(folder)
        self.tables = find_tables(self.results)
        self.figures = [find_figure(part, self.results) for part in PAPER.values() if isinstance(part, Figure)]

    @property
    def headline(self) -> str:
        """Count runs, each once however many tables show it, without those that cannot be compared."""
        runs: dict[tuple[str, str], list[CellResult]] = {}
        for one in (one for table in self.tables for one in table.comparable_cells):
            assert one.cell.experiment
            runs.setdefault((one.cell.experiment.settings.method, one.cell.experiment.name), []).append(one)
        aag_runs = [cells for (method, _), cells in runs.items() if method == "aag"]
        reasons = dict.fromkeys(one.cell.incomparable for table in self.tables for one in table.runnable_cells)
        left_out = ", ".join(filter(None, reasons))
        excluded = f" Runs that cannot be compared are not counted ({left_out})." if left_out else ""
        every, own = _count([*runs.values()]), _count(aag_runs)
        return f"Runs: {every}, in every table that shows them. AAG's own: {own}.{excluded}"

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


def _count(runs: list[list[CellResult]]) -> str:
    done = [cells for cells in runs if all(one.state is CellState.DONE for one in cells)]
    close = sum(all(one.is_close for one in cells) for cells in done)
    return f"{len(done)} of {len(runs)} done, {close} of these within {CLOSE_POINTS} points of the paper or above it"
