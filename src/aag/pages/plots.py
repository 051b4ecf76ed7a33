"""Charts with matplotlib: as SVG inside a page, in its light or dark colours, or as files for papers."""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aag.errors import AAGError
from aag.files import atomic_write_path, explain_write_errors
from aag.pages.escaping import escape
from aag.text import join_or, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 5.0, 3.5  # inches of 72 pixels: a phone's width, so that text is hardly scaled there
SMALLEST_RANGE = 2.0  # points of accuracy on an axis: the noise of one seed should look small
START_FRACTION, SMALL_RANGE = 0.02, 1 / 3  # see _later_range
MARKERS = "os^XDPvp*h"  # classes differ in colour and shape
SUFFIXES = (".pdf", ".svg", ".png")

# For pages and plots, light and dark. The contrast of text is at least 4.5 : 1.
COLOURS = {  # name: light, dark
    "paper": ("#fdfdfb", "#15171a"),
    "ink": ("#1c1e21", "#e7e8ea"),
    "soft": ("#585d66", "#a6abb3"),
    "line": ("#d5d7da", "#3a3e44"),
    "wash": ("#f2f3f1", "#1e2125"),
    "tag": ("#e6e8e4", "#2c3036"),
    "link": ("#14509e", "#8dbcf5"),
    "up": ("#11662f", "#74d294"),
    "down": ("#a8221a", "#ff9a8f"),
    "near": ("#5b5200", "#d9c96a"),
    "series0": ("#a34a00", "#f2a765"),
    "series1": ("#15519f", "#8ebdf6"),
    "class0": ("#1a5bb3", "#71a7ea"),
    "class1": ("#bd6410", "#f3b06a"),
    "class2": ("#33994d", "#85d69a"),
    "class3": ("#ad1f2b", "#e77d86"),
    "class4": ("#673399", "#ae85d6"),
    "class5": ("#8a5842", "#caab9d"),
    "class6": ("#a3297a", "#de7dc0"),
    "class7": ("#61656b", "#abaeb3"),
    "class8": ("#8b8d18", "#d2d463"),
    "class9": ("#168495", "#5fd3e2"),
}
LIGHT = {name: pair[0] for name, pair in COLOURS.items()}

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Line:
    name: str
    points: Points
    colour: int  # 0 (dashed) or 1 for two that are compared; 2 to 11 for the ten colours of classes
    hollow: bool = False  # dotted with hollow points: runs that differ from those that were asked for


@dataclass(frozen=True)
class LineChart:
    title: str
    x_label: str
    y_label: str
    lines: Sequence[Line]
    log: bool = False  # logarithmic x
    mark_points: bool = False  # accuracies: each point with its number, and a tick at each x
    empty: str = "not run yet"  # shown where there are no lines
    about: str = ""  # what the numbers mean, below the chart
    cut_start: bool = True  # leave out the first steps where they would fill the picture

    @property
    def is_empty(self) -> bool:
        return not self.lines

    @property
    def inner_range(self) -> tuple[float, float] | None:
        """The range of y that is shown, where that leaves out the first steps."""
        return _later_range(self.lines) if self.cut_start and not self.mark_points else None

    @property
    def note(self) -> str:
        """Says what the numbers mean, and what the axis leaves out at the beginning. Empty: nothing."""
        inside = self.inner_range
        if inside is None:
            return self.about
        low, high = inside
        farthest = {
            line.name: max((y for _, y in line.points), key=lambda y: max(y - high, low - y)) for line in self.lines
        }
        values = [f"{y:.3g} ({name})" for name, y in farthest.items() if not low <= y <= high]
        return f"{self.about} Not shown: {' and '.join(values)} at the beginning.".strip()


@dataclass(frozen=True)
class ScatterChart:
    """Points with a class each."""

    title: str
    points: Points
    labels: Sequence[int]
    classes: Sequence[str]
    empty: str = ""
    note: str = ""

    @property
    def is_empty(self) -> bool:
        return not self.points


Chart = LineChart | ScatterChart


