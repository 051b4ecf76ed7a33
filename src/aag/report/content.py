"""What a page says of the tables, whatever it is written in: each cell, the order of the rows, the sums."""

import re
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from aag.paper import PAPER, Cell, Figure, Result, Results, Table

CLOSE = 0.5  # percentage points below the paper that still count as reproduced

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
        """Ours less theirs, as shown: rounded as the eye would."""
        if self.state != "done" or self.cell.paper is None:
            return None
        return round(self.mean - self.cell.paper, 2) + 0.0  # + 0.0: no minus before a zero

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
    shorter = results.short(cell.config)
    for epochs in sorted({result.config.epochs for result in shorter}, reverse=True):
        measure, note = _scaled(cell.measure, epochs, cell.config.epochs)
        if measured := _measured([each for each in shorter if each.config.epochs == epochs], measure):
            return Shown(cell, "short", *_unzip(measured), stale, note)
    if found:
        return Shown(cell, "unmeasured", tuple(found), stale=stale, note=f"recorded without {cell.measure}")
    return Shown(cell, "missing", stale=stale)


def _measured(results: Iterable[Result], measure: str) -> list[tuple[Result, float]]:
    return [(each, value) for each in results if (value := each.measure(measure)) is not None]


def _unzip(measured: list[tuple[Result, float]]) -> tuple[tuple[Result, ...], tuple[float, ...]]:
    return tuple(result for result, _ in measured), tuple(value for _, value in measured)


def _scaled(measure: str, epochs: int, of: int) -> tuple[str, str]:
    """The measure that a short version has in its place, and what to say of it."""
    kind, _, at = measure.partition("@")
    if not at:
        return measure, f"{epochs} of {of} epochs"
    place = round(int(at) * epochs / of)
    return f"{kind}@{place}", f"epoch {place} of {epochs}, not {at} of {of}"


@dataclass(frozen=True)
class ShownTable:
    table: Table
    rows: tuple[tuple[Shown, ...], ...]

    @cached_property
    def cells(self) -> list[Shown]:
        return [shown for row in self.rows for shown in row]

    @property
    def wanted(self) -> list[Shown]:
        """What can be run."""
        return [shown for shown in self.cells if shown.cell.config]

    def where(self, state: str) -> list[Shown]:
        return [shown for shown in self.cells if shown.state == state]

    @property
    def below(self) -> list[Shown]:
        return [shown for shown in self.where("done") if not shown.close]

    @property
    def close(self) -> list[Shown]:
        return [shown for shown in self.cells if shown.close]

    @property
    def close_words(self) -> str:
        """How many cells are reproduced, and which where that is a short list."""
        names = [shown.name if len(self.table.columns) > 1 else shown.cell.row for shown in self.close]
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
        return text

    @property
    def order(self) -> str:
        """Whether the rows of each column stand in the paper's order, where both are run. Empty: nothing to compare."""
        same, turned = 0, []
        for column in zip(*self.rows, strict=True):
            done = [shown for shown in column if shown.difference is not None]
            for a, b in combinations(done, 2):
                high, low = (a, b) if _paper(a) > _paper(b) else (b, a)
                if _paper(a) == _paper(b):
                    continue
                if high.mean > low.mean:
                    same += 1
                else:
                    turned.append(f"{low.cell.row} {low.mean:.2f} ≥ {high.cell.row} {high.mean:.2f} ({a.cell.column})")
        pairs = same + len(turned)
        if not pairs:
            return ""
        if not turned:
            return "The rows that were run stand in the paper's order."
        return f"Of {pairs} pairs of rows with both cells run, {same} stand in the paper's order. Not so: " + (
            "; ".join(turned) + "."
        )


def _paper(shown: Shown) -> float:
    assert shown.cell.paper is not None
    return shown.cell.paper


def show_tables(results: Results) -> list[ShownTable]:
    return [
        ShownTable(table, tuple(tuple(show(cell, results) for cell in row) for row in table.rows)) for table in tables()
    ]


def tables() -> list[Table]:
    return [part for part in PAPER.values() if isinstance(part, Table)]


def figures() -> list[Figure]:
    return [part for part in PAPER.values() if isinstance(part, Figure)]


def label(part: Table | Figure) -> str:
    """table1 → Table 1"""
    return re.sub(r"^(\w)(\D*)(\d+)$", lambda found: f"{found[1].upper()}{found[2]} {found[3]}", part.id)


def summary(shown: list[ShownTable]) -> str:
    """One line for the whole paper, and for its own method's cells."""

    def told(cells: Iterable[Shown]) -> str:
        wanted = [each for each in cells if each.cell.config]
        done = [each for each in wanted if each.state == "done"]
        close = sum(each.close for each in done)
        return f"{len(done)} of {len(wanted)} run, {close} within {CLOSE} of the paper or above"

    every = [each for table in shown for each in table.cells]
    own = [each for each in every if each.cell.config and each.cell.config.method == "aag"]
    return f"Cells: {told(every)}. Of AAG's own: {told(own)}."


def open_points(shown: list[ShownTable]) -> Iterator[tuple[str, str]]:
    """What could not be reproduced, and why: (what, why), each once."""
    for one in shown:
        for row in one.rows:
            if row[0].state == "elsewhere":
                yield f"{label(one.table)}, {row[0].cell.row}", row[0].cell.elsewhere
    yield "Figure 1", "a drawing of the framework; real views of real images stand in its place"
    yield (
        "Figures 2 to 6",
        "the paper gives their curves as drawings, without numbers: ours are set beside what it says one sees",
    )
