"""Contact sheets fit, whatever the number of pictures and the script of their names."""

import numpy as np
import pytest
from PIL import Image

from aag.errors import AAGError
from aag.serving import sheets
from aag.serving.sheets import GREEN, Section, Tile, fit_text, make_sheet, text_width, write_sheet

NAMES = [
    "plain.jpg",
    "中文/照片.jpg",
    "صورة.png",
    "हिन्दी.jpg",
    "😀.gif",
    "<b>'\"</b>",
    "a" * 300,
    "tab\tnew\nline",
    "\udcff",
]


@pytest.mark.parametrize("text", NAMES)
@pytest.mark.parametrize("width", [40, 128, 5000])
def test_text_is_shortened_to_its_room(text, width):
    fitted = fit_text(text, width, 12)
    assert text_width(fitted, 12) <= width
    assert "\n" not in fitted
    if width == 5000:
        assert "…" not in fitted


def test_the_end_of_a_long_path_is_kept():
    fitted = fit_text("a/very/long/folder/" * 5 + "IMG_1234.jpg", 128, 12)
    assert fitted.startswith("a")
    assert fitted.endswith("234.jpg")


def test_nothing_is_drawn_outside_its_tile():
    """The margins between tiles stay white below the pictures, however long the captions are."""
    black = np.zeros((10, 10, 3), np.uint8)
    sheet = np.asarray(
        make_sheet([Section([Tile(black, (name, name)) for name in NAMES])], columns=len(NAMES), size=64)
    )
    for number in range(1, len(NAMES)):
        edge = sheets.MARGIN + number * (64 + sheets.GAP)
        assert (sheet[:, edge - sheets.GAP + 2 : edge - 2] == 255).all(axis=2).mean() > 0.99


def test_pictures_are_shown_where_they_belong():
    colours = [(200, 0, 0), (0, 200, 0), (0, 0, 200)]
    tiles = [Tile(np.full((5, 5, 3), colour, np.uint8)) for colour in colours]
    sheet = make_sheet([Section(tiles)], columns=2, size=50)
    step = 50 + sheets.GAP
    centre = sheets.MARGIN + 25
    assert sheet.getpixel((centre, centre)) == colours[0]
    assert sheet.getpixel((centre + step, centre)) == colours[1]
    assert sheet.getpixel((centre, centre + step)) == colours[2]


def test_small_sections_stand_side_by_side():
    pair = Section([Tile(None), Tile(None)], "pair")
    one, four, six = (make_sheet([pair] * count, columns=9) for count in (1, 4, 6))
    assert one.height == four.height
    assert six.height > four.height


def test_a_marked_picture_has_a_coloured_frame_and_a_lost_one_is_said():
    sheet = make_sheet([Section([Tile(None, (), GREEN)])], size=100)
    assert sheet.getpixel((sheets.MARGIN - 2, sheets.MARGIN + 50)) == GREEN
    inside = np.asarray(sheet)[sheets.MARGIN + 30 : sheets.MARGIN + 70, sheets.MARGIN + 5 : sheets.MARGIN + 95]
    assert inside.min() < 200  # "file missing"


def test_a_sheet_stops_before_it_is_too_large(monkeypatch):
    monkeypatch.setattr(sheets, "MAX_PIXELS", 300_000)
    sheet = make_sheet([Section([Tile(None)] * 8, f"{i}") for i in range(50)], size=64)
    assert sheet.width * sheet.height < 400_000


def test_a_sheet_is_written_as_png(tmp_path):
    sheet = make_sheet([])
    write_sheet(tmp_path / "sheet.png", sheet)
    assert Image.open(tmp_path / "sheet.png").size == sheet.size
    with pytest.raises(AAGError, match=r"sheet\.png"):
        write_sheet(tmp_path / "sheet.jpg", sheet)
    with pytest.raises(AAGError, match="cannot write"):
        write_sheet(tmp_path / "missing" / "sheet.png", sheet)
