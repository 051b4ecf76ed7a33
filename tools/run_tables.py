"""Tables of training runs, ours beside those of papers: the README's results, and the methods' page."""

import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from aag.config import METHODS, TrainConfig, recipe_config
from aag.report.cells import show
from aag.report.markdown import grid

from aag import methods, nets
from aag.bench.methods import kept_bytes
from aag.paper import PAPER, Cell, Result, Results, Table
from aag.paper.plan import options
from aag.paper.results import images_of
from aag.text import duration

ROOT = Path(__file__).parent.parent
NONE = "–"


class Theirs(NamedTuple):
    """A published number for CIFAR-10."""

    method: str
    accuracy: float
    measure: str = "kNN"
    note: str = ""
    settings: dict[str, Any] = {}  # what differs from our recipe
    open: bool = False  # whether other settings may differ as well, because their source says nothing of them


def paper(table: str, row: str, column: str = "CIFAR-10, ResNet-18") -> float:
    """What AAG's paper has in this cell."""
    part = PAPER[table]
    assert isinstance(part, Table)
    (number,) = [cell.paper for cell in part.cells if (cell.row, cell.column) == (row, column)]
    assert number is not None
    return number


DEMO = "its authors' demo"  # MoCo's: the one number here that is not from AAG's paper
THEIRS = (
    Theirs("aag", paper("table1", "AAG")),
    Theirs("instance", paper("table1", "Instance")),
    Theirs("isif", paper("table1", "ISIF")),
    Theirs("isif", paper("table5", "ISIF (kNN)", "GNT-Xent"), "kNN", "Table 5", {"loss": "gnt-xent"}, open=True),
    Theirs("simclr", paper("table1", "SimCLR")),
    Theirs(
        "simclr", paper("table5", "SimCLR, τ 0.5 (linear)", "GNT-Xent"),
        "linear", "Table 5", {"loss": "gnt-xent"}, open=True,
    ),
    Theirs("moco", 82.6, note=DEMO),
    Theirs("moco", 85.3, note=DEMO, settings={"symmetric": True}),
    Theirs("and", paper("table1", "AND")),
    Theirs("super-and", paper("table2", "Super-AND (kNN)")),
    Theirs("deepcluster", paper("table1", "DeepCluster")),
    Theirs("amdim", paper("table6", "AMDIM, ResNet-50 (25 ×)", "CIFAR-10"), "linear", "a far larger network"),
)  # fmt: skip
ABOUT = {  # its idea, and what the bytes are that it keeps
    "aag": ("two basic views and an auxiliary one; a pull that never fades", ""),
    "instance": ("each image is a class of its own, in a memory bank of all images", "bank"),
    "isif": ("a view is told from the rest of its batch by the other view", ""),
    "simclr": ("the same, with NT-Xent, an MLP head and large batches", ""),
    "moco": ("a view finds the other among a queue of keys, from a slower copy of the encoder", "key encoder, queue"),
    "and": ("`instance` in rounds; ever more images count a neighbour as themselves", "bank, neighbours"),
    "super-and": ("`and` on two views, with a branch for edges and two more losses", "bank, neighbours"),
    "deepcluster": ("k-means of the features, then the clusters as classes, every epoch", "clusters, classifier"),
    "amdim": ("feature maps of one view predict those of the other, at three scales", ""),
}


def all_results() -> Results:
    found = Results(ROOT / "results")
    for path, why in found.damaged.items():
        print(f"warning: {path.name} is passed over: {why}", file=sys.stderr)
    return found


def results_table(results: Results | None = None) -> str:
    """Each method by its own recipe, at its own length or Table 2's: a row for each set and network, over all seeds."""
    results = results or all_results()
    tables = [table for name in ("table1", "table2") if isinstance(table := PAPER[name], Table)]
    cells = [cell for table in tables for cell in table.cells if cell.measure == "knn"]
    numbers = {cell.config.run_name(): cell.paper for cell in cells if cell.config}
    rows = []
    for config in _seedless(current(results)):
        known = config.epochs == config.base().epochs or config.run_name() in numbers
        if not known or differing(config, "network"):
            continue
        runs = results.of(config)
        knn, probe = (show(Cell("", "", None, measure, config), results) for measure in ("knn", "linear"))
        demo_of = f", `--method {config.method}`" * (not config.by_recipe())
        row = [
            config.data,
            config.network,
            f"`{config.recipe}`{demo_of}",
            config.epochs,
            f"**{knn.ours}**" if knn.state == "done" else NONE,
            numbers.get(config.run_name()) or NONE,
            probe.ours if probe.state == "done" else NONE,
            training(runs[0]),
            f"{pace:,.0f}" if (pace := runs[0].record.get("views_per_second")) else NONE,
            ", ".join(f"[{run.config.seed}](results/{run.path.name})" for run in runs),
        ]
        rows.append(((config.data, config.network != "resnet18", config.network, -max(knn.values, default=0)), row))
    head = ["data", "network", "recipe", "epochs", "kNN", "paper", "linear", "training", "views a second", "seeds"]
    return grid(head, [row for _, row in sorted(rows, key=lambda each: each[0])], left=3)


