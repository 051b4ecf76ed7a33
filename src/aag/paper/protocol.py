"""Describe how runs are trained, from their settings, and how numbers were measured and where, from the records."""

import re
from collections.abc import Callable, Iterable
from typing import Any

from aag.evaluate.knn import knn_protocol
from aag.evaluate.linear import linear_protocol
from aag.paper.experiments import Experiment
from aag.paper.results import Result
from aag.text import describe_loss, duration, join_or

OPTIMIZERS = {"sgd": "SGD", "lars": "LARS", "adam": "Adam"}
IGNORED_FIELDS = (
    "data",
    "train",
    "test",
    "dimensions",
    "precision",
    "seed",
    "augmentation",
    "vote",
    "name",
    "image_size",
)
Row = tuple[Result | None, dict[str, Any]]  # a protocol, and the record that has it


def describe_training(experiments: Iterable[Experiment]) -> list[str]:
    """Describe the training of each method: what its runs have in common or differ in."""
    by_method: dict[str, list[dict[str, Any]]] = {}
    for experiment in experiments:
        by_method.setdefault(experiment.settings.method, []).append(experiment.options)
    return [f"Training ({method}): {', '.join(_describe_settings(runs))}." for method, runs in by_method.items()]


def _describe_settings(runs: list[dict[str, Any]]) -> list[str]:
    def each(text: Callable[[dict[str, Any]], Any]) -> str:
        return join_or(map(str, map(text, runs)))

    groups = each(lambda run: f"groups of {run['bn_group_size']}" if run["bn_group_size"] else "all views of the batch")
    rounds = each(lambda run: f" in {run['rounds']} rounds" * (run["rounds"] > 1))
    return [
        f"{each(lambda run: run['epochs'])} epochs{rounds}",
        f"batch {each(lambda run: run['batch_size'])}",
        each(lambda run: f"{OPTIMIZERS[run['optimizer']]} at {run['lr']:g}") + " per 128 images",
        f"{each(lambda run: run['schedule'])} schedule",
        each(lambda run: describe_loss(run.get("loss"))),
        *([f"τ {each(lambda run: run['temperature'])}"] if "temperature" in runs[0] else []),
        "basic augmentation " + each(lambda run: f"“{run['basic']}”"),
        *([f"batch norm over {groups}"] if any(run["bn_group_size"] for run in runs) else []),
    ]


def describe_protocols(measures: Iterable[str], results: Iterable[Result]) -> list[str]:
    """Describe the protocol of each measure in the records, and deviations; without records, the planned protocol."""
    results = {result.path: result for result in results}.values()
    texts = []
    for kind in dict.fromkeys(measure.partition("@")[0] for measure in measures):
        layer = "embedding" if kind == "knn" else "features"
        rows = [(result, row["protocol"]) for result in results for row in result.record["evaluation"]]
        groups: dict[tuple[tuple[str, str], ...], list[Row]] = {}
        for result, row in rows:
            if row["evaluation"] == kind and row.get("layer") == layer:
                key = tuple((name, str(value)) for name, value in sorted(row.items()) if name not in IGNORED_FIELDS)
                groups.setdefault(key, []).append((result, row))
        planned = knn_protocol() if kind == "knn" else linear_protocol()
        usual, *others = sorted(groups.values(), key=len, reverse=True) or [[(None, planned)]]
        texts.append(_describe_protocol(kind, usual))
        for group in others:
            names = ", ".join(result.name for result, _ in group if result)
            texts.append(f"{_describe_protocol(kind, group)} Only for {names}.")
    return texts


def describe_projection(found: dict[str, Any]) -> str:
    names = ("dimensions", "layer", "images", "split", "metric", "perplexity", "initialisation", "seed")
    size, layer, images, split, metric, perplexity, start, seed = (found.get(name, "?") for name in names)
    return (
        f"t-SNE of the {size}-d {layer}: {images} images ({split}), {metric} distance, perplexity {perplexity}, "
        f"initialised by {start}, seed {seed}."
    )


def _describe_protocol(kind: str, rows: list[Row]) -> str:
    """Describe numbers that were taken alike. Their dimensions may differ, by method or network."""
    row = rows[0][1]
    sizes: dict[int, list[str]] = {}
    for result, one in rows:
        if result and "dimensions" in one:
            sizes.setdefault(one["dimensions"], []).append(result.options["method" if kind == "knn" else "network"])
    usual, *others = sorted(sizes, key=lambda size: -len(sizes[size])) or [0]
    layer = f"{usual}-d {row.get('layer')}" if usual else str(row.get("layer"))
    if others:
        texts = [f"{size}-d of {' and '.join(dict.fromkeys(sizes[size]))}" for size in others]
        layer += f" ({', '.join(texts)})"
    if kind == "knn":
        return (
            f"kNN: weighted, k = {row.get('k')}, τ = {row.get('temperature')}, {row.get('metric')} similarity of the "
            f"{layer}; neighbours are the training images without augmentation; last epoch unless an epoch is given."
        )
    return (
        f"Linear: one layer on the frozen {layer}, {str(row.get('optimizer')).capitalize()} at "
        f"{row.get('lr')}, {row.get('schedule')}, {row.get('epochs')} epochs, batch {row.get('batch_size')}, no "
        f"augmentation; {row.get('reported')}."
    )


def describe_origin(result: Result) -> dict[str, str]:
    """Return where and with what a run was made, by column; of several sessions, all that differ."""
    sessions, seconds = result.record["sessions"], result.seconds

    def join(name: str) -> str:
        return ", ".join(dict.fromkeys(str(session[name]) for session in sessions if session.get(name))) or "–"

    machines = dict.fromkeys(str(session.get("gpu") or session.get("cpu") or "–") for session in sessions)
    versions = [f"{name} {join(key)}" for name, key in (("torch", "torch"), ("CUDA", "cuda"), ("Python", "python"))]
    return {
        "machine": ", ".join(machines),
        "training": "–" if seconds is None else duration(seconds),
        "versions": ", ".join(text for text in versions if not text.endswith("–")) or "–",
        "commit": re.sub(r"\b([0-9a-f]{12})[0-9a-f]+", r"\1", join("commit")),
        "recorded": str(result.record.get("recorded", "–")),
    }
