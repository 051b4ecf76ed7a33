"""Records made up for the tests, as training and evaluation write them: every kind of cell that a page can show."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from aag.config import TrainConfig, recipe_config

from aag.evaluate.knn import knn_protocol
from aag.evaluate.linear import linear_protocol

PAPER = recipe_config("paper", "cifar10")
CURVES = ("positive_gradient", "negative_gradient", "positive_similarity", "negative_similarity")


def record(config: TrainConfig, knn: float = 88.0, linear: float | None = 89.0, **changes: Any) -> dict[str, Any]:
    """Of a run and what was found of it; without `linear`, of one that was not evaluated so."""
    marks = sorted({*range(0, config.epochs + 1, max(1, config.epochs // 20)), config.epochs})
    last, floor = marks[-1], 3 if config.loss == "nt-xent" else -5
    evaluation = [{"name": "kNN", "accuracy": knn, "protocol": knn_protocol() | {"dimensions": 128, "data": "cifar10"}}]
    if linear is not None:
        protocol = linear_protocol() | {"dimensions": 512}
        evaluation.append({"name": "linear", "accuracy": linear, "protocol": protocol})
    return {
        "name": config.run_name(),
        "recorded": "2026-01-02",
        "settings": config.identity(),
        "knn": {"last": knn, "best": knn, "best_epoch": last, "reported": "last"},
        "evaluation": evaluation,
        "knn_by_epoch": [[e, round(knn * (1 - 0.4 * (1 - e / last) ** 2), 2)] for e in marks],
        "loss_by_epoch": [[e, round(floor + 12 * (1 - e / last), 3)] for e in marks if e],
        "seconds": 300.0,
        "views_per_second": 90_000.0,
        "sessions": [{"gpu": "NVIDIA H200", "cuda": "13.0", "python": "3.12.3", "torch": "2.11.0", "commit": "abc123"}],
    } | changes


def curves(falling: bool, points: int = 80) -> dict[str, list[float]]:
    """As the two losses have them: GNT-Xent's gradients are constant, NT-Xent's fall."""
    share = [math.exp(-4 * i / points) if falling else 1.0 for i in range(points)]
    found = {"step": [50.0 * (i + 1) for i in range(points)]}
    found["positive_gradient"] = [-10 * each for each in share]  # it pulls: below zero
    found["negative_gradient"] = [0.039 * each for each in share]
    found["positive_similarity"] = [(0.7 if falling else 0.8) - 0.3 * math.exp(-i / 20) for i in range(points)]
    found["negative_similarity"] = [0.3 * math.exp(-i / (10 + 5 * falling)) for i in range(points)]
    return found


def write(folder: Path, made: dict[str, Any], file: str | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{file or made['name']}.json"
    path.write_text(json.dumps(made))
    return path


def write_projection(folder: Path, config: TrainConfig, points: int = 600, apart: float = 30.0) -> None:
    """Ten classes on a circle; the larger `apart`, the clearer they stand so."""
    labels = [i % 10 for i in range(points)]
    turn = [2 * math.pi * label / 10 for label in labels]
    x = [apart * math.cos(a) + 9 * math.sin(7.0 * i) for i, a in enumerate(turn)]
    y = [apart * math.sin(a) + 9 * math.cos(5.3 * i) for i, a in enumerate(turn)]
    classes = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    found = {"settings": config.identity(), "x": x, "y": y, "labels": labels, "classes": classes}
    made = {"dimensions": 128, "layer": "embedding", "images": points, "split": "test", "metric": "cosine"}
    made |= {"perplexity": 30.0, "initialisation": "pca", "seed": 0}
    write(folder / "tsne", {"name": config.run_name(), **found, **made})


def every_kind(folder: Path) -> Path:
    """A results folder with several seeds, short, stale, unmeasured, damaged and hostile records, and all figures."""
    nt = replace(PAPER, loss="nt-xent")
    for seed, knn in enumerate((88.9, 88.7, 89.0)):
        write(folder, record(replace(PAPER, seed=seed), knn, 89.8, curves=curves(falling=False)))
    write(folder, record(nt, 86.5, 87.9, curves=curves(falling=True)))
    write(folder, record(replace(PAPER, auxiliary="none"), 84.0))  # more than 0.5 below
    write(folder, record(replace(PAPER, auxiliary="basic"), 86.7))  # a little below
    write(folder, record(replace(PAPER, schedule="step", epochs=20), 70.0))  # a short version
    stale = record(replace(PAPER, auxiliary="randaugment"), 11.11)
    write(folder, stale | {"settings": stale["settings"] | {"momentum": 0.5}})  # its name says nothing of momentum
    simclr = replace(recipe_config("auto", "cifar10", "simclr"), batch_size=128)
    write(folder, record(simclr, 80.0, None))  # without the linear evaluation that Table 5 asks for
    write(folder, record(replace(PAPER, data="cifar100", network="alexnet"), 39.7))
    for epochs, knn in ((400, 90.0), (600, 90.6), (800, 90.9), (1000, 91.3), (100, 86.8)):
        write(folder, record(replace(PAPER, epochs=epochs), knn, knn + 0.7))
    for batch, knn in ((32, 85.0), (64, 87.9), (256, 88.0), (512, 86.1)):
        write(folder, record(replace(PAPER, batch_size=batch), knn))
    write(folder, record(replace(PAPER, batch_size=1024, epochs=20), 61.0))
    write_projection(folder, PAPER, apart=60)
    write_projection(folder, nt, apart=4)  # one on the other
    hostile = record(recipe_config("auto", "cifar10", "instance"), 80.0)
    hostile["sessions"] = [{"gpu": "<script>alert(1)</script>", "commit": 'a|b`c` & "d"'}]
    write(folder, hostile)
    (folder / "damaged.json").write_text('{"name": "dam')
    write(folder, record(recipe_config("auto", "cifar10", "isif")) | {"knn": {"last": "<b>99</b>"}}, "no-<number>")
    write(folder, record(recipe_config("auto", "cifar10", "isif"), float("nan")), "not-a-number")
    return folder
