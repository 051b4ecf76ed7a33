"""A paper of a few tiny runs, to test `aag reproduce` with."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from commands import Ran, aag_

from aag.paper import PAPER, Cell, Experiment, Figure, Table, make_experiment
from aag.paper.experiments import Part, Series
from aag.runs import Run

RESULTS, RUNS = Path("results"), Path("runs")


def experiment(data: object, **changes: Any) -> Experiment:
    small = {"width": 4, "epochs": 2, "batch_size": 48, "auxiliary": "none"}
    return make_experiment(str(data), "demo", **small | changes)


def small_paper(data: object) -> dict[str, Part]:
    """Two rows of two cells, one of them on a data set that is not here; and figures of one more run each."""
    ours, theirs = experiment(data), experiment(data, loss="nt-xent")
    rows = [("ours", ours, experiment(data, lr=0.3)), ("theirs", theirs, experiment("cifar10"))]
    cells = tuple(
        tuple(Cell(row, column, 50.0, "knn", cell) for column, cell in zip(("low", "high"), pair, strict=True))
        for row, *pair in rows
    )
    return {
        "table1": Table("table1", "Small", "Four runs. One of them fails.", (), ("low", "high"), cells),
        "figure1": Figure("figure1", "Steps", "Loss.", (), "steps", "It falls.", (Series("ours", ours),), ("loss",)),
        "figure2": Figure("figure2", "t-SNE", "Classes.", (), "tsne", "Apart.", (Series("theirs", theirs),)),
        "figure3": Figure("figure3", "Drawing", "Views.", (), "views", "Nothing.", ()),
    }


def install(npz: Path) -> Iterator[dict[str, Part]]:
    """A fixture's body: the small paper in the place of the real one."""
    before = dict(PAPER)
    PAPER.clear()
    PAPER.update(small_paper(npz))
    yield PAPER
    PAPER.clear()
    PAPER.update(before)


def start_run(run: Experiment, **changes: Any) -> Run:
    """A run folder with the settings of a run, or with some changed."""
    made = Run(RUNS / run.name)
    made.folder.mkdir(parents=True)
    made.start(run.replace(**changes).settings.resolve("fp32").to_json(), run.name)
    return made


def reproduce(*words: object) -> Ran:
    return aag_("reproduce", *words, *([] if "--plan" in words else ["--device", "cpu"]))


def counts(part: str, *words: object) -> list[int]:
    """runs, recorded, started, stale, missing of a line of the listing."""
    (line,) = re.findall(rf"^{part} .*$", reproduce(*words).out, re.MULTILINE)
    return [int(number) for number in re.findall(r"(\d+)\*?(?= )", line)[1:6]]


def recorded() -> list[str]:
    return sorted(path.stem for path in RESULTS.glob("*.json"))


def starts(name: str) -> int:
    return sum(row["kind"] == "start" for row in Run(RUNS / name).metrics())
