"""What our runs show of a figure: their points, and in words what one sees in them."""

from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from aag.config import TrainConfig
from aag.paper import Cell, Figure, Result, Results
from aag.paper.experiments import Series
from aag.report.cells import Shown, evenly, show
from aag.report.protocol import projected, protocols, training

Points = list[tuple[float, float]]

NAMES = {
    "knn": "kNN", "linear": "linear", "loss": "loss",
    "positive_gradient": "|∇s⁺|", "negative_gradient": "|∇s⁻|",
    "positive_similarity": "s⁺", "negative_similarity": "s⁻",
}  # fmt: skip
CONSTANT = 0.01  # of its largest value: a curve that varies by less counts as constant
MOST = 2000  # points of a cloud: more would be a page of megabytes


@dataclass(frozen=True)
class Drawn:
    """A line of a chart."""

    name: str
    points: Points
    style: int  # place of its run or measure in the figure: colour and dashes
    hollow: bool = False  # of runs that are not the paper's: shorter ones
    told: tuple[str, ...] = ()  # each point in words, where it has any


@dataclass(frozen=True)
class Cloud:
    name: str
    points: Points
    labels: list[int]
    classes: list[str]
    made: str  # how
    file: Path  # which holds it
    left_out: int = 0  # points that were thinned away


@dataclass(frozen=True)
class Found:
    """What a figure is made of."""

    figure: Figure
    panels: dict[str, list[Drawn]] = field(default_factory=dict)  # a curve's name → its lines
    clouds: dict[str, Cloud] = field(default_factory=dict)  # the run's name, as its series has it → its points
    words: tuple[str, ...] = ()  # what ours shows
    missing: tuple[str, ...] = ()  # what was not run or not recorded
    results: tuple[Result, ...] = ()  # the records used
    run: bool = True  # whether any of its runs is recorded, whatever that record holds

    @property
    def protocols(self) -> list[str]:
        """How its runs were trained, its numbers taken and its points projected."""
        made = dict.fromkeys(cloud.made for cloud in self.clouds.values())
        return [*training(self.figure.configs), *protocols(self.measures, self.results), *made]

    @property
    def files(self) -> dict[str, Path]:
        """What it is drawn from, by name."""
        records = {result.name: result.path for result in self.results}
        return records | {f"tsne/{cloud.file.stem}": cloud.file for cloud in self.clouds.values()}

    @property
    def measures(self) -> list[str]:
        """What it shows of accuracy."""
        return [name for name in self.figure.curves if self.figure.kind == "sweep" or name == "knn"]

    @property
    def seeds(self) -> str:
        """Of how many seeds it is drawn. Empty: its points say so."""
        return "" if self.figure.kind == "sweep" else "one seed of each run, the lowest"


def find_in(figure: Figure, results: Results) -> Found:
    if figure.kind == "views":
        return Found(figure)
    find = {"sweep": _sweep, "tsne": _clouds, "steps": _curves, "epochs": _curves}[figure.kind]
    return find(figure, results)


def _clouds(figure: Figure, results: Results) -> Found:
    chosen, missing = _chosen(figure, results)
    clouds, used = {}, []
    for name, place, result in chosen:
        if found := results.projection(result.config):
            clouds[figure.series[place].config.run_name()] = _cloud(name, found, results.projection_file(result.config))
            used.append(result)
        else:
            missing.append(f"{name}: no t-SNE of its embeddings is recorded")
    words = tuple(map(_neighbours, clouds.values()))
    return Found(figure, {}, clouds, words, tuple(missing), tuple(used), bool(chosen))


def _curves(figure: Figure, results: Results) -> Found:
    chosen, missing = _chosen(figure, results)
    panels: dict[str, list[Drawn]] = {}
    lacking: dict[str, list[str]] = {}  # names of runs → the curves that their records do not have
    drawn = {}
    for curve in figure.curves:
        panels[curve] = []
        without = []
        for name, style, result in chosen:
            if points := curve_of(result, curve):
                short = result.config.epochs < figure.series[style].config.epochs
                panels[curve].append(Drawn(name, points, style, hollow=short))
                drawn[result.path] = result
            else:
                without.append(name)
        if without:
            lacking.setdefault(" and ".join(without), []).append(NAMES[curve])
    missing += [f"{', '.join(curves)}: not in the record of {names}" for names, curves in lacking.items()]
    said = tuple(_curve_words(curve, lines) for curve, lines in panels.items() if lines)
    return Found(figure, panels, {}, said, tuple(missing), tuple(drawn.values()), bool(chosen))


