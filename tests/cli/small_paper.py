"""A paper of a few tiny runs, to test `aag reproduce` with."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from aag.config import TrainConfig, recipe_config
from commands import Ran, aag_

from aag.paper import PAPER, Cell, Figure, Table
from aag.paper.experiments import Series
from aag.training import Run

RESULTS, RUNS = Path("results"), Path("runs")


def config(data: object, **changes: Any) -> TrainConfig:
    small = {"width": 4, "epochs": 2, "batch_size": 48, "auxiliary": "none", "knn_every": 0}
    return replace(recipe_config("demo", str(data)), **small | changes)


def small_paper(data: object) -> dict[str, Table | Figure]:
    """Two rows of two cells, of which one is of a set that was not fetched; and the figures of one more run each."""
    ours, theirs = config(data), config(data, loss="nt-xent")
    rows = [("ours", ours, config(data, lr=0.3)), ("theirs", theirs, config("cifar10"))]
    cells = tuple(
        tuple(Cell(row, column, 50.0, "knn", cell) for column, cell in zip(("low", "high"), pair, strict=True))
        for row, *pair in rows
    )
    return {
        "table1": Table("table1", "Small", "Four runs. One of them fails.", ("low", "high"), cells),
        "figure1": Figure("figure1", "Steps", "Loss.", "steps", "It falls.", (Series("ours", ours),), ("loss",)),
        "figure2": Figure("figure2", "t-SNE", "Classes.", "tsne", "Apart.", (Series("theirs", theirs),)),
        "figure3": Figure("figure3", "Drawing", "Views.", "views", "Nothing.", ()),
    }


def installed(npz: Path) -> Iterator[dict[str, Table | Figure]]:
    """A fixture's body: the small paper in the place of the real one."""
    before = dict(PAPER)
    PAPER.clear()
    PAPER.update(small_paper(npz))
    yield PAPER
    PAPER.clear()
    PAPER.update(before)


def reproduce(*words: object) -> Ran:
    return aag_("reproduce", *words, *([] if "--plan" in words else ["--device", "cpu"]))


def counts(part: str, *words: object) -> list[int]:
    """runs, recorded, begun, stale, missing of a line of the listing."""
    (line,) = re.findall(rf"^{part} .*$", reproduce(*words).out, re.MULTILINE)
    return [int(number) for number in re.findall(r"(\d+)\*?(?= )", line)[1:6]]


def recorded() -> list[str]:
    return sorted(path.stem for path in RESULTS.glob("*.json"))


def starts(name: str) -> int:
    return sum(row["kind"] == "start" for row in Run(RUNS / name).metrics())
