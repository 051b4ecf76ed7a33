"""Curves of runs as charts: loss, kNN, learning rate and label-free health, from the metrics of one run or several."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from aag.pages.plots import Line, LineChart

Rows = Sequence[Mapping[str, Any]]


class Curve(NamedTuple):
    kind: str  # of the metrics' rows
    key: str
    title: str
    y_label: str
    about: str = ""
    scale: float = 1


CURVES = (
    Curve("epoch", "loss", "Training loss", "loss"),
    Curve("knn", "knn", "kNN accuracy", "accuracy in %", "Of labelled test images. It does not influence training."),
    Curve("health", "rank", "Effective rank", "RankMe", "Dimensions that the embeddings use. Near 1 is collapse."),
    Curve("health", "agreement", "Agreement of views", "images in %", "Images whose two views find each other.", 100),
    Curve("health", "alignment", "Alignment", "squared distance", "Of two views of an image. Lower is closer."),
    Curve("health", "uniformity", "Uniformity", "log potential", "Lower: spread more evenly over the sphere."),
    Curve("epoch", "lr", "Learning rate", "learning rate"),
)


def curve_points(rows: Rows, curve: Curve) -> list[tuple[float, float]]:
    """Return (epoch, scaled value) of a curve; rows with missing or infinite values are left out."""
    found = [(row["epoch"], row[curve.key]) for row in rows if row["kind"] == curve.kind and curve.key in row]
    return [(x, curve.scale * y) for x, y in found if _is_number(x) and _is_number(y)]


def make_charts(runs: Mapping[str, Rows]) -> list[LineChart]:
    """Return a chart for each curve that any of the named runs has."""
    charts = []
    for curve in CURVES:
        points = {name: curve_points(rows, curve) for name, rows in runs.items()}
        colours = {name: 1 if len(runs) == 1 else 2 + number % 10 for number, name in enumerate(runs)}
        lines = [
            Line(name if len(runs) > 1 else "", curve_of_run, colours[name])
            for name, curve_of_run in points.items()
            if curve_of_run
        ]
        if lines:
            charts.append(LineChart(curve.title, "epoch", curve.y_label, lines, about=curve.about, cut_start=False))
    return charts


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