def _chosen(figure: Figure, results: Results) -> tuple[list[tuple[str, int, Result]], list[str]]:
    """For each run of the figure one record: the lowest seed's; of a short version, where that is all there is."""
    chosen, missing = [], []
    for style, series in enumerate(figure.series):
        if found := results.of(series.config):
            chosen.append((series.name, style, found[0]))
        elif short := results.short(series.config):
            longest = short[0][0]
            note = f"{longest.config.epochs} of {series.config.epochs} epochs"
            chosen.append((f"{series.name} ({note})", style, longest))
            missing.append(f"{series.name}: {_why_not(series, results)}, {note}")
        else:
            missing.append(f"{series.name}: {_why_not(series, results)}")
    return chosen, missing


def _why_not(series: Series, results: Results, *, shorter: bool = True) -> str:
    """What there is in the place of a whole run's record, a short version's if that counts."""
    text = "run only in a short version" if shorter and results.short(series.config) else "not run yet"
    stale = " (there is a stale record, of settings that its recipe no longer has)"
    return text + stale * bool(results.stale(series.config))


def curve_of(result: Result, name: str) -> Points:
    """kNN and loss by epoch, the others by step; of gradients the size. Empty: the record has none."""
    if name in ("knn", "loss"):
        return [(float(x), float(y)) for x, y in result.record.get(f"{name}_by_epoch", [])]
    curves = result.record.get("curves") or {}
    steps, values = (curves.get(each) or [] for each in ("step", name))
    size = abs if name.endswith("_gradient") else float  # ∇s⁺ is below zero: what falls in the paper is its size
    return [(float(x), size(float(y))) for x, y in zip(steps, values, strict=False)]


def _sweep(figure: Figure, results: Results) -> Found:
    by_epochs = figure.x == "epochs"
    others = _other_lengths(figure, results) if by_epochs else []
    panels: dict[str, list[Drawn]] = {"": []}
    words: list[str] = []
    used: list[Result] = []
    lacking: dict[str, list[str]] = {}
    for series in figure.series:
        if not results.of(series.config):
            # On an axis of epochs a shorter run has its own place, and stands for no other.
            lacking.setdefault(_why_not(series, results, shorter=not by_epochs), []).append(series.name)
    for style, measure in enumerate(figure.curves):
        full: dict[float, Shown] = {}
        short: dict[str, dict[float, Shown]] = {}
        for series in figure.series:
            assert series.x is not None
            shown = show(_cell_of(series.config, measure), results)
            if shown.state == "done":
                full[series.x] = shown
            elif results.of(series.config):
                lacking.setdefault(f"recorded without {NAMES[measure]}", []).append(series.name)
            elif shown.state == "short" and not by_epochs:
                short.setdefault(f"{NAMES[measure]}, {shown.note}", {})[series.x] = shown
        for config in others:
            shown = show(_cell_of(config, measure), results)
            if shown.state == "done":
                short.setdefault(f"{NAMES[measure]}, other lengths", {})[config.epochs] = shown
        for name, cells in {NAMES[measure]: full, **short}.items():
            if not cells:
                continue
            points = [(x, shown.mean) for x, shown in cells.items()]
            told = tuple(f"{shown.ours}, {shown.seeds}" for shown in cells.values())
            panels[""].append(Drawn(name, points, style, hollow=cells is not full, told=told))
            words.append(_listed(name, cells))
            if cells is full and len(full) > 1:
                words.append(_trend(figure, name, points))
            used += [result for shown in cells.values() for result in shown.results]
    if len(figure.curves) == 2:
        words += _above(figure, panels[""])
    once = {result.path: result for result in used}
    missing = tuple(f"{figure.x} {', '.join(names)}: {why}" for why, names in lacking.items())
    return Found(figure, panels, {}, tuple(words), missing, tuple(once.values()))


def _other_lengths(figure: Figure, results: Results) -> list[TrainConfig]:
    """That have a place on an axis of epochs, though the figure does not ask for them: not below half its shortest."""
    asked = {series.config.epochs for series in figure.series}
    found = {one.config.epochs for series in figure.series for alike in results.short(series.config) for one in alike}
    return [replace(figure.series[0].config, epochs=each) for each in sorted(found - asked) if each >= min(asked) / 2]


def _cell_of(config: TrainConfig, measure: str) -> Cell:
    return Cell("", "", None, measure, config)


