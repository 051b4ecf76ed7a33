"""Figure 1 as a drawing: the steps of AAG from an image to the loss."""

from aag.pages.escaping import escape
from aag.pages.plots import css_variables

WIDTH, HEIGHT = 360, 428
COLUMNS = {"x": 66, "y": 180, "z": 294}  # of the three views: their centres
BOX = 100  # width of a box in a column
ABOUT = (
    "Each image is augmented three times: twice by the basic augmentation and once by the auxiliary one. One encoder "
    "embeds all three views. GNT-Xent compares the embeddings of each pair of views."
)


def draw_framework() -> str:
    """Return the drawing as SVG for a page whose colours are CSS variables (see `aag.pages.plots`)."""
    parts = [_box(180, 4, 120, 34, "an image"), _text(180, 418, _formula("GNT-Xent = ", "xy", "zx", "zy"), "ink", 14)]
    augmentations = {"x": ("basic", "wash"), "y": ("basic", "wash"), "z": ("auxiliary", "tag")}
    details = {"x": "crop, colours", "y": "crop, colours", "z": "AutoAugment"}
    for view, centre in COLUMNS.items():
        name, fill = augmentations[view]
        parts += [
            _arrow(180 + (centre - 180) * 0.4, 38, centre, 74),
            _box(centre, 76, BOX, 48, name, details[view], fill),
            _arrow(centre, 124, centre, 176),
            _text(centre + 8, 155, f"view {view}", anchor="start"),
            _arrow(centre, 226, centre, 262),
            _circle(centre, 282, view),
        ]
    parts.append(_box(180, 178, 334, 48, "encoder", "the same for all views; 128 numbers each"))
    x, y, z = COLUMNS.values()
    parts += [
        _pair(f"M {x + 20} 282 H {y - 20}", (x + y) / 2, 274, "xy"),
        _pair(f"M {y + 20} 282 H {z - 20}", (y + z) / 2, 274, "zy"),
        _pair(f"M {x} 302 C {x + 20} 352, {z - 20} 352, {z} 302", 180, 332, "zx"),
        _text(180, 366, "pulls an image's views together,"),
        _text(180, 384, "pushes other images' views apart"),
    ]
    head = f'<svg class="drawing" role="img" aria-label="{escape(ABOUT)}" viewBox="0 0 {WIDTH} {HEIGHT}">'
    return f"{head}<title>The framework of AAG</title>{''.join(parts)}</svg>"


def draw_framework_file() -> str:
    """Return the drawing as an SVG file, which brings the colours along."""
    size = f'xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}"'
    style = f"<style>{css_variables()}svg {{ background: var(--paper); }}</style>"
    return draw_framework().replace("<svg", f"<svg {size}", 1).replace("<title>", f"{style}<title>", 1) + "\n"


def _box(
    centre: float, top: float, width: float, height: float, name: str, detail: str = "", fill: str = "wash"
) -> str:
    middle = top + height / 2
    lines = _text(centre, middle + (-4 if detail else 5), name, "ink", 14)
    lines += _text(centre, middle + 14, detail) if detail else ""
    attributes = f'x="{centre - width / 2:g}" y="{top:g}" width="{width}" height="{height}" rx="6"'
    return f'<rect {attributes} style="fill: var(--{fill}); stroke: var(--soft)"/>{lines}'


def _circle(centre: float, middle: float, name: str) -> str:
    style = "fill: var(--paper); stroke: var(--ink)"
    return f'<circle cx="{centre}" cy="{middle}" r="20" style="{style}"/>' + _text(centre, middle + 5, name, "ink", 15)


def _arrow(x0: float, y0: float, x1: float, y1: float) -> str:
    dx, dy = x1 - x0, y1 - y0
    length = (dx**2 + dy**2) ** 0.5
    dx, dy = dx / length, dy / length
    back, side = (x1 - 8 * dx, y1 - 8 * dy), (-4 * dy, 4 * dx)
    corners = [(x1, y1), (back[0] + side[0], back[1] + side[1]), (back[0] - side[0], back[1] - side[1])]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
    line = f'<path d="M {x0:.1f} {y0:.1f} L {back[0]:.1f} {back[1]:.1f}" style="stroke: var(--soft); fill: none"/>'
    return f'{line}<polygon points="{points}" style="fill: var(--soft)"/>'


def _pair(path: str, x: float, y: float, views: str) -> str:
    style = "stroke: var(--series1); stroke-width: 2; fill: none"
    return f'<path d="{path}" style="{style}"/>' + _text(x, y, _formula("", views), "series1", 14)


def _formula(before: str, *pairs: str) -> str:
    """Return a sum of losses, each with its pair of views as a subscript, as SVG text."""
    terms = [f'L<tspan dy="3" font-size="11">{pair}</tspan>' for pair in pairs]
    return before + '<tspan dy="-3"> + </tspan>'.join(terms)


def _text(x: float, y: float, text: str, colour: str = "soft", size: int = 12, anchor: str = "middle") -> str:
    style = f"fill: var(--{colour}); font: {size}px system-ui, sans-serif"
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" style="{style}">{text}</text>'
