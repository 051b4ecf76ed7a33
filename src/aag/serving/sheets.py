"""Contact sheets: pictures in rows with titles and captions, as a PNG."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from aag.errors import AAGError
from aag.files import atomic_write_path, explain_write_errors
from aag.text import printable

Colour = tuple[int, int, int]
PAPER, INK, GREY, FRAME = (255, 255, 255), (20, 20, 24), (110, 110, 120), (224, 224, 230)
GREEN, BLUE = (24, 140, 70), (40, 90, 200)  # frames: keep; given
GAP, MARGIN, SECTION_GAP = 10, 16, 34  # between pictures, around the sheet, between sections side by side
MIN_WIDTH = 420  # enough for titles
TEXT, TITLE, HEADING = 12, 15, 19  # font sizes in pixels
MAX_PIXELS = 60_000_000  # of a sheet: larger PNGs open in few programs


@dataclass(frozen=True)
class Tile:
    """A picture with lines of text below it. A coloured frame marks it."""

    picture: np.ndarray | None  # uint8 [H, W, 3]; None: an empty frame, for a missing file
    captions: tuple[str, ...] = ()
    colour: Colour | None = None


@dataclass(frozen=True)
class Section:
    """Pictures below a title."""

    tiles: Sequence[Tile]
    title: str = ""
    detail: str = ""  # grey, after the title


def make_sheet(sections: Sequence[Section], *, title: str = "", columns: int = 8, size: int = 128) -> Image.Image:
    """Draw sections with rows of at most `columns` pictures of `size` pixels; small sections stand side by side.

    Long text is shortened to fit. Rows that would make the sheet larger than 60 megapixels are left out, and the last
    line says how many sections that are.
    """
    available_width = columns * (size + GAP) - GAP
    shelves: list[list[Section]] = []
    for section in sections:
        used = sum(_width(each, columns, size) + SECTION_GAP for each in shelves[-1]) if shelves else 0
        if shelves and used + _width(section, columns, size) <= available_width:
            shelves[-1].append(section)
        else:
            shelves.append([section])
    widths = [sum(_width(each, columns, size) + SECTION_GAP for each in shelf) - SECTION_GAP for shelf in shelves]
    available_width = (
        max([MIN_WIDTH, text_width(title, HEADING) if title else 0, *widths])
        if max(widths, default=0) < available_width
        else available_width
    )
    width = 2 * MARGIN + available_width
    heights = [max(_height(each, columns, size) for each in shelf) for shelf in shelves]
    top = MARGIN + (HEADING + 2 * GAP if title else 0)
    shown, height = 0, top
    for each in heights:
        if shown and height + each > MAX_PIXELS // width:
            break
        shown, height = shown + 1, height + each
    left_out = sum(map(len, shelves[shown:]))
    height += (TITLE + GAP) * bool(left_out) + MARGIN - GAP
    sheet = Image.new("RGB", (width, height), PAPER)
    draw = ImageDraw.Draw(sheet)
    if title:
        draw_text(draw, (MARGIN, MARGIN), fit_text(title, available_width, HEADING), HEADING, INK)
    y = top
    for shelf, each in zip(shelves[:shown], heights, strict=False):
        x = MARGIN
        for section in shelf:
            section_width = available_width if len(shelf) == 1 else _width(section, columns, size)
            _draw_section(sheet, draw, section, (x, y), section_width, columns, size)
            x += section_width + SECTION_GAP
        y += each
    if left_out:
        draw_text(draw, (MARGIN, y), f"and {left_out:,} more", TITLE, GREY)
    return sheet


def check_sheet_path(path: Path) -> Path:
    """Return the path of a sheet, or raise."""
    if path.suffix.lower() != ".png":
        raise AAGError(f"a contact sheet is a .png, not {path.name!r}; give a name such as {path.stem}.png")
    return path


def write_sheet(path: Path, sheet: Image.Image) -> None:
    """Write a sheet as PNG, atomically."""
    check_sheet_path(path)
    with explain_write_errors(path), atomic_write_path(path) as temporary:
        sheet.save(temporary, format="PNG")


def _caption_lines(section: Section) -> int:
    return max((len(tile.captions) for tile in section.tiles), default=0)


def _tile_height(section: Section, size: int) -> int:
    return size + GAP + _caption_lines(section) * (TEXT + 4)


def _width(section: Section, columns: int, size: int) -> int:
    return max(1, min(columns, len(section.tiles))) * (size + GAP) - GAP


def _height(section: Section, columns: int, size: int) -> int:
    rows = -(-len(section.tiles) // columns)
    return (TITLE + GAP if section.title else 0) + rows * _tile_height(section, size) + GAP


def _draw_section(
    sheet: Image.Image,
    draw: ImageDraw.ImageDraw,
    section: Section,
    position: tuple[int, int],
    width: int,
    columns: int,
    size: int,
) -> None:
    left, y = position
    if section.title:
        title = fit_text(section.title, width, TITLE)
        draw_text(draw, (left, y), title, TITLE, INK)
        used = text_width(title, TITLE) + GAP
        if section.detail and width - used > 60:
            draw_text(draw, (left + used, y), fit_text(section.detail, width - used, TITLE), TITLE, GREY)
        y += TITLE + GAP
    for number, tile in enumerate(section.tiles):
        x = left + number % columns * (size + GAP)
        top = y + number // columns * _tile_height(section, size)
        _draw_tile(sheet, draw, tile, x, top, size)


def _draw_tile(sheet: Image.Image, draw: ImageDraw.ImageDraw, tile: Tile, x: int, y: int, size: int) -> None:
    if tile.picture is None:
        text = "file missing"
        draw_text(draw, (x + (size - text_width(text, TEXT)) // 2, y + size // 2 - TEXT // 2), text, TEXT, GREY)
    else:
        picture = Image.fromarray(tile.picture)
        if picture.size != (size, size):
            picture = picture.resize((size, size), Image.Resampling.BICUBIC)
        sheet.paste(picture, (x, y))
    box = (x - 1, y - 1, x + size, y + size)
    draw.rectangle(box, outline=tile.colour or FRAME)
    if tile.colour:
        draw.rectangle((x - 3, y - 3, x + size + 2, y + size + 2), outline=tile.colour, width=3)
    for number, caption in enumerate(tile.captions):
        colour = (tile.colour or INK) if number == 0 else GREY
        position = (x, y + size + 4 + number * (TEXT + 4))
        draw_text(draw, position, fit_text(caption, size, TEXT), TEXT, colour)


# --- text in any script -----------------------------------------------------------------------------------------------


def fit_text(text: str, width: int, size: int) -> str:
    """Return the text without unprintable characters, shortened in its middle to `width` pixels.

    Two thirds of what remains is the end, since the end of a path matters most.
    """
    text = printable(text)
    if text_width(text, size) <= width:
        return text
    low, high = 0, len(text)  # find the most letters that fit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if text_width(_shorten(text, middle), size) <= width else (low, middle - 1)
    return _shorten(text, low)


def _shorten(text: str, letters: int) -> str:
    end = letters * 2 // 3
    return text[: letters - end] + "…" + (text[len(text) - end :] if end else "")


def text_width(text: str, size: int) -> int:
    return round(sum(font.getlength(run) for font, run in _runs(text, size)))


def draw_text(draw: ImageDraw.ImageDraw, position: tuple[float, float], text: str, size: int, colour: Colour) -> None:
    """Draw one line; each letter in the first font that has it. `position` is its top left corner."""
    x, y = position
    for font, run in _runs(text, size):
        draw.text((x, y + size), run, font=font, fill=colour, anchor="ls")
        x += font.getlength(run)


def _runs(text: str, size: int) -> Iterator[tuple[ImageFont.FreeTypeFont, str]]:
    """Split text into runs of one font."""
    for path, letters in groupby(text, key=_find_font):
        yield _font(path, size), "".join(letters)


@cache
def _font(path: str, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(path, size)


@cache
def _find_font(letter: str) -> str:
    """Return the first font file with a letter: DejaVu Sans, the system's fonts, then the Last Resort font."""
    bundled = _bundled_fonts()
    if ord(letter) in _code_points(bundled[0]):
        return bundled[0]
    others = (*_system_fonts(), *bundled[1:])
    return next((path for path in others if ord(letter) in _code_points(path)), bundled[0])


def _bundled_fonts() -> list[str]:
    """Return Matplotlib's fonts: DejaVu Sans, and Last Resort, which has a symbol for every script."""
    from matplotlib import get_data_path

    folder = Path(get_data_path(), "fonts", "ttf")
    return [str(folder / name) for name in ("DejaVuSans.ttf", "LastResortHE-Regular.ttf") if (folder / name).exists()]


@cache
def _system_fonts() -> tuple[str, ...]:
    from matplotlib.font_manager import findSystemFonts

    return tuple(sorted(findSystemFonts(), key=_font_order))


def _font_order(path: str) -> tuple[bool, bool, str]:
    """Return a sort key: sans-serif and regular fonts first."""
    name = Path(path).stem.lower()
    return "sans" not in name, any(word in name for word in ("bold", "italic", "oblique", "mono", "light")), name


@cache
def _code_points(path: str) -> frozenset[int]:
    """Return the code points that a font has; none where it cannot be used."""
    from matplotlib.ft2font import FT2Font

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _font(path, TEXT)  # fonts with bitmaps only have no such size
            return frozenset(FT2Font(path).get_charmap())
    except Exception:  # ignore a damaged font
        return frozenset()
