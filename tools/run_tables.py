"""Tables of training runs, ours next to published numbers: the README's results, and the page of the methods."""

import sys
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from aag import nets
from aag.bench.methods import kept_bytes
from aag.data.datasets import DATASETS
from aag.methods import MethodContext
from aag.pages.markdown import make_table
from aag.paper import PAPER, Experiment, Figure, Result, Results, Table, make_experiment
from aag.paper.cells import CellState, find_measure
from aag.paper.recorded import changed_options, recorded_experiments
from aag.race import RaceSettings, leaderboard
from aag.settings import to_json
from aag.text import duration
from aag.training import recipe_settings
from aag.training.commands import spell_options

ROOT = Path(__file__).parent.parent
NONE = "–"


class PublishedResult(NamedTuple):
    """A published number for CIFAR-10."""

    method: str
    accuracy: float
    measure: str = "kNN"
    note: str = ""
    settings: dict[str, Any] = {}  # options that differ from our recipe
    open: bool = False  # whether other options may differ as well, because the source does not give them


def paper(table: str, row: str, column: str = "CIFAR-10, ResNet-18") -> float:
    """Return the paper's number in this cell."""
    part = PAPER[table]
    assert isinstance(part, Table)
    (number,) = [cell.paper for cell in part.cells if (cell.row, cell.column) == (row, column)]
    assert number is not None
    return number


DEMO = "its authors' demo"  # MoCo's: the only numbers here that are not from AAG's paper
PUBLISHED_RESULTS = (
    PublishedResult("aag", paper("table1", "AAG")),
    PublishedResult("instance", paper("table1", "Instance")),
    PublishedResult("isif", paper("table1", "ISIF")),
    PublishedResult(
        "isif", paper("table5", "ISIF (kNN)", "GNT-Xent"), "kNN", "Table 5", {"loss": "gnt-xent"}, open=True,
    ),
    PublishedResult("simclr", paper("table1", "SimCLR")),
    PublishedResult(
        "simclr", paper("table5", "SimCLR, τ 0.5 (linear)", "GNT-Xent"),
        "linear", "Table 5", {"loss": "dcl"}, open=True,
    ),
    PublishedResult("moco", 82.6, note=DEMO),
    PublishedResult("moco", 85.3, note=DEMO, settings={"symmetric": True}),
    PublishedResult("and", paper("table1", "AND")),
    PublishedResult("super-and", paper("table2", "Super-AND (kNN)")),
    PublishedResult("deepcluster", paper("table1", "DeepCluster")),
    PublishedResult("amdim", paper("table6", "AMDIM, ResNet-50 (25 ×)", "CIFAR-10"), "linear", "a far larger network"),
)  # fmt: skip
ABOUT = {  # its idea, and what the bytes of its state are
    "aag": ("two basic views and an auxiliary one; GNT-Xent, whose gradient on the positive is constant", ""),
    "aag-nn": ("`aag`, with an image's nearest neighbour as one more auxiliary view later in training", "bank"),
    "aag-mix": ("`aag`, with one more view that is a mixture of two images", ""),
    "aag-relational": ("`aag`, whose views also learn the similarities of a weak view to other images", "queue"),
    "aag-siam": (
        "no negatives: a network predicts, from each of `aag`'s views, the mean of the image's others",
        "predictor",
    ),
    "instance": ("each image is its own class, in a memory bank of all images", "bank"),
    "isif": ("each view is classified as its image's other view, among all views of the batch", ""),
    "simclr": ("as `isif`, with NT-Xent, an MLP head and large batches", ""),
    "moco": (
        "a view must match the key of the other view, among a queue of keys from a momentum encoder",
        "key encoder, queue",
    ),
    "and": (
        "`instance` in rounds; in each, more images have their nearest neighbour as a second positive",
        "bank, neighbours",
    ),
    "super-and": ("`and` on two views, with a branch for edges and two more losses", "bank, neighbours"),
    "deepcluster": ("k-means of the features in every epoch; the clusters are the classes", "clusters, classifier"),
    "amdim": ("feature maps of one view predict those of the other, at three scales", ""),
}
README_RECIPES = ("paper", "simclr")


