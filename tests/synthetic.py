"""Records made up for the tests, as training and evaluation write them: every kind of cell that a page can show."""

import json
import math
from pathlib import Path
from typing import Any

from aag.evaluate.knn import knn_protocol
from aag.evaluate.linear import linear_protocol
from aag.paper import Experiment, make_experiment

PAPER = make_experiment("cifar10")
CURVES = ("positive_gradient", "negative_gradient", "positive_similarity", "negative_similarity")


def settings_of(run: Experiment, **options: Any) -> dict[str, Any]:
    """The settings of a run's record."""
    return run.replace(**options).settings.resolve("bf16").to_json()


def record(run: Experiment, knn: float = 88.0, linear: float | None = 89.0, **changes: Any) -> dict[str, Any]:
    """A record of a run; without `linear`, of one without linear evaluation."""
    last, floor = run.settings.train.epochs, 3 if run.options.get("loss") == "nt-xent" else -5
    marks = sorted({*range(0, last + 1, max(1, last // 20)), last})
    evaluation = [{"name": "kNN", "accuracy": knn, "protocol": knn_protocol() | {"dimensions": 128, "data": "cifar10"}}]
    if linear is not None:
        protocol = linear_protocol() | {"dimensions": 512}
        evaluation.append({"name": "linear", "accuracy": linear, "protocol": protocol})
    return {
        "name": run.name,
        "recorded": "2026-01-02",
        "settings": settings_of(run),
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
    found["positive_gradient"] = [-10 * each for each in share]  # below zero: it pulls
    found["negative_gradient"] = [0.039 * each for each in share]
    found["positive_similarity"] = [(0.7 if falling else 0.8) - 0.3 * math.exp(-i / 20) for i in range(points)]
    found["negative_similarity"] = [0.3 * math.exp(-i / (10 + 5 * falling)) for i in range(points)]
    return found


def write(folder: Path, made: dict[str, Any], file: str | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{file or made['name']}.json"
    path.write_text(json.dumps(made))
    return path


def write_projection(folder: Path, run: Experiment, points: int = 600, apart: float = 30.0) -> None:
    """Ten classes on a circle; the larger `apart`, the clearer they are separated."""
    labels = [i % 10 for i in range(points)]
    turn = [2 * math.pi * label / 10 for label in labels]
    x = [apart * math.cos(a) + 9 * math.sin(7.0 * i) for i, a in enumerate(turn)]
    y = [apart * math.sin(a) + 9 * math.cos(5.3 * i) for i, a in enumerate(turn)]
    classes = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    found = {"settings": settings_of(run), "x": x, "y": y, "labels": labels, "classes": classes}
    made = {"dimensions": 128, "layer": "embedding", "images": points, "split": "test", "metric": "cosine"}
    made |= {"perplexity": 30.0, "initialisation": "pca", "seed": 0}
    write(folder / "tsne", {"name": run.name, **found, **made})


def every_kind(folder: Path) -> Path:
    """A results folder with several seeds, short, stale, unmeasured, damaged and hostile records, and all figures."""
    nt = PAPER.replace(loss="nt-xent")
    for seed, knn in enumerate((88.9, 88.7, 89.0)):
        write(folder, record(PAPER.replace(seed=seed), knn, 89.8, curves=curves(falling=False)))
    write(folder, record(nt, 86.5, 87.9, curves=curves(falling=True)))
    write(folder, record(PAPER.replace(auxiliary="none"), 84.0))  # more than 0.5 below
    write(folder, record(PAPER.replace(auxiliary="basic"), 86.7))  # a little below
    write(folder, record(PAPER.replace(schedule="step", epochs=20), 70.0))  # a short version
    stale = PAPER.replace(auxiliary="randaugment")
    write(folder, record(stale, 11.11, settings=settings_of(stale, momentum=0.5)))  # its name says 0.9
    # Without the linear evaluation that Table 5 asks for.
    write(folder, record(make_experiment("cifar10", method="simclr", batch_size=128), 80.0, None))
    write(folder, record(make_experiment("cifar100", network="alexnet"), 39.7))
    for epochs, knn in ((400, 90.0), (600, 90.6), (800, 90.9), (1000, 91.3), (100, 86.8)):
        write(folder, record(PAPER.replace(epochs=epochs), knn, knn + 0.7))
    for batch, knn in ((32, 85.0), (64, 87.9), (256, 88.0), (512, 86.1)):
        write(folder, record(PAPER.replace(batch_size=batch), knn))
    write(folder, record(PAPER.replace(batch_size=1024, epochs=20), 61.0))
    write_projection(folder, PAPER, apart=60)
    write_projection(folder, nt, apart=4)  # classes overlap
    hostile = record(make_experiment("cifar10", method="instance"), 80.0)
    hostile["sessions"] = [{"gpu": "<script>alert(1)</script>", "commit": 'a|b`c` & "d"'}]
    write(folder, hostile)
    (folder / "damaged.json").write_text('{"name": "dam')
    isif = make_experiment("cifar10", method="isif")
    write(folder, record(isif) | {"knn": {"last": "<b>99</b>"}}, "no-<number>")
    write(folder, record(isif, float("nan")), "not-a-number")
    return folder
