"""Our version of a figure: its charts, and a description of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from aag.pages.plots import Chart, Line, LineChart, Points, ScatterChart
from aag.paper.cells import CellResult, CellState, find_measure, label
from aag.paper.experiments import Experiment, Figure, Series
from aag.paper.protocol import describe_projection, describe_protocols, describe_training
from aag.paper.results import Result, Results

NAMES = {
    "knn": "kNN", "linear": "linear", "loss": "loss",
    "positive_gradient": "|∇s⁺|", "negative_gradient": "|∇s⁻|",
    "positive_similarity": "s⁺", "negative_similarity": "s⁻",
}  # fmt: skip
CONSTANT_VARIATION = 0.01  # a curve that varies by less than this fraction of its largest value counts as constant
MAX_POINTS = 2000  # of a scatter chart: more would make a page of megabytes


@dataclass(frozen=True)
class FigureResult:
    figure: Figure
    charts: tuple[Chart, ...] = ()
    findings: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()  # what was not run or not recorded
    results: tuple[Result, ...] = ()  # the records used
    projections: Mapping[Path, dict[str, Any]] = field(default_factory=dict)  # the t-SNE files used

    @property
    def protocols(self) -> list[str]:
        """How its runs are trained, measured and projected."""
        measures = [name for name in self.figure.curves if self.figure.kind == "sweep" or name == "knn"]
        projected = dict.fromkeys(map(describe_projection, self.projections.values()))
        return [*describe_training(self.figure.experiments), *describe_protocols(measures, self.results), *projected]

    @property
    def files(self) -> dict[str, Path]:
        """What it is drawn from, by name."""
        records = {result.name: result.path for result in self.results}
        return records | {f"tsne/{path.stem}": path for path in self.projections}


def find_figure(figure: Figure, results: Results) -> FigureResult:
    if figure.kind == "views":
        return FigureResult(figure)
    find = {"sweep": _find_sweep, "tsne": _find_projections, "steps": _find_curves, "epochs": _find_curves}[figure.kind]
    return find(figure, results)


@dataclass(frozen=True)
class _ChosenRecord:
    """The record that stands for a run of a figure."""

    series: Series
    number: int  # of the series in the figure, which decides the colour
    result: Result

    @cached_property
    def experiment(self) -> Experiment:
        """The run that the record is of: a short version where that is all there is."""
        options = {name: self.result.options[name] for name in ("epochs", "rounds", "seed")}
        return self.series.experiment.replace(**options)

    @property
    def is_short(self) -> bool:
        return self.result.epochs < self.series.experiment.settings.train.epochs

    @property
    def name(self) -> str:
        full = self.series.experiment.settings.train.epochs
        return self.series.name + f" ({self.result.epochs} of {full} epochs)" * self.is_short


def _choose(figure: Figure, results: Results) -> tuple[list[_ChosenRecord], list[str]]:
    """Choose one record for each run of a figure, the lowest seed's; else that of the longest short version."""
    chosen, missing = [], []
    for number, series in enumerate(figure.series):
        if found := results.all_seeds(series.experiment):
            chosen.append(_ChosenRecord(series, number, found[0]))
            continue
        why = _explain_missing(series, results)
        if short := results.short_versions(series.experiment):
            chosen.append(_ChosenRecord(series, number, short[0][0]))
            why += f", {short[0][0].epochs} of {series.experiment.settings.train.epochs} epochs"
        missing.append(f"{series.name}: {why}")
    return chosen, missing


def _explain_missing(series: Series, results: Results, *, count_short: bool = True) -> str:
    short = count_short and results.short_versions(series.experiment)
    stale = "".join(f" (a record is stale: {each})" for each in results.stale_records(series.experiment)[:1])
    return ("run only in a short version" if short else "not run yet") + stale


# --- curves -----------------------------------------------------------------------------------------------------------


def _find_curves(figure: Figure, results: Results) -> FigureResult:
    chosen, missing = _choose(figure, results)
    x_label = "epoch" if figure.kind == "epochs" else "step"
    charts, findings, used = [], [], {}
    lacking: dict[str, list[str]] = {}  # by names of runs: the curves that their records lack
    for curve in figure.curves:
        lines = []
        for one in chosen:
            if points := read_curve(one.result, curve):
                lines.append(Line(one.name, points, one.number, hollow=one.is_short))
                used[one.result.path] = one.result
        if absent := [one.name for one in chosen if one.name not in {line.name for line in lines}]:
            lacking.setdefault(" and ".join(absent), []).append(NAMES[curve])
        y_label = "kNN accuracy, %" if curve == "knn" else NAMES[curve]
        empty = "no such curve in the records" if chosen else "not run yet"
        charts.append(LineChart(f"{NAMES[curve]} by {x_label}", x_label, y_label, lines, empty=empty))
        if lines:
            findings.append(_describe_curves(curve, lines))
    missing += [f"{', '.join(curves)}: not in the record of {names}" for names, curves in lacking.items()]
    return FigureResult(figure, tuple(charts), tuple(findings), tuple(missing), tuple(used.values()))


