"""What a page says of a table, whatever it is written in: each cell, the order of the rows, the sums."""

import re
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from aag.paper import PAPER, Cell, Figure, Result, Results, Table, in_short
from aag.report.protocol import protocols, training
from aag.text import pluralize

CLOSE = 0.5  # percentage points below the paper that still count as reproduced
FAR = 3.0  # above it, from which on something besides the method probably differs

NAMED = 6  # cells that a list still names one by one

QUOTED = "†"  # behind a number that the paper took from earlier work
ELSEWHERE = "‡"  # behind one that is shown for comparison only


@dataclass(frozen=True)
class Shown:
    """A cell with what there is of ours: only of a `done` one is the number the paper's to be compared with."""

    cell: Cell
    state: str  # empty, elsewhere, done, short, unmeasured or missing
    results: tuple[Result, ...] = ()
    values: tuple[float, ...] = ()  # one for each result
    stale: tuple[Result, ...] = ()
    note: str = ""  # what a short version is of, or what a record lacks

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def spread(self) -> float | None:
        """The standard deviation over seeds."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def difference(self) -> float | None:
        """Ours less theirs, both as they are shown."""
        if self.state != "done" or self.cell.paper is None:
            return None
        return round(round(self.mean, 2) - self.cell.paper, 2) + 0.0  # + 0.0: no minus before a zero

    @property
    def ours(self) -> str:
        """The mean, and ± the spread where there is one."""
        return f"{self.mean:.2f}" + (f" ± {self.spread:.2f}" if self.spread is not None else "")

    @property
    def seeds(self) -> str:
        return pluralize(len(self.values), "seed")

    @property
    def close(self) -> bool:
        return self.difference is not None and self.difference >= -CLOSE

    @property
    def name(self) -> str:
        return f"{self.cell.row}, {self.cell.column}"

    @property
    def paper(self) -> str:
        """The paper's number, with its mark."""
        if self.cell.paper is None:
            return "–"
        return f"{self.cell.paper:.1f}{ELSEWHERE if self.cell.elsewhere else QUOTED * self.cell.quoted}"


def show(cell: Cell, results: Results) -> Shown:
    if cell.config is None:
        return Shown(cell, "elsewhere" if cell.elsewhere else "empty")
    stale = tuple(results.stale(cell.config))
    found = results.of(cell.config)
    if measured := _measured(found, cell.measure):
        return Shown(cell, "done", *_unzip(measured), stale)
    for shorter in results.short(cell.config):
        measure = in_short(cell.measure, shorter[0].config, cell.config)
        if measured := _measured(shorter, measure):
            note = _short_words(measure, shorter[0].config.epochs, cell)
            return Shown(cell, "short", *_unzip(measured), stale, note)
    if found:
        return Shown(cell, "unmeasured", tuple(found), stale=stale, note=f"recorded without {cell.measure}")
    return Shown(cell, "missing", stale=stale)


def _measured(results: Iterable[Result], measure: str) -> list[tuple[Result, float]]:
    return [(each, value) for each in results if (value := each.measure(measure)) is not None]


def _unzip(measured: list[tuple[Result, float]]) -> tuple[tuple[Result, ...], tuple[float, ...]]:
    return tuple(result for result, _ in measured), tuple(value for _, value in measured)


def _short_words(measure: str, epochs: int, cell: Cell) -> str:
    assert cell.config is not None
    place, asked = (each.partition("@")[2] for each in (measure, cell.measure))
    of = cell.config.epochs
    return f"epoch {place} of {epochs}, not {asked} of {of}" if place else f"{epochs} of {of} epochs"


