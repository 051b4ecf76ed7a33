"""In words: how runs are trained, by their settings; how numbers were measured, and on what, by the records."""

import re
from collections.abc import Callable, Iterable
from typing import Any

from aag.config import TrainConfig
from aag.paper import Result
from aag.text import duration, join_or

OPTIMIZERS = {"sgd": "SGD", "lars": "LARS", "adam": "Adam"}
Row = tuple[Result | None, dict[str, Any]]  # a protocol, and the record that has it
ASIDE = ("data", "train", "test", "dimensions", "precision", "seed", "augmentation", "vote", "name", "image_size")


def training(configs: Iterable[TrainConfig]) -> list[str]:
    """How runs are trained: of each method, what its runs have in common or differ in."""
    by_method: dict[str, list[TrainConfig]] = {}
    for config in configs:
        by_method.setdefault(config.method, []).append(config)
    return [f"Training (method {method}): {', '.join(_settings(alike))}." for method, alike in by_method.items()]


def _settings(configs: list[TrainConfig]) -> list[str]:
    def each(told: Callable[[TrainConfig], Any]) -> str:
        return join_or(map(str, map(told, configs)))

    rounds = each(lambda config: f" in {config.rounds} rounds" * (config.rounds > 1))
    optimizer = each(lambda config: OPTIMIZERS[config.optimizer])
    return [
        f"{each(lambda config: config.epochs)} epochs{rounds}",
        f"batch {each(lambda config: config.batch_size)}",
        f"{optimizer} at {each(lambda config: f'{config.lr:g}')} for 128 images",
        f"{each(lambda config: config.schedule)} schedule",
        each(TrainConfig.loss_name),
        *([f"τ {each(lambda config: config.temperature)}"] if configs[0].tempered() else []),
        f"basic family {each(lambda config: config.basic)}",
    ]


def protocols(measures: Iterable[str], results: Iterable[Result]) -> list[str]:
    """For each measure, how the records took it, those named that did it otherwise than most; where none has, how it is
    going to be taken."""
    results = {result.path: result for result in results}.values()
    said = []
    for kind in dict.fromkeys(measure.partition("@")[0] for measure in measures):
        layer = "embedding" if kind == "knn" else "features"
        rows = [(one, row["protocol"]) for one in results for row in one.record["evaluation"]]
        alike: dict[tuple[tuple[str, str], ...], list[Row]] = {}
        for one, row in rows:
            if row["evaluation"] == kind and row.get("layer") == layer:
                key = tuple((name, str(value)) for name, value in sorted(row.items()) if name not in ASIDE)
                alike.setdefault(key, []).append((one, row))
        usual, *others = sorted(alike.values(), key=len, reverse=True) or [[(None, _planned(kind))]]
        said.append(_words(kind, usual))
        said += [f"{_words(kind, group)} So for {', '.join(one.name for one, _ in group if one)}." for group in others]
    return said


def projected(found: dict[str, Any]) -> str:
    """How a t-SNE was made."""
    names = ("dimensions", "layer", "images", "split", "metric", "perplexity", "initialisation", "seed")
    size, layer, images, split, metric, perplexity, start, seed = (found.get(name, "?") for name in names)
    return (
        f"t-SNE: of the {size}-d {layer}, {images} images ({split}), {metric} distance, perplexity {perplexity}, begun "
        f"by {start}, seed {seed}."
    )


def _planned(kind: str) -> dict[str, Any]:
    from aag.evaluate.knn import knn_protocol
    from aag.evaluate.linear import linear_protocol

    return knn_protocol() if kind == "knn" else linear_protocol()


def _words(kind: str, rows: list[Row]) -> str:
    """Of numbers that were taken alike. Their size may differ, by the methods or networks they are of."""
    row = rows[0][1]
    sizes: dict[int, list[str]] = {}
    for result, one in rows:
        if result and "dimensions" in one:
            of = result.config.method if kind == "knn" else result.config.network
            sizes.setdefault(one["dimensions"], []).append(of)
    usual, *others = sorted(sizes, key=lambda size: -len(sizes[size])) or [0]
    layer = f"{usual}-d {row.get('layer')}" if usual else str(row.get("layer"))
    if others:
        told = [f"{size}-d of {' and '.join(dict.fromkeys(sizes[size]))}" for size in others]
        layer += f" ({', '.join(told)})"
    if kind == "knn":
        return (
            f"kNN: weighted, k = {row.get('k')}, τ = {row.get('temperature')}, {row.get('metric')} similarity on the "
            f"{layer}, un-augmented training images as neighbours; the last epoch's unless an epoch is named."
        )
    return (
        f"Linear: one layer on the frozen {layer}, {str(row.get('optimizer')).capitalize()} at "
        f"{row.get('lr')}, {row.get('schedule')}, {row.get('epochs')} epochs, batch {row.get('batch_size')}, no "
        f"augmentation; {row.get('reported')}."
    )


def origin(result: Result) -> dict[str, str]:
    """A row of the list of records: where and with what a run was made. Of several sessions, all that differ."""
    sessions, seconds = result.record["sessions"], result.record["seconds"]

    def told(*names: str) -> str:
        return ", ".join(dict.fromkeys(str(one[name]) for one in sessions for name in names if one.get(name))) or "–"

    training = "–" if seconds is None else duration(seconds)
    gpus = dict.fromkeys(str(one.get("gpu") or one.get("cpu") or "–") for one in sessions)
    versions = [f"{name} {told(key)}" for name, key in (("torch", "torch"), ("CUDA", "cuda"), ("Python", "python"))]
    return {
        "made on": ", ".join(gpus),
        "training": training,
        "versions": ", ".join(text for text in versions if not text.endswith("–")) or "–",
        "commit": re.sub(r"\b([0-9a-f]{12})[0-9a-f]+", r"\1", told("commit")),
        "recorded": str(result.record.get("recorded", "–")),
    }