def read_curve(result: Result, name: str) -> Points:
    """Return kNN or loss by epoch, other curves by step, gradients as absolute values. Empty: not recorded."""
    if name in ("knn", "loss"):
        return [(float(x), float(y)) for x, y in result.record.get(f"{name}_by_epoch", [])]
    curves = result.record.get("curves") or {}
    steps, values = (curves.get(each) or [] for each in ("step", name))
    size = abs if name.endswith("_gradient") else float
    return [(float(x), size(float(y))) for x, y in zip(steps, values, strict=False)]


def _describe_curves(curve: str, lines: Sequence[Line]) -> str:
    """Describe each line, then how the second compares with the first."""
    parts = [
        f"{line.name} {_describe_course(curve, [y for _, y in line.points])}{_describe_sign(curve, line)}"
        for line in lines
    ]
    # The two losses leave out different terms, so which is higher says nothing; nor for runs of different length.
    if len(lines) == 2 and curve != "loss" and len({line.points[-1][0] for line in lines}) == 1:
        before, after = (dict(line.points) for line in lines)
        both = [x for x in before if x in after and x > 0]
        above = sum(after[x] > before[x] for x in both)
        if both:
            parts.append(f"{lines[1].name} is above {lines[0].name} at {above} of {len(both)} points of training")
    return f"{_capitalize(NAMES[curve])}: {'; '.join(parts)}."


def _describe_course(curve: str, values: list[float]) -> str:
    if curve == "knn":
        return f"ends at {values[-1]:.2f}"
    largest = max(map(abs, values))
    varies = (max(values) - min(values)) / largest if largest else 0.0
    if curve != "loss" and varies < CONSTANT_VARIATION:
        return f"is constant at {values[0]:.3g} (it varies by {100 * varies:.1f} %)".replace("-", "−")
    way = "falls" if values[-1] < values[0] else "grows"
    text = f"{way} from {values[0]:.3g} to {values[-1]:.3g}"
    low, high = min(values), max(values)
    if low < min(values[0], values[-1]) - 0.05 * (high - low):
        text += f", with a minimum of {low:.3g} in between"
    if high > max(values[0], values[-1]) + 0.05 * (high - low):
        text += f", with a maximum of {high:.3g} in between"
    return text.replace("-", "−")


def _describe_sign(curve: str, line: Line) -> str:
    if curve != "loss":
        return ""
    below = [y < 0 for _, y in line.points]
    if not any(below):
        return " and never goes below zero"
    if not below[-1]:
        return f" and is below zero at {sum(below)} of {len(below)} points, not at the last"
    since = max((index for index, is_below in enumerate(below) if not is_below), default=-1) + 1
    return f" and is below zero from epoch {line.points[since][0]:g} on"


# --- sweeps -----------------------------------------------------------------------------------------------------------


def _find_sweep(figure: Figure, results: Results) -> FigureResult:
    by_epochs = figure.x == "epochs"
    others = _find_other_lengths(figure, results) if by_epochs else []
    lines: list[Line] = []
    findings: list[str] = []
    used: dict[Path, Result] = {}
    missing_names: dict[str, list[str]] = {}  # by reason
    for series in figure.series:
        if not results.all_seeds(series.experiment):
            # On an axis of epochs, a shorter run is a point of its own and stands for no other.
            reason = _explain_missing(series, results, count_short=not by_epochs)
            missing_names.setdefault(reason, []).append(series.name)
    for colour, measure in enumerate(figure.curves):
        full: dict[float, CellResult] = {}
        short: dict[str, dict[float, CellResult]] = {}
        for series in figure.series:
            assert series.x is not None
            found = find_measure(series.experiment, measure, results)
            if found.state is CellState.DONE:
                full[series.x] = found
            elif results.all_seeds(series.experiment):
                missing_names.setdefault(f"recorded without {NAMES[measure]}", []).append(series.name)
            elif found.state is CellState.SHORT and not by_epochs:
                short.setdefault(f"{NAMES[measure]}, {found.note}", {})[series.x] = found
        for experiment in others:
            found = find_measure(experiment, measure, results)
            if found.state is CellState.DONE:
                short.setdefault(f"{NAMES[measure]}, other lengths", {})[experiment.settings.train.epochs] = found
        for name, cells in {NAMES[measure]: full, **short}.items():
            if not cells:
                continue
            points = [(x, found.mean) for x, found in cells.items()]
            lines.append(Line(name, points, colour, hollow=cells is not full))
            listed = ", ".join(f"{found.ours} at {x:g}" for x, found in cells.items())
            findings.append(f"{_capitalize(name)}: {listed}.")
            if cells is full and len(full) > 1:
                findings.append(_describe_trend(figure, name, points))
            used |= {result.path: result for found in cells.values() for result in found.results}
    if len(figure.curves) == 2:
        findings += _compare_measures(figure, lines)
    missing = tuple(f"{figure.x} {', '.join(names)}: {why}" for why, names in missing_names.items())
    chart = LineChart(
        f"{label(figure)}: {figure.title}", figure.x, "accuracy, %", lines, log=figure.log, mark_points=True
    )
    return FigureResult(figure, (chart,), tuple(findings), missing, tuple(used.values()))


