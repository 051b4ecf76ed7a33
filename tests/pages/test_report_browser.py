"""The report and the comparison in a real browser: the map works, nothing overflows, fails or is loaded."""

import sys
from pathlib import Path

import numpy as np
import pytest

from aag.pages import document as doc
from aag.pages.html import render_html
from aag.pages.map import Colouring, Map, pack_pictures
from aag.pages.plots import Line, LineChart, ScatterChart
from aag.serving import write_comparison, write_report
from browser import CHROMIUM, MISSING, Browser
from report_runs import HOSTILE, trained_run

sys.path.insert(0, str(Path(__file__).parent.parent / "paper"))
from test_browser import BROKEN, FAINT, OUTSIDE, SMALL_TEXT

pytestmark = pytest.mark.skipif(not CHROMIUM, reason=MISSING)

CANVAS = "document.querySelector('.map-view canvas')"
CARD = "document.querySelector('.map-card')"
REDRAWN = "document.querySelector('.map').dataset.redraw"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("browser")) as made:
        yield made


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    run, sets = trained_run()
    return write_report(run, tmp_path_factory.mktemp("page") / "report.html", sets=sets)


@pytest.fixture(scope="module")
def large_page(tmp_path_factory) -> Path:
    """A page with a map of 10,000 pictures: noise, the hardest to compress."""
    count, random = 10_000, np.random.default_rng(0)
    pictures = random.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    classes = [f"class {number}" for number in range(100)]
    names = [f"holiday/2026/album {number % 40}/picture {number}.jpg" for number in range(count)]
    block = Map(
        "Map", random.normal(size=(count, 2)), names,
        [Colouring("label", classes, random.integers(0, 100, count))], pack_pictures(pictures),
    )  # fmt: skip
    page = tmp_path_factory.mktemp("large") / "page.html"
    document = doc.Document("Large", [], [doc.Section("map", "Map", [block])])
    page.write_text(render_html(document, page), encoding="utf-8")
    return page


def show_map(browser: Browser, page: Path, width: int = 1280, **more: bool) -> None:
    browser.open(page, width, **more)
    browser.evaluate("document.querySelector('.map').scrollIntoView({block: 'center', behavior: 'instant'})")
    browser.wait_for(REDRAWN)
    browser.settle()


def first_point(browser: Browser) -> tuple[float, float]:
    """The place of a point on the screen: the darkest pixel of the canvas near its middle."""
    x, y = browser.evaluate(f"""(() => {{
      const c = {CANVAS}, r = c.getBoundingClientRect(), k = c.width / r.width;
      const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; let best = null, far = 1e9;
      for (let i = 3; i < d.length; i += 4) if (d[i] > 180) {{
        const p = (i - 3) / 4, x = p % c.width, y = p / c.width | 0;
        const f = (x - c.width / 2) ** 2 + (y - c.height / 2) ** 2;
        if (f < far) [far, best] = [f, [r.left + x / k, r.top + y / k]]; }}
      return best; }})()""")
    return x, y


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_report_fits_and_loads_nothing(browser, report, width, dark):
    show_map(browser, report, width, dark=dark)
    assert browser.problems == []
    assert browser.requests == [report.as_uri()]
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    found = {name: browser.evaluate(code) for name, code in
             {"outside": OUTSIDE, "broken": BROKEN, "small": SMALL_TEXT, "faint": FAINT}.items()}  # fmt: skip
    assert found == {"outside": [], "broken": 0, "small": 0, "faint": []}
    background = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(21, 23, 26)" if dark else "rgb(253, 253, 251)")


def test_a_usual_name_takes_one_line_on_a_wide_screen(browser, tmp_path):
    page = tmp_path / "page.html"
    rows = [[doc.Cell([name]), doc.Cell(["-"])] for name in ("holiday/IMG_20260715.jpg", "a.jpg")]
    table = doc.Table("Views", ["", "image"], rows, style="views")
    page.write_text(render_html(doc.Document("Names", [], [doc.Section("a", "A", [table])]), page))
    browser.open(page)
    long, short = browser.evaluate("[...document.querySelectorAll('tbody th')].map(cell => cell.offsetHeight)")
    assert long == short