def read_results() -> Results:
    found = Results(ROOT / "results")
    for path, why in found.damaged.items():
        print(f"warning: skipped {path.name}: {why}", file=sys.stderr)
    return found


# --- the README's results ---------------------------------------------------------------------------------------------


def results_table(results: Results | None = None) -> str:
    """Return the main results: the recipes of README_RECIPES with ResNet-18, at their own length or Table 2's.

    A row per data set, over all seeds. The page of the reproduction has all others.
    """
    results = results or read_results()
    tables = [table for name in ("table1", "table2") if isinstance(table := PAPER[name], Table)]
    cells = [cell for table in tables for cell in table.cells if cell.measure == "knn"]
    numbers = {cell.experiment.name: cell.paper for cell in cells if cell.experiment}
    seedless = [experiment.replace(seed=0) for _, experiment in recorded_experiments(results)]
    rows = []
    for name, experiment in {each.name: each for each in seedless}.items():
        data, network, method = (experiment.options[name] for name in ("data", "network", "method"))
        epochs, base = experiment.settings.train.epochs, recipe_settings(experiment.recipe, data, method).train.epochs
        is_main = network == "resnet18" and experiment.recipe in README_RECIPES
        if not is_main or (epochs != base and name not in numbers) or changed_options(experiment):
            continue
        runs = results.all_seeds(experiment)
        knn, linear = (find_measure(experiment, measure, results) for measure in ("knn", "linear"))
        row = [
            data,
            network,
            f"`{experiment.recipe}`",
            epochs,
            f"**{knn.ours}**" if knn.state is CellState.DONE else NONE,
            numbers.get(name) or NONE,
            linear.ours if linear.state is CellState.DONE else NONE,
            training(runs[0]),
            f"{speed:,.0f}" if (speed := runs[0].record.get("views_per_second")) else NONE,
            ", ".join(f"[{run.seed}](results/{run.path.name})" for run in runs),
        ]
        rows.append(((data, -max(knn.values, default=0)), row))
    head = ["data", "network", "recipe", "epochs", "kNN", "paper", "linear", "training", "views/s", "seeds"]
    return make_table(head, [row for _, row in sorted(rows, key=lambda each: each[0])], left=3)


# --- the race ---------------------------------------------------------------------------------------------------------

PUBLISHED_TIMES = [  # of others, by other protocols: entry, time, accuracy, seeds, machine
    (
        "[SimCLR, 500 epochs, batch 512](https://github.com/dkobak/simclr-cifar10) by Dmitry Kobak; kNN with k = 10 on "
        "the features",
        "1 h 39 min", "90.3 ± 0.3", NONE, "NVIDIA A100",
    ),
]  # fmt: skip


def race_table(results: Results | None = None) -> str:
    """Return the leaderboard of CIFAR-10 with ResNet-18, the fastest first; published times of others follow."""
    rows = []
    race = recipe_settings("paper", "cifar10")
    for place, entry in enumerate(leaderboard(results or read_results(), RaceSettings.target, race), 1):
        row, links = entry.row(), [f"[{run.seed}](results/{run.path.name})" for run in entry.results]
        provisional = " (provisional)" if entry.is_provisional else ""
        accuracy = f"{row['kNN']:.2f}" + (f" ({row['range']})" if row["range"] else "")
        name = f"`aag race {row['entry']}`{provisional}"
        rows.append([place, name, duration(entry.seconds), accuracy, ", ".join(links), entry.machine])
    rows += [["", *published] for published in PUBLISHED_TIMES]
    return make_table(["", "entry", "training", "kNN", "seeds", "machine"], rows, left=2)


# --- the page of the methods ------------------------------------------------------------------------------------------


def methods_table(bench: dict[str, Any] | None) -> str:
    """Return what each method is and costs. `bench` is the methods' section of a benchmark."""
    costs = {row["method"]: row.get("view_over_plain") for row in bench["rows"]} if bench else {}
    rows = [
        [_link(method), idea, *_size(method), f"{cost:.2f} ×" if (cost := costs.get(method)) else NONE]
        for method, (idea, _) in ABOUT.items()
    ]
    return make_table(["method", "idea", "views", "state", "time per view"], rows, left=2)