@dataclass(frozen=True)
class ShownTable:
    table: Table
    rows: tuple[tuple[Shown, ...], ...]

    @cached_property
    def cells(self) -> list[Shown]:
        return [shown for row in self.rows for shown in row]

    @cached_property
    def theirs(self) -> list[Shown]:
        """Those that the paper has: sums are of these."""
        return [shown for shown in self.cells if not shown.cell.added]

    @property
    def wanted(self) -> list[Shown]:
        """What can be run."""
        return [shown for shown in self.theirs if shown.cell.config]

    @property
    def measures(self) -> list[str]:
        return list(dict.fromkeys(shown.cell.measure for shown in self.wanted))

    @property
    def protocols(self) -> list[str]:
        """How its runs are trained and its numbers taken."""
        return [*training(self.table.configs), *protocols(self.measures, self.results)]

    @property
    def results(self) -> list[Result]:
        """The records used."""
        return [result for shown in self.cells for result in shown.results]

    @property
    def even(self) -> str:
        """How many seeds each cell has. Empty: it differs, and every cell says for itself; or there is none."""
        return evenly(self.cells)

    def where(self, state: str) -> list[Shown]:
        return [shown for shown in self.theirs if shown.state == state]

    @property
    def below(self) -> list[Shown]:
        return [shown for shown in self.where("done") if not shown.close]

    @property
    def far_above(self) -> list[Shown]:
        return [shown for shown in self.theirs if shown.difference is not None and shown.difference > FAR]

    @property
    def close(self) -> list[Shown]:
        return [shown for shown in self.theirs if shown.close]

    @property
    def close_words(self) -> str:
        """How many cells are reproduced, and which where that is a short list."""
        names = [self._name(shown) for shown in self.close]
        which = f" ({'; '.join(names)})" if len(names) <= NAMED else ""
        return f"{len(names)} of {len(self.wanted)} cells{which}"

    @property
    def open(self) -> list[Shown]:
        return [shown for shown in self.wanted if shown.state != "done"]

    @property
    def open_words(self) -> str:
        text = f"{len(self.open)} of {len(self.wanted)} cells"
        kinds = {
            "only in a short version": len(self.where("short")),
            "recorded without this measure": len(self.where("unmeasured")),
            "with a stale record only": sum(bool(shown.stale) for shown in self.where("missing")),
        }
        return text + "".join(f", {count} {kind}" for kind, count in kinds.items() if count)

    @property
    def tally(self) -> str:
        """In words: how much was run, and how it went."""
        done = len(self.where("done"))
        text = f"{done} of {len(self.wanted)} cells run"
        if done:
            text += f", {len(self.close)} of them within {CLOSE} of the paper or above"
        if short := len(self.where("short")):
            text += f"; {short} only in a short version"
        return text + (f"; {self.even}" if self.even else "")

    @property
    def gains(self) -> str:
        """The table's own comparison, beside the paper's. Empty: it makes none, or nothing of it was run."""
        told = []
        for shown in self.cells:
            base = self._base(shown)
            if base and shown.difference is not None and base.difference is not None:
                theirs = signed(_paper(shown) - _paper(base), 1)
                ours = signed(round(shown.mean, 2) - round(base.mean, 2))  # as they are shown
                told.append(f"{self._name(shown)} {ours} ({theirs})")
        return f"Against “{self.table.against}”, ours (the paper's): {'; '.join(told)}." if told else ""

    def _base(self, shown: Shown) -> Shown | None:
        """What a cell is compared with: the one beside it, in the row or column that the table names."""
        against, cell = self.table.against, shown.cell
        wanted = ((against, cell.column), (cell.row, against))
        return next((one for one in self.cells if one is not shown and (one.cell.row, one.cell.column) in wanted), None)

    def _name(self, shown: Shown) -> str:
        return shown.name if len(self.table.columns) > 1 else shown.cell.row

    @property
    def notes(self) -> list[str]:
        """Of rows that are not ours."""
        return sorted({f"{ELSEWHERE} {one.cell.row}: {one.cell.elsewhere}." for one in self.where("elsewhere")})

    @property
    def order(self) -> str:
        """Whether the rows of each column stand in the paper's order, of what is run. Empty: nothing to compare.

        kNN is not compared with linear evaluation.
        """
        same, turned = 0, []
        columns = list(zip(*self.rows, strict=True))
        alike = " of one measure" * any(len({each.cell.measure for each in column}) > 1 for column in columns)
        for column in columns:
            done = [shown for shown in column if shown.difference is not None and not shown.cell.added]
            for a, b in combinations(done, 2):
                if _paper(a) == _paper(b) or a.cell.measure != b.cell.measure:
                    continue
                high, low = (a, b) if _paper(a) > _paper(b) else (b, a)
                if high.mean > low.mean:
                    same += 1
                else:
                    turned.append(f"{low.cell.row} {low.mean:.2f} ≥ {high.cell.row} {high.mean:.2f} ({a.cell.column})")
        pairs = same + len(turned)
        if not pairs:
            return ""
        if not turned:
            return f"The rows{alike} that were run stand in the paper's order."
        told = f"Pairs of rows{alike} with both cells run: {same} of {pairs} stand in the paper's order."
        return f"{told} Not so: {'; '.join(turned)}."


def evenly(cells: Iterable[Shown]) -> str:
    """The number of seeds where all have the same, else nothing."""
    counts = [len(shown.values) for shown in cells if shown.values]
    return f"{pluralize(counts[0], 'seed')}{' each' * (len(counts) > 1)}" if len(set(counts)) == 1 else ""


def signed(difference: float, digits: int = 2) -> str:
    return f"{difference:+.{digits}f}".replace("-", "−")


def _paper(shown: Shown) -> float:
    assert shown.cell.paper is not None
    return shown.cell.paper


def show_tables(results: Results) -> list[ShownTable]:
    return [
        ShownTable(table, tuple(tuple(show(cell, results) for cell in row) for row in table.rows))
        for table in PAPER.values()
        if isinstance(table, Table)
    ]


def label(part: Table | Figure) -> str:
    """table1 → Table 1"""
    return re.sub(r"^(\w)(\D*)(\d+)$", lambda found: f"{found[1].upper()}{found[2]} {found[3]}", part.id)