@pytest.mark.parametrize("caption", ["", "Rows."])
def test_only_a_narrow_screen_says_that_a_table_scrolls(browser, tmp_path, caption):
    page = tmp_path / "page.html"
    table = doc.Table("Wide", ["a", "b", "c", "d"], [[doc.Cell(["1"])] * 4], caption)
    page.write_text(render_html(doc.Document("Wide", [], [doc.Section("a", "A", [table])]), page))
    for width in (1280, 390):
        browser.open(page, width)
        assert ("Scroll sideways" in browser.evaluate("document.body.innerText")) == (width == 390)
        shown = browser.evaluate("document.querySelector('caption').offsetHeight") > 0
        assert shown == bool(caption or width == 390)


def test_the_picture_of_a_point_is_shown(browser, report):
    show_map(browser, report)
    assert browser.evaluate(f"{CARD}.hidden")
    browser.mouse("mouseMoved", *first_point(browser))
    browser.wait_for(f"!{CARD}.hidden")
    assert HOSTILE.replace("/", "∕") in browser.evaluate(f"{CARD}.textContent")  # as text
    # The sheet is decoded when it is first needed.
    browser.wait_for(f"{CARD}.querySelector('canvas').getContext('2d').getImageData(0, 0, 32, 32).data.some(v => v)")
    browser.mouse("mouseMoved", 2, 2)
    browser.wait_for(f"{CARD}.hidden")
    assert browser.problems == []


def test_a_tap_shows_it_on_a_phone(browser, report):
    show_map(browser, report, 390)
    browser.tap(*first_point(browser))
    browser.wait_for(f"!{CARD}.hidden")
    left, right = browser.evaluate(f"(r => [r.left, r.right])({CARD}.getBoundingClientRect())")
    assert left >= 0
    assert right <= 390


