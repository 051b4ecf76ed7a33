"""The cost of the methods: a step of each compared with the plainest one, and the work that some do between epochs.

Targets on an H200: a view of Instance takes at most 1.5 times as long as one of ISIF; k-means of CIFAR's features takes
less than 3 seconds; AND's neighbour search in its bank takes less than one.
"""

from collections.abc import Callable
from typing import Any

from aag.bench.evaluation import make_clusters
from aag.bench.plan import Plan
from aag.bench.timing import measure, timed_row
from aag.bench.training import TimedTraining, measure_case
from aag.cluster import kmeans, whiten
from aag.methods import Method
from aag.methods.bank import Bank


def run(plan: Plan) -> dict[str, Any]:
    names = ("method", "recipe", "network", "width", "batch_size", "loss", "optimizer", "bn_group_size")
    rows = [measure_case(plan, case, names, lambda timed: _numbers(plan, timed)) for case in plan.methods]
    compare(rows)
    return {
        **plan.methods[0].options("network", "width", "batch_size"),
        "data": plan.data,
        "images": plan.training_images,
        "repeats": plan.methods_repeats,
        "protocol": (
            "end to end: order, views and steps as in training, without what a method does between epochs; ÷ plain: "
            "time per view divided by that of the first row, a method with two views and no memory; keeps: the "
            "method's own buffers and parameters; memory: peak reserved by PyTorch's allocator minus the images' bytes"
        ),
        "rows": rows,
        "between_epochs": _between_epochs(plan),
    }


def _numbers(plan: Plan, timed: TimedTraining) -> dict[str, Any]:
    end_to_end = timed.end_to_end(plan.methods_seconds, repeats=plan.methods_repeats, warm_up=plan.warm_up)
    timed.check_finite()
    return {"views": timed.views, **end_to_end, "keeps_bytes": kept_bytes(timed.trainer.method), **timed.costs()}


def compare(rows: list[dict[str, Any]]) -> None:
    """Add the time per view divided by the first row's."""
    plain = rows[0].get("views_per_second")
    for row in rows:
        if plain and "views_per_second" in row:
            row["view_over_plain"] = plain["per_second"] / row["views_per_second"]["per_second"]


def kept_bytes(method: Method) -> int:
    """Return the bytes of a method's own state, which comes on top of the trained encoder."""
    return sum(value.nbytes for value in (*method.parameters(), *method.buffers()))


def _between_epochs(plan: Plan) -> list[dict[str, Any]]:
    clustered, _ = make_clusters(*plan.kmeans[:2], plan.device)
    whitened, _ = make_clusters(*plan.whitening[:2], plan.device)
    bank = Bank(*plan.bank).to(plan.device)
    k, dims = plan.kmeans[2], plan.whitening[2]

    def row(name: str, size: tuple[int, ...], work: Callable[[], object]) -> dict[str, Any]:
        timing = measure(work, repeats=plan.methods_repeats, warm_up=plan.warm_up, device=plan.device)
        return timed_row(name, f"{size[0]:,} × {size[1]:,}", timing, size[0], "rows")

    return [
        row(f"k-means, k = {k:,}, 20 iterations", plan.kmeans, lambda: kmeans(clustered, k, iterations=20)),
        row(f"PCA-whitening to {dims}", plan.whitening, lambda: whiten(whitened, dims)),
        row("neighbours and entropies of a memory bank", plan.bank, lambda: bank.find_neighbours(0.1)),
    ]
