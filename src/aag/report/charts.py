"""Charts as inline SVG: their colours come from the page's style sheet, so that they follow light and dark."""

import math
from dataclasses import dataclass
from html import escape

from aag.report.findings import Cloud, Drawn

WIDTH, HEIGHT = 360, 250  # near a phone's width, so that text is hardly scaled there
LEFT, RIGHT, TOP, BOTTOM = 54, 16, 12, 40
LINE = 15  # of a name on a chart
LEAST = 2.0  # points of accuracy on an axis, so that what one seed may bring looks small
START, SMALL = 0.02, 1 / 3  # if what follows this share of the steps takes less of the range, the picture is of that

# One step of a pen for each class: shapes tell classes apart where colours do not. Round and square are line caps.
SHAPES = (
    "h0", "m-2.2-2.2h4.4v4.4h-4.4z", "m0-3 2.6 4.6h-5.2z", "m-2.4-2.4 4.8 4.8m0-4.8-4.8 4.8", "m0-3 3 3-3 3-3-3z",
    "m-2.8 0h5.6m-2.8-2.8v5.6", "m0 3-2.6-4.6h5.2z", "m-2.8 0h5.6", "m0-2.8v5.6", "m-2.4-2.4 2.4 2.4 2.4-2.4",
)  # fmt: skip


def line_chart(
    lines: list[Drawn], *, title: str, x_label: str, y_label: str, log: bool = False, marks: bool = False
) -> str:
    """Lines over one axis; `marks`, for accuracies: a point with its number at each value, ticks of the axis there."""
    xs = [x for line in lines for x, _ in line.points]
    if not xs:
        return nothing(title, "not run yet")
    outside = "" if marks else _beginning(lines)
    ys = [y for line in lines for x, y in line.points if not outside or x > START * max(xs)]
    low, high = min(ys), max(ys)
    if marks and high - low < LEAST:
        low, high = (low + high - LEAST) / 2, (low + high + LEAST) / 2
    y_ticks = ticks(low, high, 5)
    low, high = min(y_ticks[0], low), max(y_ticks[-1], high)
    x_ticks = sorted(set(xs)) if marks else ticks(min(0.0, *xs), max(xs), 5)
    x_low, x_high = min(x_ticks[0], min(xs)), max(x_ticks[-1], max(xs))
    place = math.log2 if log else float

    def x_of(x: float) -> float:
        span = place(x_high) - place(x_low)
        share = (place(x) - place(x_low)) / span if span else 0.5
        pad = 14 if marks else 0  # a point on the axis is half hidden
        return LEFT + pad + share * (WIDTH - LEFT - RIGHT - 2 * pad)

    def y_of(y: float) -> float:
        return TOP + (high - y) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = []
    for y in y_ticks:
        at = y_of(y)
        parts.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 5}" y="{at + 3.5:.1f}" text-anchor="end">{tick(y)}</text>')
    taken = -math.inf
    for x in x_ticks:
        at, text = x_of(x), tick(x)
        if at - taken < 6 * len(text) + 6:
            continue  # it would run into the one before
        taken = at
        parts.append(f'<path class="grid" d="M{at:.1f} {HEIGHT - BOTTOM}v4"/>')
        inside = min(at, WIDTH - 3.2 * len(text) - 1)  # the last one whole, too
        parts.append(f'<text x="{inside:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{text}</text>')
    parts.append(f'<path class="axis" d="M{LEFT} {HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>')
    if low < 0 < high:
        parts.append(f'<path class="axis" d="M{LEFT} {y_of(0):.1f}H{WIDTH - RIGHT}"/>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x_label)}</text>')
    upright = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(f'<text transform="translate(11 {upright}) rotate(-90)" text-anchor="middle">{escape(y_label)}</text>')
    if outside:  # a picture inside the picture, at whose border the lines end
        wide, tall = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        box = f'x="{LEFT}" y="{TOP}" width="{wide}" height="{tall}" viewBox="{LEFT} {TOP} {wide} {tall}"'
        parts.append(f"<svg {box}>")
    for line in lines:
        kind = f"line s{line.style}" + " hollow" * line.hollow
        path = "L".join(f"{x_of(x):.1f} {y_of(y):.1f}" for x, y in line.points)
        parts.append(f'<path class="{kind}" d="M{path}"><title>{escape(line.name)}</title></path>')
        if marks:
            for (x, y), told in zip(line.points, line.told or [f"{y:.2f}" for _, y in line.points], strict=True):
                said = escape(f"{line.name}, {x_label} {x:g}: {told}")
                parts.append(
                    f'<circle class="mark s{line.style}{" hollow" * line.hollow}" cx="{x_of(x):.1f}" '
                    f'cy="{y_of(y):.1f}" r="3.5"><title>{said}</title></circle>'
                )
    parts.append("</svg>" * bool(outside))
    return _svg(title, "".join(parts)) + _legend(lines, marks) + outside


