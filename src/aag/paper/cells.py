"""Our number for each cell of a table, and summaries of a table: counts, differences, the order of its rows."""

import re
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import combinations

from aag.paper.experiments import PAPER, Cell, Experiment, Part, Table, shorten_measure
from aag.paper.protocol import describe_protocols, describe_training
from aag.paper.results import Result, Results, StaleRecord

CLOSE_POINTS = 0.5  # percentage points below the paper that still count as reproduced
FAR_POINTS = 3.0  # points above the paper from which on the setups probably differ
MAX_NAMED_CELLS = 6  # longest list of cells that is written out

QUOTED_MARK = "†"  # the paper took the number from earlier work
ELSEWHERE_MARK = "‡"  # the number is from elsewhere: shown for comparison, not run here


class CellState(StrEnum):
    """What we have for a cell. The values are also styles of page.css."""

    EMPTY = "empty"  # the paper leaves it empty
    ELSEWHERE = "elsewhere"  # the number is from elsewhere, and is not run here
    DONE = "done"  # measured by full runs
    SHORT = "short"  # measured by short versions only
    UNMEASURED = "unmeasured"  # run, but recorded without this measure
    MISSING = "missing"  # not run yet


@dataclass(frozen=True)
class CellResult:
    """A cell with our numbers. Only those of a cell that is DONE can be compared with the paper's."""

    cell: Cell
    state: CellState
    results: tuple[Result, ...] = ()
    values: tuple[float, ...] = ()  # one per result
    stale: tuple[StaleRecord, ...] = ()
    note: str = ""  # the length of a short version, or what a record lacks

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def range(self) -> str:
        """The range over several seeds. Empty: there is one."""
        low, high, n = min(self.values), max(self.values), len(self.values)
        return f"{low:.2f}–{high:.2f}, n = {n}" if n > 1 else ""

    @property
    def ours(self) -> str:
        return f"{self.mean:.2f}" + (f" ({self.range})" if self.range else "")

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's, both as they are shown."""
        if self.state is not CellState.DONE or self.cell.paper is None:
            return None
        return round(round(self.mean, 2) - self.cell.paper, 2) + 0.0  # + 0.0: no minus before a zero

    @property
    def is_comparable(self) -> bool:
        """Whether it counts: the paper's own cell, with a run, in the paper's setup."""
        return self.cell.experiment is not None and not self.cell.added and not self.cell.incomparable

    @property
    def is_close(self) -> bool:
        return self.is_comparable and self.difference is not None and self.difference >= -CLOSE_POINTS

    @property
    def name(self) -> str:
        return f"{self.cell.row}, {self.cell.column}"

    @property
    def paper(self) -> str:
        """The paper's number, with its mark."""
        if self.cell.paper is None:
            return "–"
        return f"{self.cell.paper:.1f}{ELSEWHERE_MARK if self.cell.elsewhere else QUOTED_MARK * self.cell.quoted}"


def find_cell(cell: Cell, results: Results) -> CellResult:
    """Look up our number for a cell; of a short version only if there is no full run."""
    if cell.experiment is None:
        return CellResult(cell, CellState.ELSEWHERE if cell.elsewhere else CellState.EMPTY)
    stale = tuple(results.stale_records(cell.experiment))
    found = results.all_seeds(cell.experiment)
    if measured := _measure(found, cell.measure):
        used, values = zip(*measured, strict=True)
        return CellResult(cell, CellState.DONE, used, values, stale)
    for group in results.short_versions(cell.experiment):
        epochs = group[0].epochs
        measure = shorten_measure(cell.measure, epochs, group[0].options["rounds"], cell.experiment)
        if measured := _measure(group, measure):
            used, values = zip(*measured, strict=True)
            return CellResult(cell, CellState.SHORT, used, values, stale, _describe_short(measure, epochs, cell))
    if found:
        return CellResult(
            cell, CellState.UNMEASURED, tuple(found), stale=stale, note=f"recorded without {cell.measure}"
        )
    return CellResult(cell, CellState.MISSING, stale=stale)