def _later_range(lines: Sequence[Line]) -> tuple[float, float] | None:
    """Return the range of y after the first steps, if it is so small that the first steps would fill the picture."""
    end = max((x for line in lines for x, _ in line.points), default=0.0)
    every = [y for line in lines for _, y in line.points]
    later = [y for line in lines for x, y in line.points if x > START_FRACTION * end]
    if not later or max(later) - min(later) >= SMALL_RANGE * (max(every) - min(every)):
        return None
    return min(later), max(later)


def to_svg(chart: Chart) -> str:
    """Draw a chart as SVG to put inside a page, without ids that others could share, dates or fonts."""
    file = io.BytesIO()
    size = (WIDTH, HEIGHT) if isinstance(chart, LineChart) else (WIDTH, WIDTH)
    _save([chart], file, "svg", 1, size, titles=False, salt=chart.title)
    svg = file.getvalue().decode()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
    used = set(re.findall(r"#(\w+)", svg))
    svg = re.sub(r' id="([^"]+)"', lambda found: found[0] if found[1] in used else "", svg)
    # Coordinates to a tenth of a pixel; only inside tags, because the text between them holds results.
    svg = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\d\.\d)\d+", r"\1", tag[0]), svg)
    svg = re.sub(r"\s+", " ", svg)
    # The page's own font. Versions of matplotlib differ in how they name one.
    svg = re.sub(r"font-family: [^;\"]*;? ?", "", svg)
    svg = re.sub(r"font: ([^;\"]*?)([\d.]+px)[^;\"]*", r"font: \1\2 system-ui, sans-serif", svg)
    box = re.search(r'viewBox="[^"]*"', svg)
    assert box
    label = escape(chart.title)
    head = f'<svg class="chart" role="img" aria-label="{label}" {box[0]}><title>{label}</title>'
    svg = re.sub(r"^<svg.*?>", lambda _: head, svg)
    for name, colour in LIGHT.items():  # variables follow the page's scheme
        svg = svg.replace(colour, f"var(--{name})")
    return svg


def css_variables() -> str:
    """Return the colours as CSS variables that follow the reader's scheme; print is light."""
    schemes = ["".join(f"--{name}: {pair[scheme]}; " for name, pair in COLOURS.items()) for scheme in (0, 1)]
    return (
        f":root {{ color-scheme: light dark; {schemes[0]}}}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {schemes[1]}}} }}\n"
    )


