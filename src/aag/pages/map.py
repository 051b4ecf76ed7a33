"""A map of pictures: points to pan, zoom and search, each with its picture. One block of a page; see map.js."""

import base64
import io
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from aag.pages.escaping import escape
from aag.text import printable

SHEET_COLUMNS = 32  # a sheet of 32 × 32 pictures decodes in some 20 ms
MAX_SHEET_BYTES = 7_500_000  # of all sheets; base64 makes 10 MB of it
TILE_SIDES = (96, 64, 48, 32)  # multiples of 16: JPEG's blocks do not mix neighbours
QUALITIES = (80, 60, 40)
LEVELS = 2**16 - 1  # positions are rounded to 16 bits


class Colouring(NamedTuple):
    """A class for each point."""

    name: str
    classes: Sequence[str]
    numbers: Sequence[int]  # of the points' classes


class Sheets(NamedTuple):
    """Pictures packed into JPEG sheets, row by row, 1,024 in each."""

    jpegs: Sequence[bytes]
    tile: int  # side of a picture in pixels


class Map(NamedTuple):
    name: str  # for screen readers
    points: np.ndarray  # [N, 2]
    names: Sequence[str]
    colourings: Sequence[Colouring]
    sheets: Sheets


def tile_side(image_size: int) -> int:
    """Return the largest side of a picture on the map that does not exceed the image's, or the smallest."""
    return next((side for side in TILE_SIDES if side <= image_size), TILE_SIDES[-1])


def pack_pictures(pictures: np.ndarray, max_bytes: int = MAX_SHEET_BYTES) -> Sheets:
    """Pack pictures uint8 [N, S, S, 3], S of `tile_side`, into JPEG sheets, as large and good as fit `max_bytes`."""
    sides = [tile for tile in TILE_SIDES if tile <= pictures.shape[1]]
    sheets = Sheets([], sides[-1])
    for tile in sides:
        pages = [_draw_sheet(pictures[start : start + SHEET_COLUMNS**2], tile) for start in _starts(pictures)]
        for quality in QUALITIES if tile == sides[-1] else QUALITIES[:1]:
            sheets = Sheets([_jpeg(page, quality) for page in pages], tile)
            if sum(map(len, sheets.jpegs)) <= max_bytes:
                return sheets
    return sheets


def _starts(pictures: np.ndarray) -> range:
    return range(0, len(pictures), SHEET_COLUMNS**2)


def _draw_sheet(pictures: np.ndarray, tile: int) -> Image.Image:
    side, rows = pictures.shape[1], -(-len(pictures) // SHEET_COLUMNS)
    grid = np.zeros((rows * SHEET_COLUMNS, side, side, 3), np.uint8)
    grid[: len(pictures)] = pictures
    grid = grid.reshape(rows, SHEET_COLUMNS, side, side, 3).swapaxes(1, 2)
    page = Image.fromarray(grid.reshape(rows * side, SHEET_COLUMNS * side, 3))
    return page if tile == side else page.resize((SHEET_COLUMNS * tile, rows * tile), Image.Resampling.BOX)


def _jpeg(page: Image.Image, quality: int) -> bytes:
    file = io.BytesIO()
    page.save(file, "JPEG", quality=quality, optimize=True)
    return file.getvalue()


def to_html(block: Map) -> str:
    """Return the map's markup and its data. The page's script makes it live; see `aag.pages.html`."""
    points = np.asarray(block.points, np.float64)
    low, extent = points.min(axis=0), max(float(np.ptp(points, axis=0).max()), 1e-9)
    middle = (1 - np.ptp(points, axis=0) / extent) / 2  # the shorter side is centred
    x, y = (np.rint(((points - low) / extent + middle) * LEVELS)).astype(np.int64).T
    colourings = [
        {"name": printable(one.name), "classes": list(map(printable, one.classes)), "index": _words(one.numbers)}
        for one in block.colourings
    ]
    content: dict[str, Any] = {
        "x": _words(x), "y": _words(LEVELS - y), "names": list(map(printable, block.names)), "colourings": colourings,
        "tile": block.sheets.tile, "columns": SHEET_COLUMNS, "sheets": [_text(jpeg) for jpeg in block.sheets.jpegs],
    }  # fmt: skip
    # Inside a script element only "<" could end it or open a comment.
    data = json.dumps(content, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    options = "".join(f'<option value="{n}">{escape(one.name)}</option>' for n, one in enumerate(block.colourings))
    name = escape(block.name)
    return (
        '<div class="map"><div class="map-tools">'
        f'<label>Colour by <select class="map-colour">{options}</select></label>'
        '<label>Find <input class="map-find" type="search" placeholder="name or class" autocomplete="off"></label>'
        '<output class="map-found"></output><span class="map-zoom">'
        '<button type="button" data-zoom="2" aria-label="Zoom in">+</button>'
        '<button type="button" data-zoom="0.5" aria-label="Zoom out">−</button>'
        '<button type="button" data-zoom="0">Whole map</button></span></div>'
        f'<div class="map-view"><canvas tabindex="0" role="application" aria-label="{name}. Arrow keys move the map, '
        'plus and minus zoom, 0 shows all of it."></canvas>'
        '<figure class="map-card" hidden><canvas></canvas><figcaption></figcaption></figure></div>'
        f'<div class="map-legend" role="group" aria-label="Classes of {name}"></div>'
        f'<script type="application/json">{data}</script>'
        "<noscript><p>The map needs JavaScript, which this browser has turned off.</p></noscript></div>"
    )


def _words(values: Any) -> str:
    return _text(np.asarray(values, "<u2").tobytes())


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()