def find_measure(experiment: Experiment, measure: str, results: Results) -> CellResult:
    """Look up our number for a run that is in no table."""
    return find_cell(Cell("", "", None, measure, experiment), results)


def _measure(results: Iterable[Result], measure: str) -> list[tuple[Result, float]]:
    return [(result, value) for result in results if (value := result.measure(measure)) is not None]


def _describe_short(measure: str, epochs: int, cell: Cell) -> str:
    assert cell.experiment is not None
    epoch, wanted = (each.partition("@")[2] for each in (measure, cell.measure))
    full = cell.experiment.settings.train.epochs
    return f"epoch {epoch} of {epochs}, not {wanted} of {full}" if epoch else f"{epochs} of {full} epochs"


@dataclass(frozen=True)
class TableResult:
    table: Table
    rows: tuple[tuple[CellResult, ...], ...]

    @cached_property
    def cells(self) -> list[CellResult]:
        return [cell for row in self.rows for cell in row]

    @cached_property
    def runnable_cells(self) -> list[CellResult]:
        """The paper's cells that can be run."""
        return [one for one in self.cells if one.cell.experiment and not one.cell.added]

    @property
    def comparable_cells(self) -> list[CellResult]:
        return [one for one in self.runnable_cells if one.is_comparable]

    @property
    def close_cells(self) -> list[CellResult]:
        return [one for one in self.comparable_cells if one.is_close]

    @property
    def cells_below(self) -> list[CellResult]:
        return [one for one in self.comparable_cells if one.state is CellState.DONE and not one.is_close]

    @property
    def cells_far_above(self) -> list[CellResult]:
        return [one for one in self.close_cells if (one.difference or 0) > FAR_POINTS]

    @property
    def incomparable_cells(self) -> list[CellResult]:
        return [one for one in self.runnable_cells if one.state is CellState.DONE and not one.is_comparable]

    @property
    def added_cells(self) -> list[CellResult]:
        """The cells that were run of the rows that we added."""
        return [one for one in self.cells if one.cell.added and one.state is CellState.DONE]

    def with_state(self, state: CellState) -> list[CellResult]:
        return [one for one in self.cells if one.state is state and not one.cell.added]

    @property
    def results(self) -> list[Result]:
        """The records used."""
        return [result for one in self.cells for result in one.results]

    @property
    def protocols(self) -> list[str]:
        """How its runs are trained and measured."""
        measures = dict.fromkeys(one.cell.measure for one in self.runnable_cells)
        return [*describe_training(self.table.experiments), *describe_protocols(measures, self.results)]

    def describe_close(self) -> str:
        names = [self._name(one) for one in self.close_cells]
        which = f" ({'; '.join(names)})" if len(names) <= MAX_NAMED_CELLS else ""
        return f"{len(names)} of {len(self.comparable_cells)} cells{which}"

    def describe_open(self) -> str:
        """Say which cells are not run: the paper's, and those of rows that we added. Empty: all are."""
        count = sum(one.state is not CellState.DONE for one in self.runnable_cells)
        added = [one.state for one in self.cells if one.cell.experiment and one.cell.added]
        left = len(added) - added.count(CellState.DONE)
        kinds = {
            "only in a short version": len(self.with_state(CellState.SHORT)),
            "recorded without this measure": len(self.with_state(CellState.UNMEASURED)),
            "with a stale record only": sum(bool(one.stale) for one in self.with_state(CellState.MISSING)),
        }
        details = "".join(f", {n} {kind}" for kind, n in kinds.items() if n)
        text = f"{count} of {len(self.runnable_cells)} cells{details}"
        ours = f"{left} of {len(added)} cells of the rows added by us"
        return "; ".join([text] * bool(count) + [ours] * bool(left))

    @property
    def tally(self) -> str:
        """Say how much was run, and how it went."""
        done = len(self.with_state(CellState.DONE))
        text = f"{done} of {len(self.runnable_cells)} cells run"
        if compared := [one for one in self.comparable_cells if one.state is CellState.DONE]:
            text += f"; {len(self.close_cells)} of {len(compared)} within {CLOSE_POINTS} of the paper, or above"
        if self.incomparable_cells:
            text += f"; {len(self.incomparable_cells)} not comparable"
        if short := len(self.with_state(CellState.SHORT)):
            text += f"; {short} only in a short version"
        return text

    @property
    def gains(self) -> str:
        """The table's own comparison, ours and the paper's. Empty: it makes none, or nothing of it was run."""
        parts = []
        for one in self.cells:
            base = self._find_base(one)
            if base and one.difference is not None and base.difference is not None:
                paper = format_signed(_paper(one) - _paper(base), 1)
                ours = format_signed(round(one.mean, 2) - round(base.mean, 2))  # as they are shown
                parts.append(f"{self._name(one)} {ours} ({paper})")
        return f"Against “{self.table.against}”, ours (the paper's): {'; '.join(parts)}." if parts else ""

    def _find_base(self, one: CellResult) -> CellResult | None:
        """Return what a cell is compared with: the one in the row or column that the table names."""
        against, cell = self.table.against, one.cell
        wanted = {(against, cell.column), (cell.row, against)} - {(cell.row, cell.column)}
        return next((each for each in self.cells if (each.cell.row, each.cell.column) in wanted), None)

    def _name(self, one: CellResult) -> str:
        return one.name if len(self.table.columns) > 1 else one.cell.row

    @property
    def sources(self) -> list[str]:
        """Where numbers come from that are not reproduced."""
        return sorted(
            {f"{ELSEWHERE_MARK} {one.cell.row}: {one.cell.elsewhere}." for one in self.with_state(CellState.ELSEWHERE)}
        )

    @property
    def order(self) -> str:
        """Say whether the rows of each column are in the paper's order. Empty: nothing to compare.

        kNN is not compared with linear evaluation.
        """
        same, reversed_pairs = 0, []
        columns = list(zip(*self.rows, strict=True))
        alike = " with the same measure" * any(len({each.cell.measure for each in column}) > 1 for column in columns)
        for column in columns:
            done = [one for one in column if one.difference is not None and not one.cell.added]
            for a, b in combinations(done, 2):
                if _paper(a) == _paper(b) or a.cell.measure != b.cell.measure:
                    continue
                high, low = (a, b) if _paper(a) > _paper(b) else (b, a)
                if high.mean > low.mean:
                    same += 1
                else:
                    pair = f"{low.cell.row} {low.mean:.2f} ≥ {high.cell.row} {high.mean:.2f}"
                    reversed_pairs.append(f"{pair} ({a.cell.column})")
        pairs = same + len(reversed_pairs)
        if not reversed_pairs:
            return f"All rows{alike} that were run are in the paper's order." if pairs else ""
        text = f"{same} of {pairs} pairs of rows{alike} are in the paper's order."
        return f"{text} Reversed: {'; '.join(reversed_pairs)}."


def format_signed(difference: float, digits: int = 2) -> str:
    return f"{difference:+.{digits}f}".replace("-", "−")


def _paper(one: CellResult) -> float:
    assert one.cell.paper is not None
    return one.cell.paper


def find_tables(results: Results) -> list[TableResult]:
    return [
        TableResult(table, tuple(tuple(find_cell(cell, results) for cell in row) for row in table.rows))
        for table in PAPER.values()
        if isinstance(table, Table)
    ]


def label(part: Part) -> str:
    """Return the title of a part: table1 → Table 1."""
    return re.sub(r"^(\w)(\D*)(\d+)$", lambda found: f"{found[1].upper()}{found[2]} {found[3]}", part.id)
