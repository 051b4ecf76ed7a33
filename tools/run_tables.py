"""Tables of training runs, ours beside those of papers: the README's results, and the methods' page."""

import sys
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from aag import methods, nets
from aag.bench.methods import kept_bytes
from aag.config import METHODS, recipe_config
from aag.paper import PAPER, Results, Table

ROOT = Path(__file__).parent.parent
IMAGES = 50_000  # CIFAR-10's, for training
NONE = "–"


class Theirs(NamedTuple):
    """A published number for CIFAR-10."""

    method: str
    accuracy: float
    measure: str = "kNN"
    note: str = ""
    settings: dict[str, Any] = {}  # what differs from our recipe  # noqa: RUF012
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


def all_records() -> list[dict[str, Any]]:
    found = Results(ROOT / "results")
    for path, why in found.damaged.items():
        print(f"warning: {path.name} is passed over: {why}", file=sys.stderr)
    return [result.record for result in found.all]


def results_table(records: list[dict[str, Any]] | None = None) -> str:
    """One row for each record of a training run."""
    rows = []
    records = all_records() if records is None else records
    for record in sorted(records, key=lambda record: (-record["settings"]["epochs"], -(record["knn"]["last"] or 0))):
        settings = record["settings"]
        told = [settings["data"], settings["network"], f"`{settings['recipe']}`"]
        if settings["method"] not in ("aag", settings["recipe"]):  # the demo of another method
            told.append(f"`--method {settings['method']}`")
        theirs = published(settings)
        rows.append([
            f"[{', '.join([*told, *options(differing(settings, 'network'))])}](results/{record['name']}.json)",
            settings["epochs"],
            f"**{record['knn']['last']:.2f}**" if record["knn"]["last"] else NONE,
            theirs.accuracy if theirs and theirs.measure == "kNN" and theirs.note != DEMO else NONE,
            linear(record),
            duration(record),
            f"{record['views_per_second']:,.0f}",
            settings["seed"],
        ])  # fmt: skip
    head = ["run", "epochs", "kNN", "paper", "linear", "training", "views a second", "seed"]
    return markdown(head, rows, left=len(head))


def methods_table(bench: dict[str, Any] | None, records: list[dict[str, Any]] | None = None) -> str:
    """Each method with its runs on CIFAR-10: ours, and those that only others have made.

    `bench` is the methods' section of a benchmark.
    """
    records = [r for r in (all_records() if records is None else records) if r["settings"]["data"] == "cifar10"]
    costs = {row["method"]: row.get("view_over_plain") for row in bench["rows"]} if bench else {}
    rows = []
    for method in METHODS:
        runs = _runs(method, [record for record in records if record["settings"]["method"] == method])
        cost = costs.get(method)
        about = [f"[`{method}`](#{method})", ABOUT[method][0], *_size(method), f"{cost:.2f} ×" if cost else NONE]
        rows += [[*(about if run is runs[0] else [""] * len(about)), *run] for run in runs]
    head = ["method", "idea", "views", "keeps", "time a view", "run", "kNN", "linear", "theirs"]
    return markdown(head, rows, left=2)


def _runs(method: str, records: list[dict[str, Any]]) -> list[list[str]]:
    """Cells from the run on, by published numbers, then the rest."""
    own = recipe_config("auto", "cifar10", method)
    found = []
    for theirs in (each for each in THEIRS if each.method == method):
        note = f" ({theirs.note})" if theirs.note else ""
        beside = f"{theirs.measure} {theirs.accuracy}{note}"
        same = [record for record in records if published(record["settings"]) == theirs]
        found += [_run(record, beside) for record in sorted(same, key=_order)]
        if not same:
            told = ", ".join([*options(theirs.settings), f"{own.epochs} epochs"])
            found.append([f"{told}: not run yet", NONE, NONE, beside])
    others = [record for record in records if published(record["settings"]) is None]
    return found + [_run(record, NONE) for record in sorted(others, key=_order)]


def _run(record: dict[str, Any], beside: str) -> list[str]:
    settings = record["settings"]
    told = [*options(differing(settings)), f"{settings['epochs']} epochs"]
    told += [f"seed {settings['seed']}"] * (settings["seed"] != 0)
    knn, probe = f"{record['knn']['last']:.2f}" if record["knn"]["last"] else NONE, linear(record)
    linked = [f"[{number}](../results/{record['name']}.json)" if number != NONE else NONE for number in (knn, probe)]
    return [f"{', '.join(told)}; {duration(record)}", *linked, beside]


def published(settings: dict[str, Any]) -> Theirs | None:
    """The number that a run with these settings is to be compared with."""
    if settings["data"] != "cifar10":
        return None
    own = recipe_config("auto", "cifar10", settings["method"])
    if any(settings[name] != getattr(own, name) for name in ("recipe", "network", "epochs")):
        return None
    changed = differing(settings)
    for theirs in THEIRS:
        held = {name: changed[name] for name in theirs.settings if name in changed} if theirs.open else changed
        if theirs.method == settings["method"] and held == theirs.settings:
            return theirs
    return None


def differing(settings: dict[str, Any], *told: str) -> dict[str, Any]:
    """What differs from the recipe, besides what a row tells anyway."""
    base = recipe_config(settings["recipe"], settings["data"], settings["method"]).identity()
    left_out = ("data", "epochs", "seed", *told)
    return {name: value for name, value in settings.items() if name not in left_out and value != base.get(name)}


def options(settings: dict[str, Any]) -> list[str]:
    """As one would type them."""
    return [f"`{_option(name.replace('_', '-'), value)}`" for name, value in settings.items()]


def _option(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name} {' '.join(map(str, value)) if isinstance(value, list) else value}"


def linear(record: dict[str, Any]) -> str:
    found = [result for result in record["evaluation"] if result["protocol"]["evaluation"] == "linear"]
    return f"{found[0]['accuracy']:.2f}" if found else NONE


def duration(record: dict[str, Any]) -> str:
    minutes, seconds = divmod(round(record["seconds"]), 60)
    session = record["sessions"][-1]
    return f"{minutes} min {seconds:02d} s on one {session['gpu'] or session['cpu']}"


def markdown(head: list[Any], rows: list[list[Any]], left: int = 1) -> str:
    """The first columns to the left, the others to the right."""
    lines = ["| " + " | ".join(map(str, line)) + " |" for line in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * left + "---:|" * (len(head) - left), *lines[1:]])


@cache
def _size(method: str) -> tuple[int, str]:
    """Its views, and what it keeps for CIFAR-10 besides the encoder that it trains."""
    config = recipe_config("auto", "cifar10", method)
    spec = nets.EncoderSpec(config.network, config.embedding, config.head, config.width)
    built = methods.build(methods.Setting(config, "cifar10", IMAGES, nets.build(spec)))
    kept = kept_bytes(built)
    return len(methods.families(config, "cifar10")), f"{kept / 1e6:.1f} MB: {ABOUT[method][1]}" if kept > 1000 else NONE


def _order(record: dict[str, Any]) -> tuple[Any, ...]:
    return -record["settings"]["epochs"], record["settings"]["seed"], record["name"]