def method_runs_table(results: Results | None = None) -> str:
    """Return the runs of each method on CIFAR-10: ours, and those that only others have made."""
    recorded = recorded_experiments(results or read_results())
    runs = [(result, experiment) for result, experiment in recorded if result.options["data"] == "cifar10"]
    rows = []
    for method in ABOUT:
        mine = _method_rows(method, [(result, each) for result, each in runs if each.settings.method == method])
        rows += [[_link(method), *row] for row in mine]
    return make_table(["method", "run", "training", "kNN", "linear", "published"], rows, left=3)


def _link(method: str) -> str:
    return f"[`{method}`](#{method})"


def _method_rows(method: str, runs: list[tuple[Result, Experiment]]) -> list[list[str]]:
    """Return the cells from "run" on: first by published numbers, then runs that the paper does not have."""
    runs = sorted(runs, key=lambda run: (-run[0].epochs, run[0].seed, run[0].name))
    rows = []
    for theirs in (each for each in PUBLISHED_RESULTS if each.method == method):
        note = f" ({theirs.note})" if theirs.note else ""
        number = f"{theirs.measure} {theirs.accuracy}{note}"
        same = [run for run in runs if published(run[1]) == theirs]
        rows += [_run_row(*run, number) for run in same]
        if not same:
            epochs = make_experiment("cifar10", method=method).settings.train.epochs
            rows.append([", ".join([*typed(theirs.settings), f"{epochs} epochs"]), "not run yet", NONE, NONE, number])
    cells = [cell for part in PAPER.values() if isinstance(part, Table) for cell in part.cells]
    in_paper = {cell.experiment.name for cell in cells if cell.experiment and not cell.added}
    in_paper |= {each.name for part in PAPER.values() if isinstance(part, Figure) for each in part.experiments}
    others = [run for run in runs if published(run[1]) is None and run[1].replace(seed=0).name not in in_paper]
    rows += [_run_row(*run, NONE) for run in others]
    return rows or [[NONE, "not run yet", NONE, NONE, NONE]]


def _run_row(result: Result, experiment: Experiment, number: str) -> list[str]:
    texts = [*typed(changed_options(experiment)), f"{result.epochs} epochs"]
    texts += [f"seed {result.seed}"] * (result.seed != 0)
    values = [result.measure(measure) for measure in ("knn", "linear")]
    links = [f"[{value:.2f}](../results/{result.path.name})" if value is not None else NONE for value in values]
    return [", ".join(texts), training(result), *links, number]


def published(experiment: Experiment) -> PublishedResult | None:
    """Return the number that a run with these settings is to be compared with."""
    method = experiment.settings.method
    own = make_experiment("cifar10", method=method)
    fixed = ("data", "network", "epochs")
    if own.recipe != experiment.recipe or any(experiment.options[name] != own.options[name] for name in fixed):
        return None
    changed = changed_options(experiment)
    for theirs in PUBLISHED_RESULTS:
        held = {name: changed[name] for name in theirs.settings if name in changed} if theirs.open else changed
        if theirs.method == method and held == theirs.settings:
            return theirs
    return None


def typed(options: dict[str, Any]) -> list[str]:
    return [f"`{' '.join(words)}`" for words in spell_options(options)]


def training(result: Result) -> str:
    return f"{duration(result.seconds)} on one {result.machine}" if result.seconds else NONE


@cache
def _size(method: str) -> tuple[int, str]:
    """Return its views, and the state that it has for CIFAR-10 besides the encoder."""
    settings = make_experiment("cifar10", method=method).settings.resolve()
    built = settings.method_type(settings.method_settings)
    encoder = nets.build(nets.EncoderSpec(**to_json(settings.encoder)))
    built.setup(MethodContext(encoder, DATASETS["cifar10"].train, settings.train))
    size = kept_bytes(built)
    return len(built.augmentations()), f"{size / 1e6:.1f} MB: {ABOUT[method][1]}" if size > 1000 else NONE