def _find_other_lengths(figure: Figure, results: Results) -> list[Experiment]:
    """Return recorded runs of other lengths for an axis of epochs, down to half of the figure's shortest run."""
    first = figure.series[0].experiment
    asked = {series.experiment.settings.train.epochs for series in figure.series}
    groups = [group for series in figure.series for group in results.short_versions(series.experiment)]
    found = {one.epochs for group in groups for one in group}
    return [first.replace(epochs=each) for each in sorted(found - asked) if each >= min(asked) / 2]


def _describe_trend(figure: Figure, name: str, points: Points) -> str:
    best, last = max(points, key=lambda point: (point[1], point[0])), points[-1]
    what = "number of epochs" if figure.x == "epochs" else figure.x
    text = f"The best {what} by {name} is {best[0]:g} ({best[1]:.2f}), of {len(points)} tried"
    text += ", the largest" if best == last else f"; {last[0]:g}, the largest, is lower by {best[1] - last[1]:.2f}"
    falls = [f"from {a[0]:g} to {b[0]:g}" for a, b in pairwise(points) if b[1] < a[1]]
    text += f". It falls {', '.join(falls)}" if falls else ". It never falls"
    return f"{text}. All lie within {best[1] - min(y for _, y in points):.2f}."


def _capitalize(name: str) -> str:
    """Capitalize the start of a sentence; symbols and kNN stay as they are."""
    return name[0].upper() + name[1:] if name.startswith(("linear", "loss")) else name


def _compare_measures(figure: Figure, lines: list[Line]) -> list[str]:
    """Say at how many points the second measure is above the first."""
    first, second = (
        next((dict(line.points) for line in lines if line.name == NAMES[name] and not line.hollow), {})
        for name in figure.curves
    )
    both = [x for x in first if x in second]
    above = [x for x in both if second[x] > first[x]]
    if not both:
        return []
    names = [NAMES[name] for name in figure.curves]
    return [f"{names[1].capitalize()} evaluation is above {names[0]} at {len(above)} of {len(both)} points."]


# --- t-SNE ------------------------------------------------------------------------------------------------------------


def _find_projections(figure: Figure, results: Results) -> FigureResult:
    chosen, missing = _choose(figure, results)
    charts = {each.name: ScatterChart(each.name, (), (), (), empty="no t-SNE recorded") for each in figure.series}
    findings, used, projections = [], [], {}
    for one in chosen:
        found = results.projection(one.experiment)
        if found is None:
            missing.append(f"{one.name}: no t-SNE of its embeddings is recorded")
            continue
        charts[one.series.name] = chart = _scatter_chart(one.name, found)
        findings.append(_describe_neighbours(chart, len(found["x"])))
        used.append(one.result)
        projections[results.projection_file(one.experiment)] = found
    return FigureResult(figure, tuple(charts.values()), tuple(findings), tuple(missing), tuple(used), projections)


def _scatter_chart(name: str, found: dict[str, Any]) -> ScatterChart:
    points = list(zip(map(float, found["x"]), map(float, found["y"]), strict=True))
    step = -(-len(points) // MAX_POINTS)
    return ScatterChart(name, points[::step], found["labels"][::step], found["classes"])


def _describe_neighbours(chart: ScatterChart, total: int) -> str:
    """Say how often near points share a class. In a t-SNE, near means near in the embedding; far means little."""
    points, labels = np.array(chart.points), np.array(chart.labels)
    if len(points) < 2:
        return f"{chart.title}: a single point."
    distances = ((points[:, None] - points) ** 2).sum(axis=2)
    np.fill_diagonal(distances, np.inf)
    share = 100 * (labels[distances.argmin(axis=1)] == labels).mean()
    rest = f" {total - len(points):,} more are not drawn." if total > len(points) else ""
    images = f"{share:.1f} % of {len(points):,} images"
    return f"{chart.title}: for {images}, the nearest in the picture has the same class.{rest}"