def _listed(name: str, cells: dict[float, Shown]) -> str:
    """All points in words; a number of seeds that they share is named once."""
    even = evenly(cells.values())
    each = [f"{shown.ours} at {x:g}" + f" ({shown.seeds})" * (not even) for x, shown in cells.items()]
    return f"{_begin(name)}: {', '.join(each)}" + f"; {even}" * bool(even) + "."


def _trend(figure: Figure, name: str, points: Points) -> str:
    best, last = max(points, key=lambda point: (point[1], point[0])), points[-1]
    what = "number of epochs" if figure.x == "epochs" else figure.x
    text = f"The best {what} by {name} is {best[0]:g} ({best[1]:.2f}), of {len(points)} run"
    text += ", the largest" if best == last else f"; {last[0]:g}, the largest, is lower by {best[1] - last[1]:.2f}"
    falls = [f"from {a[0]:g} to {b[0]:g}" for a, b in pairwise(points) if b[1] < a[1]]
    text += f". It falls {', '.join(falls)}" if falls else ". It never falls"
    return f"{text}. All lie within {best[1] - min(y for _, y in points):.2f}."


def _begin(name: str) -> str:
    """At the start of a sentence; symbols and kNN stay as they are."""
    return name.capitalize() if name in ("linear", "loss") else name.replace("linear,", "Linear,")


def _above(figure: Figure, lines: list[Drawn]) -> list[str]:
    """At how many points the second measure is above the first."""
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


def _curve_words(curve: str, lines: list[Drawn]) -> str:
    """One sentence on a panel: each line, then how the second lies to the first."""
    told = [f"{line.name} {_course(curve, [y for _, y in line.points])}{_zero(curve, line)}" for line in lines]
    # The two losses differ by what they leave out: which is higher says nothing. Nor does it of runs that end apart.
    if len(lines) == 2 and curve != "loss" and len({line.points[-1][0] for line in lines}) == 1:
        before, after = (dict(line.points) for line in lines)
        both = [x for x in before if x in after and x > 0]
        above = sum(after[x] > before[x] for x in both)
        if both:
            told.append(f"{lines[1].name} is above {lines[0].name} at {above} of {len(both)} points of training")
    return f"{_begin(NAMES[curve])}: {'; '.join(told)}."


def _course(curve: str, values: list[float]) -> str:
    if curve == "knn":
        return f"ends at {values[-1]:.2f}"
    largest = max(map(abs, values))
    varies = (max(values) - min(values)) / largest if largest else 0.0
    if curve != "loss" and varies < CONSTANT:
        return f"is constant at {values[0]:.3g} (it varies by {100 * varies:.1f} %)".replace("-", "−")
    way = "falls" if values[-1] < values[0] else "grows"
    text = f"{way} from {values[0]:.3g} to {values[-1]:.3g}"
    low, high = min(values), max(values)
    if low < min(values[0], values[-1]) - 0.05 * (high - low):
        text += f", with a low of {low:.3g} between"
    if high > max(values[0], values[-1]) + 0.05 * (high - low):
        text += f", with a high of {high:.3g} between"
    return text.replace("-", "−")


def _zero(curve: str, line: Drawn) -> str:
    if curve != "loss":
        return ""
    below = [y < 0 for _, y in line.points]
    if not any(below):
        return " and never goes below zero"
    if not below[-1]:
        return f" and is below zero at {sum(below)} of {len(below)} points, not at the last"
    since = max((place for place, is_below in enumerate(below) if not is_below), default=-1) + 1
    return f" and is below zero from epoch {line.points[since][0]:g} on"


def _cloud(name: str, found: dict[str, Any], file: Path) -> Cloud:
    """A t-SNE as recorded, thinned."""
    points = [(float(x), float(y)) for x, y in zip(found["x"], found["y"], strict=True)]
    step = -(-len(points) // MOST)
    shown = points[::step]
    left_out = len(points) - len(shown)
    return Cloud(name, shown, found["labels"][::step], found["classes"], projected(found), file, left_out)


def _neighbours(cloud: Cloud) -> str:
    """How often near points are of one class: what is near in a t-SNE was near before, what is far means little."""
    import numpy as np

    points, labels = np.array(cloud.points), np.array(cloud.labels)
    if len(points) < 2:
        return f"{cloud.name}: a single point."
    distances = ((points[:, None] - points) ** 2).sum(axis=2)
    np.fill_diagonal(distances, np.inf)
    share = 100 * (labels[distances.argmin(axis=1)] == labels).mean()
    more = f" {cloud.left_out:,} more are not drawn." if cloud.left_out else ""
    said = f"for {share:.1f} % of {len(points):,} images, the nearest in the picture is of the same class."
    return f"{cloud.name}: {said}{more}"