def save_charts(charts: Sequence[Chart], path: Path) -> None:
    """Write charts as one figure; the suffix of the file says how."""
    kind = path.suffix.lower()
    if kind not in SUFFIXES:
        raise AAGError(f"--save writes {join_or(SUFFIXES)}, not {path.suffix or path.name!r}")
    columns = 1 if len(charts) == 1 else 2
    rows = -(-len(charts) // columns)
    tall = HEIGHT if isinstance(charts[0], LineChart) else WIDTH
    with explain_write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write_path(path) as temporary, temporary.open("wb") as file:
            _save(charts, file, kind[1:], columns, (WIDTH * columns, tall * rows), titles=True, salt=path.stem)


def _save(
    charts: Sequence[Chart], file: Any, kind: str, columns: int, size: tuple[float, float], *, titles: bool, salt: str
) -> None:
    import matplotlib
    from matplotlib.figure import Figure

    style: Any = {
        "svg.fonttype": "none", "svg.hashsalt": printable(salt), "pdf.fonttype": 42, "font.size": 10,
        "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": LIGHT["soft"],
        "axes.labelcolor": LIGHT["soft"],
        "xtick.color": LIGHT["soft"], "ytick.color": LIGHT["soft"], "text.color": LIGHT["ink"],
        "axes.grid": True, "axes.grid.axis": "y", "grid.color": LIGHT["line"], "axes.axisbelow": True,
        "legend.frameon": False, "lines.linewidth": 1.8, "axes.unicode_minus": True,
    }  # fmt: skip
    with matplotlib.rc_context(style):
        figure = Figure(size, layout="constrained")
        grid = figure.subplots(-(-len(charts) // columns), columns, squeeze=False)
        for axes in grid.flat[len(charts) :]:
            axes.axis("off")
        for chart, axes in zip(charts, grid.flat, strict=False):
            if titles and len(charts) > 1 and isinstance(chart, ScatterChart):  # a line chart's axes say it
                axes.set_title(chart.title, fontsize="medium")
            if chart.is_empty:
                axes.axis("off")
                axes.text(0.5, 0.5, chart.empty, ha="center")
            elif isinstance(chart, LineChart):
                _draw_lines(chart, axes)
            else:
                _draw_scatter(chart, axes)
        dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind, {})
        figure.savefig(file, format=kind, transparent=kind == "svg", dpi=200 if kind == "png" else 72, metadata=dates)


def _draw_lines(chart: LineChart, axes: "Axes") -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

    several = len({line.colour for line in chart.lines}) > 1
    for line in chart.lines:
        colour = LIGHT[f"series{line.colour}" if line.colour < 2 else f"class{line.colour - 2}"]
        dashes = ":" if line.hollow else "-" if line.colour else "--"
        face = LIGHT["paper"] if line.hollow else colour
        marker: Any = (
            {"marker": "o", "markersize": 5, "markerfacecolor": face}
            if chart.mark_points or len(line.points) == 1
            else {}
        )
        xs, ys = zip(*line.points, strict=True)
        axes.plot(xs, ys, dashes, color=colour, label=_literal(line.name), **marker)
        for place, (x, y) in enumerate(line.points if chart.mark_points else ()):
            # Where no line runs: below the lower of two lines, and below a point whose neighbours are higher.
            neighbours = [ys[other] for other in (place - 1, place + 1) if 0 <= other < len(ys)] or [y]
            below = line.colour == 0 if several else sum(neighbours) / len(neighbours) > y
            offset = (0, -13 if below else 6)
            axes.annotate(f"{y:.2f}", (x, y), offset, textcoords="offset points", ha="center", color=colour)
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    if chart.log:
        axes.set_xscale("log", base=2)
    if chart.mark_points:
        axes.set_xticks(sorted({x for line in chart.lines for x, _ in line.points}))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.margins(0.1, 0.2)
        low, high = axes.get_ylim()
        if high - low < SMALLEST_RANGE:
            axes.set_ylim((low + high - SMALLEST_RANGE) / 2, (low + high + SMALLEST_RANGE) / 2)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))  # epochs and steps are whole
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x / 1000:g}k" if x >= 10_000 else f"{x:g}"))
    if inside := chart.inner_range:
        room = 0.05 * (inside[1] - inside[0]) or 1.0
        axes.set_ylim(inside[0] - room, inside[1] + room)
    low, high = axes.get_ylim()
    if low < 0 < high:
        axes.axhline(0, color=LIGHT["soft"], linewidth=0.8)
    if len(chart.lines) > 1 or chart.lines[0].name:
        longest = max(len(line.name) for line in chart.lines)
        columns = 1 if longest > 22 else 2 if longest > 4 else 5
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, borderaxespad=0)


def _draw_scatter(chart: ScatterChart, axes: "Axes") -> None:
    axes.axis("off")
    axes.set_aspect("equal")
    for number, name in enumerate(chart.classes):
        mine = [point for point, label in zip(chart.points, chart.labels, strict=True) if label == number]
        if mine:
            xs, ys = zip(*mine, strict=True)
            colour = LIGHT[f"class{number % 10}"]
            axes.plot(
                xs,
                ys,
                MARKERS[number % len(MARKERS)],
                color=colour,
                markersize=3,
                markeredgewidth=0,
                label=_literal(name),
            )
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0), ncols=4, handletextpad=0.1, columnspacing=1)


def _literal(name: str) -> str:
    """Return a name that matplotlib shows as it is: neither as mathematics nor hidden from the legend."""
    name = printable(name).replace("$", r"\$")
    return f"\u200b{name}" if name.startswith("_") else name