def current(results: Results) -> list[Result]:
    """All but those of settings that are not known any more."""
    return [result for result in results.all if not result.strange]


def _seedless(results: list[Result]) -> list[TrainConfig]:
    """Their settings, each once, with seed 0."""
    configs = [replace(result.config, seed=0) for result in results]
    return list({config.run_name(): config for config in configs}.values())


def methods_table(bench: dict[str, Any] | None, results: Results | None = None) -> str:
    """Each method with its runs on CIFAR-10: ours, and those that only others have made.

    `bench` is the methods' section of a benchmark.
    """
    results = results or all_results()
    found = [result for result in current(results) if result.config.data == "cifar10"]
    costs = {row["method"]: row.get("view_over_plain") for row in bench["rows"]} if bench else {}
    rows = []
    for method in METHODS:
        runs = _runs(method, [result for result in found if result.config.method == method])
        cost = costs.get(method)
        about = [f"[`{method}`](#{method})", ABOUT[method][0], *_size(method), f"{cost:.2f} ×" if cost else NONE]
        rows += [[*(about if run is runs[0] else [""] * len(about)), *run] for run in runs]
    head = ["method", "idea", "views", "keeps", "time a view", "run", "kNN", "linear", "theirs"]
    return grid(head, rows, left=2)


def _runs(method: str, results: list[Result]) -> list[list[str]]:
    """Cells from the run on: by published numbers, then what no table or figure of the paper has."""
    own = recipe_config("auto", "cifar10", method)
    found = []
    for theirs in (each for each in THEIRS if each.method == method):
        note = f" ({theirs.note})" if theirs.note else ""
        beside = f"{theirs.measure} {theirs.accuracy}{note}"
        same = [result for result in results if published(result.config) == theirs]
        found += [_run(result, beside) for result in sorted(same, key=_order)]
        if not same:
            told = ", ".join([*typed(theirs.settings), f"{own.epochs} epochs"])
            found.append([f"{told}: not run yet", NONE, NONE, beside])
    in_paper = {config.run_name() for part in PAPER.values() for config in part.configs}
    others = [
        result
        for result in results
        if published(result.config) is None and replace(result.config, seed=0).run_name() not in in_paper
    ]
    return found + [_run(result, NONE) for result in sorted(others, key=_order)]


def _run(result: Result, beside: str) -> list[str]:
    config = result.config
    told = [*typed(differing(config)), f"{config.epochs} epochs"]
    told += [f"seed {config.seed}"] * (config.seed != 0)
    values = [result.measure(measure) for measure in ("knn", "linear")]
    url = f"../results/{result.path.name}"
    linked = [f"[{value:.2f}]({url})" if value is not None else NONE for value in values]
    return [f"{', '.join(told)}; {training(result)}", *linked, beside]


def published(config: TrainConfig) -> Theirs | None:
    """The number that a run with these settings is to be compared with."""
    own = recipe_config("auto", "cifar10", config.method)
    if any(getattr(config, name) != getattr(own, name) for name in ("data", "recipe", "network", "epochs")):
        return None
    changed = differing(config)
    for theirs in THEIRS:
        held = {name: changed[name] for name in theirs.settings if name in changed} if theirs.open else changed
        if theirs.method == config.method and held == theirs.settings:
            return theirs
    return None


def differing(config: TrainConfig, *told: str) -> dict[str, Any]:
    """What differs from the recipe, besides what a row tells anyway."""
    base, left_out = config.base().identity(), ("epochs", "seed", *told)
    return {name: value for name, value in config.identity().items() if name not in left_out and value != base[name]}


def typed(settings: dict[str, Any]) -> list[str]:
    return [f"`{' '.join(words)}`" for words in options(settings)]


def training(result: Result) -> str:
    if not result.record["seconds"]:
        return NONE
    return f"{duration(result.record['seconds'])} on one {result.gpu or result.record['sessions'][-1]['cpu']}"


@cache
def _size(method: str) -> tuple[int, str]:
    """Its views, and what it keeps for CIFAR-10 besides the encoder that it trains."""
    config = recipe_config("auto", "cifar10", method)
    spec = nets.EncoderSpec(config.network, config.embedding, config.head, config.width)
    built = methods.build(methods.Setting(config, images_of("cifar10"), nets.build(spec)))
    kept = kept_bytes(built)
    return len(methods.families(config)), f"{kept / 1e6:.1f} MB: {ABOUT[method][1]}" if kept > 1000 else NONE


def _order(result: Result) -> tuple[Any, ...]:
    return -result.config.epochs, result.config.seed, result.name
