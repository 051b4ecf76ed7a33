"""Charts: inside a page they follow its colours; as files they are the same in every run."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from aag.errors import AAGError
from aag.pages.plots import COLOURS, Line, LineChart, ScatterChart, css_variables, save_charts, to_svg

ACCURACY = LineChart("kNN", "epochs", "%", [Line("a<b", [(64, 88.594), (128, 88.956)], 0)], mark_points=True)
SCATTER = ScatterChart("t-SNE", [(0.0, 1.0), (2.0, 3.0), (4.0, 1.0)], [0, 1, 11], [f"class {i}" for i in range(12)])


def curve(points, name: str = "a<b", colour: int = 0) -> Line:
    return Line(name, [(float(x), float(y)) for x, y in points], colour)


def chart(*lines: Line) -> LineChart:
    return LineChart("t", "x", "y", lines)


@pytest.mark.parametrize("one", [ACCURACY, SCATTER])
def test_an_svg_is_well_formed_labelled_and_the_same_again(one):
    svg = to_svg(one)
    root = ElementTree.fromstring(svg.replace("<svg ", '<svg xmlns:xlink="http://www.w3.org/1999/xlink" ', 1))
    assert (root.get("role"), root.get("aria-label")) == ("img", one.title)
    assert svg == to_svg(one)
    assert "DejaVu" not in svg
    assert "<metadata" not in svg


def test_all_colours_of_an_svg_follow_the_scheme():
    for one in (ACCURACY, SCATTER, chart(curve([(0, -1), (1, 1)]), curve([(0, 2), (1, 3)], "b", 1))):
        assert set(re.findall(r"#[0-9a-f]{6}", to_svg(one))) <= {"#ffffff"}  # no background: see transparent
    light = [pair[0] for pair in COLOURS.values()]
    assert len(set(light)) == len(light)  # or one variable would take the place of another
    assert css_variables().count("--series0") == 2


def test_points_carry_their_numbers_unrounded_by_the_drawing():
    svg = to_svg(ACCURACY)
    assert "88.59" in svg
    assert "88.96" in svg
    assert "a&lt;b" in svg


def test_epochs_are_whole_numbers_also_of_a_single_point():
    for points in ([(1, 5.0)], [(0, 4.0), (1, 5.0)]):
        texts = re.findall(r">([^<\n]+)</text>", to_svg(chart(curve(points))))
        assert texts[: texts.index("x")] == [f"{x}" for x, _ in points]  # the ticks, then the label of the axis


def test_small_differences_of_accuracy_look_small():
    def height(gap: float) -> float:
        line = Line("a", [(64, 88.5), (128, 88.5 + gap)], 0)
        svg = to_svg(LineChart("t", "x", "y", [line], log=True, mark_points=True))
        first, second = (
            float(y)
            for y in re.findall(r'<use xlink:href="#\w+" x="[\d.]+" y="([\d.]+)" style="fill: var\(--series0', svg)[:2]
        )
        return first - second

    assert 0 < height(0.5) < height(8.0) / 2


def test_a_steep_beginning_is_cut_off_and_noted():
    steep = chart(curve([(x, 0.5 if x == 1 else 0.01 * x / 200) for x in range(1, 201)]))
    assert steep.note == "Not shown: 0.5 (a<b) at the beginning."
    assert ">0.5" not in to_svg(steep)
    falls = curve([(x, 10.0 if x == 2 else 0.2 + x / 1000) for x in range(1, 201)], "falls")
    assert (
        chart(falls, curve([(x, 0.3) for x in range(1, 201)], "stays", 1)).note
        == "Not shown: 10 (falls) at the beginning."
    )
    assert chart(curve([(x, 1 / x) for x in range(1, 21)])).note == ""


@pytest.mark.parametrize("suffix", ["PDF", "svg", "png"])
def test_figures_are_saved_by_suffix(tmp_path, suffix):
    starts = {"pdf": b"%PDF", "svg": b"<?xml", "png": b"\x89PNG"}
    for number, charts in enumerate([[ACCURACY] * 3, [SCATTER, ScatterChart("b", (), (), ())]]):
        path = tmp_path / "new" / f"figure{number}.{suffix}"
        save_charts(charts, path)
        first = path.read_bytes()
        assert first.startswith(starts[suffix.lower()])
        save_charts(charts, path)
        assert path.read_bytes() == first


def test_save_errors_are_one_line(tmp_path):
    with pytest.raises(AAGError, match=r"--save writes .pdf, .svg or .png, not '.gif'"):
        save_charts([ACCURACY], tmp_path / "a.gif")
    (tmp_path / "file").write_text("")
    with pytest.raises(AAGError, match="cannot write"):
        save_charts([ACCURACY], tmp_path / "file" / "a.pdf")
