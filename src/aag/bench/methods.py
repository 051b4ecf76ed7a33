"""What the rivals cost: a step of each beside the plain method of two views, and what some do between epochs.

The bars, on an H200: a view of Instance takes at most 1.5 times as long as one of the plain method; k-means of CIFAR's
features less than 3 seconds, and AND's survey of its bank less than one.
"""

from collections.abc import Callable
from typing import Any

from aag.bench.evaluation import clusters
from aag.bench.plan import Plan
from aag.bench.timing import measure
from aag.bench.training import Training, measured_row
from aag.cluster import kmeans, whiten
from aag.methods import Method
from aag.methods.bank import Bank

SETTINGS = ("method", "recipe", "network", "width", "batch_size", "loss", "optimizer", "norm_images")
ITERATIONS = 20  # of k-means, as DeepCluster has them


def run(plan: Plan) -> dict[str, Any]:
    rows = [measured_row(plan, config, SETTINGS, lambda training: _numbers(plan, training)) for config in plan.methods]
    compare(rows)
    return {
        **{name: getattr(plan.methods[0], name) for name in ("network", "width", "batch_size")},
        "data": plan.data,
        "images": plan.training_images,
        "repeats": plan.methods_repeats,
        "protocol": (
            "end to end: order, views and steps as the loop has them, without what a method does between epochs; "
            "÷ plain: time of a view over that of the first row, whose method has two views and no memory; keeps: "
            "the method's own buffers and parameters; memory: of PyTorch's allocator, peak reserved less the images' "
            "bytes"
        ),
        "rows": rows,
        "between_epochs": [_kmeans(plan), _whitening(plan), _survey(plan)],
    }


def _numbers(plan: Plan, training: Training) -> dict[str, Any]:
    timed = training.end_to_end(plan.methods_seconds, repeats=plan.methods_repeats, warm_up=plan.warm_up)
    training.check()
    return {
        "views": len(training.method.views),
        **timed,
        "keeps_bytes": kept_bytes(training.method),
        "peak_memory_besides_images": training.memory_besides_images(),
        "warm_up_seconds": training.warm_up_seconds,
        "compile_cache": training.compile_cache,
    }


def compare(rows: list[dict[str, Any]]) -> None:
    """Adds the time of a view over that of the first row."""
    plain = rows[0].get("views_per_second")
    for row in rows:
        if plain and "views_per_second" in row:
            row["view_over_plain"] = plain["per_second"] / row["views_per_second"]["per_second"]


def kept_bytes(method: Method) -> int:
    """What a method remembers besides the encoder that it trains."""
    return sum(value.nbytes for value in (*method.parameters(), *method.buffers()))


def _kmeans(plan: Plan) -> dict[str, Any]:
    count, width, k = plan.kmeans
    x, _ = clusters(count, width, plan.device)
    name = f"k-means, k = {k:,}, {ITERATIONS} iterations"
    return _timed(plan, name, (count, width), lambda: kmeans(x, k, iterations=ITERATIONS))


def _whitening(plan: Plan) -> dict[str, Any]:
    count, width, dims = plan.whitening
    x, _ = clusters(count, width, plan.device)
    return _timed(plan, f"PCA-whitening to {dims}", (count, width), lambda: whiten(x, dims))


def _survey(plan: Plan) -> dict[str, Any]:
    bank = Bank(*plan.bank).to(plan.device)
    return _timed(plan, "neighbours and entropies of a memory bank", plan.bank, lambda: bank.find_neighbours(0.1))


def _timed(plan: Plan, name: str, size: tuple[int, int], work: Callable[[], object]) -> dict[str, Any]:
    timing = measure(work, repeats=plan.methods_repeats, warm_up=plan.warm_up, device=plan.device)
    return {
        "name": name,
        "size": f"{size[0]:,} × {size[1]:,}",
        "median_seconds": timing.median,
        **timing.rate(size[0]),
        "of": "rows",
    }