def _beginning(lines: list[Drawn]) -> str:
    """What is left out of a picture that would otherwise show little but how its lines begin. Empty: nothing is."""
    end = max(x for line in lines for x, _ in line.points)
    whole = [y for line in lines for _, y in line.points]
    later = [y for line in lines for x, y in line.points if x > START * end]
    if not later or max(later) - min(later) >= SMALL * (max(whole) - min(whole)):
        return ""
    low, high = min(later), max(later)
    far = {line.name: max((y for _, y in line.points), key=lambda y: max(y - high, low - y)) for line in lines}
    begins = " and ".join(f"{y:.3g} ({name})" for name, y in far.items() if not low <= y <= high)
    return f'<p class="protocol">At the beginning {escape(begins)}, outside the picture.</p>'


def scatter(cloud: Cloud, *, title: str) -> str:
    """Points by class: colour, shape, and the class's name near its middle."""
    size = 340
    xs, ys = [x for x, _ in cloud.points], [y for _, y in cloud.points]
    span = max(max(xs) - min(xs), max(ys) - min(ys)) or 1.0
    middle_x, middle_y = (max(xs) + min(xs)) / 2, (max(ys) + min(ys)) / 2

    def spot(point: tuple[float, float]) -> tuple[float, float]:
        scale = (size - 24) / span
        return size / 2 + (point[0] - middle_x) * scale, size / 2 - (point[1] - middle_y) * scale

    parts: list[str] = []
    names: list[Name] = []
    for number, name in enumerate(cloud.classes):
        spots = [spot(point) for point, label in zip(cloud.points, cloud.labels, strict=True) if label == number]
        if not spots:
            continue
        shape = SHAPES[number % len(SHAPES)]
        path = "".join(f"M{x:.1f} {y:.1f}{shape}" for x, y in spots)
        parts.append(f'<path class="{dots(number)}" d="{path}"><title>{escape(name)}</title></path>')
        x, y = (sorted(each)[len(spots) // 2] for each in zip(*spots, strict=True))
        names += _free(Name(name, x, y), names, size)
    return _svg(title, "".join(parts + [each.svg() for each in names]), size, size)


@dataclass(frozen=True)
class Name:
    """Of a class, on its points; x and y are its middle."""

    text: str
    x: float
    y: float

    @property
    def half(self) -> float:
        """Of its width: a letter is about 7 wide."""
        return 3.5 * len(self.text)

    def hides(self, other: "Name") -> bool:
        return abs(self.y - other.y) < LINE and abs(self.x - other.x) < self.half + other.half + 3

    def svg(self) -> str:
        return (
            f'<text class="name" x="{self.x:.1f}" y="{self.y + 4:.1f}" text-anchor="middle">{escape(self.text)}</text>'
        )


def _free(name: Name, taken: list[Name], size: int) -> list[Name]:
    """At its place or, where others stand, up to three lines above or below; else nowhere: the legend has it."""
    x = min(max(name.x, name.half), size - name.half)  # whole, at the edge too
    for lines in (0, 1, -1, 2, -2, 3, -3):
        moved = Name(name.text, x, name.y + lines * LINE)
        if LINE / 2 <= moved.y <= size - LINE / 2 and not any(moved.hides(other) for other in taken):
            return [moved]
    return []


def class_legend(classes: list[str]) -> str:
    items = [
        f'<li><svg class="key" viewBox="0 0 16 12" aria-hidden="true"><path class="{dots(number)}" '
        f'd="M8 6{SHAPES[number % len(SHAPES)]}"/></svg>{escape(name)}</li>'
        for number, name in enumerate(classes)
    ]
    return f'<ul class="legend">{"".join(items)}</ul>'


def dots(number: int) -> str:
    """The style of a class: ten colours, and whether its mark is a round dot."""
    return f"dots c{number % 10}" + " round" * (number % len(SHAPES) == 0)


def nothing(title: str, why: str) -> str:
    """A panel with nothing to draw, which says so."""
    return f'<div class="nothing" role="img" aria-label="{escape(title)}: {escape(why)}"><p>{escape(why)}</p></div>'


def ticks(low: float, high: float, about: int) -> list[float]:
    """Round numbers from at or below the lowest to at or above the highest."""
    if high <= low:
        room = abs(low) * 0.1 or 1.0
        low, high = low - room, high + room
    raw = (high - low) / about
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * each for each in (1, 2, 2.5, 5, 10) if raw <= unit * each * 1.000001)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(step * each, 12) for each in range(first, last + 1)]


def tick(value: float) -> str:
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    return f"{value:g}".replace("-", "−")


def _svg(title: str, inside: str, width: int = WIDTH, height: int = HEIGHT) -> str:
    return (
        f'<svg class="chart" role="img" aria-label="{escape(title)}" viewBox="0 0 {width} {height}">'
        f"<title>{escape(title)}</title>{inside}</svg>"
    )


def _legend(lines: list[Drawn], marks: bool) -> str:
    keys = []
    for line in lines:
        kind = f"s{line.style}" + " hollow" * line.hollow
        mark = f'<circle class="mark {kind}" cx="15" cy="6" r="3.5"/>' * marks
        key = f'<path class="line {kind}" d="M1 6H29"/>{mark}'
        keys.append(
            f'<li><svg class="key wide" viewBox="0 0 30 12" aria-hidden="true">{key}</svg>{escape(line.name)}</li>'
        )
    return f'<ul class="legend">{"".join(keys)}</ul>'