def test_find_highlights_and_enter_goes_there(browser, report):
    show_map(browser, report)
    browser.evaluate("document.querySelector('.map-find').focus()")
    browser.call("Input.insertText", text="新宿")
    browser.settle()
    assert browser.evaluate("document.querySelector('.map-found').textContent") == "30 found; Enter shows the next"
    for key in ("rawKeyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=key, key="Enter", windowsVirtualKeyCode=13)
    browser.wait_for(f"!{CARD}.hidden")
    assert "新宿" in browser.evaluate(f"{CARD}.textContent")


def test_zoom_legend_and_keys(browser, report):
    show_map(browser, report)
    drawn = f"{CANVAS}.toDataURL().length"
    whole = browser.evaluate(drawn)
    browser.evaluate("[...document.querySelectorAll('.map-legend button')].find(b => b.textContent == 'None').click()")
    browser.settle()
    assert browser.evaluate(drawn) < whole / 2
    assert browser.evaluate("document.querySelectorAll('.map-legend [aria-pressed=false]').length") == 3
    browser.evaluate("[...document.querySelectorAll('.map-legend button')].find(b => b.textContent == 'All').click()")
    browser.settle()
    assert browser.evaluate(drawn) == whole
    x, y = first_point(browser)
    browser.evaluate("new Promise(done => setTimeout(done, 400))")  # while the page scrolls, the wheel is the page's
    browser.mouse("mouseWheel", x, y, deltaX=0, deltaY=-600)
    browser.wait_for(f"{drawn} != {whole}")
    browser.evaluate(f"{CANVAS}.focus()")
    browser.call("Input.dispatchKeyEvent", type="keyDown", key="0", text="0")
    browser.settle()
    browser.mouse("mouseMoved", 2, 2)
    browser.wait_for(f"{drawn} == {whole}")
    assert browser.problems == []


def test_ten_thousand_points_are_quick_and_small(browser, large_page):
    assert large_page.stat().st_size < 15e6
    show_map(browser, large_page)
    times = []
    for factor in (2, 0) * 6:
        browser.evaluate(f"document.querySelector('[data-zoom=\"{factor}\"]').click()")
        browser.settle()
        times.append(float(browser.evaluate(REDRAWN)))
    assert min(times) < 33, times  # milliseconds. On a quiet machine less than 16: 60 frames a second.
    browser.mouse("mouseMoved", *first_point(browser))
    browser.wait_for(f"!{CARD}.hidden")
    assert browser.problems == []


NASTY = "\"'><script>document.title = 'run'</script>\u2028</script><!--\0\x1b\udcff&amp;"
ATTACKS = (
    "<script>document.title = 'run'</script>",
    "<img src=x onerror=\"document.title = 'run'\">",
    "<svg onload=\"document.title = 'run'\"></svg>",
    "<iframe srcdoc=\"<script>parent.document.title = 'run'</script>\"></iframe>",
    '<link rel="stylesheet" href="https://example.org/style.css">',
    '<img src="https://example.org/picture.png">',
    '<base href="https://example.org/">',
)


@pytest.fixture(scope="module")
def nasty_page(tmp_path_factory) -> Path:
    """A page with every kind of block, all of whose texts try to be markup."""
    name, pictures = NASTY, np.zeros((3, 32, 32, 3), np.uint8)
    picture = doc.Image(pack_pictures(pictures).jpegs[0], name)
    link = doc.Link(name, Path(f"javascript:document.title='run'{name[:3]}"), name)
    blocks = [
        doc.Paragraph([name, link, doc.Span(name, name), doc.Span(name, "code"), picture], name),
        doc.Bullets([name, [doc.Link(name, name)]]),
        doc.Table(name, [name, name], [[doc.Cell([name], name), doc.Cell([name, name], name)]], name, name),
        doc.Charts([LineChart(name, "x", "y", [Line(name, [(0, 1), (1, 2)], 0)]), LineChart(name, "x", "y", [])]),
        doc.Charts([ScatterChart(name, [(0, 0), (1, 1)], [0, 1], [name, name], note=name)]),
        Map(name, np.eye(3)[:, :2], [name] * 3, [Colouring(name, [name], [0, 0, 0])], pack_pictures(pictures)),
    ]
    page = tmp_path_factory.mktemp("nasty") / "page.html"
    document = doc.Document(f"title{name}", blocks[:1], [doc.Section(name, name, blocks, name)], name, name)
    page.write_text(render_html(document, page), encoding="utf-8")
    return page


def test_text_is_never_markup(browser, nasty_page):
    show_map(browser, nasty_page)
    assert browser.evaluate("document.title").startswith("title")
    assert browser.evaluate("document.querySelectorAll('script:not([type])').length") == 1  # the map's own
    assert browser.evaluate("document.querySelector('main h2').textContent").count("<script>") == 2
    assert browser.evaluate("[...document.querySelectorAll('a')].every(a => /^(file:|#)/.test(a.href) || a.hash)")
    assert not set(browser.evaluate("document.documentElement.outerHTML")) & set("\0\x1b\u2028\ufffd")
    assert browser.problems == []
    assert browser.requests == [nasty_page.as_uri()]


@pytest.mark.parametrize("attack", ATTACKS)
def test_the_policy_stops_what_escaping_might_miss(browser, nasty_page, tmp_path, attack):
    page = tmp_path / "attacked.html"
    text = nasty_page.read_text(encoding="utf-8")
    page.write_text(text.replace("<header>", f"<header>{attack}", 1), encoding="utf-8")
    browser.open(page)
    assert browser.evaluate("document.title").startswith("title")
    assert browser.evaluate("document.baseURI") == page.as_uri()
    assert "Content Security Policy" in " ".join(browser.problems)  # the browser says what it refused


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_comparison_fits(browser, tmp_path, width, dark):
    run, _ = trained_run()
    page = write_comparison([run, run], tmp_path / "compare.html")
    browser.open(page, width, dark=dark)
    assert browser.problems == []
    assert browser.requests == [page.as_uri()]
    found = {name: browser.evaluate(code) for name, code in
             {"outside": OUTSIDE, "small": SMALL_TEXT, "faint": FAINT}.items()}  # fmt: skip
    assert found == {"outside": [], "small": 0, "faint": []}
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    box = "document.querySelector('.scroll')"
    assert width < 600 or browser.evaluate(f"{box}.scrollWidth <= {box}.clientWidth")  # no column is hidden
