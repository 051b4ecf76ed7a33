"""The page in a real browser: nothing overflows, fails to load or hides, at a phone's width and a desktop's."""

import pytest
from browser import PATH, browser

pytestmark = pytest.mark.skipif(PATH is None, reason="no Chromium on this machine (Debian: apt-get install chromium)")

WIDTHS = (360, 390, 1400)
SCHEMES = ("light", "dark")
# Everything that reaches past the right edge, but for what scrolls in a box of its own.
OUTSIDE = """[...document.body.querySelectorAll('*')].filter(e => !e.parentElement.closest('.scroll')
  && e.getBoundingClientRect().right > document.documentElement.clientWidth + 1).map(e => e.outerHTML.slice(0, 99))"""
# Row names that reach past their cell.
SPILT = """[...document.querySelectorAll('tbody th')].filter(e => {const r = document.createRange();
  r.selectNodeContents(e); return r.getBoundingClientRect().right > e.getBoundingClientRect().right})
  .map(e => e.textContent)"""
HIDDEN = """[...document.querySelectorAll('svg, img')].filter(e => {const b = e.getBoundingClientRect();
  return b.width < 10 || b.height < 10 || getComputedStyle(e).visibility != 'visible'}).length"""
BROKEN = "[...document.images].filter(e => !e.complete || !e.naturalWidth).length"
SMALL = """[...document.querySelectorAll('svg.chart text')].filter(e => {const m = e.getScreenCTM();
  return parseFloat(getComputedStyle(e).fontSize) * Math.hypot(m.a, m.b) < 9}).length"""
# Contrast by WCAG, of all text whose own background or an ancestor's is opaque.
FAINT = """(() => {
  const parse = c => (c.match(/[\\d.]+/g) || []).map(Number);
  const linear = v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const light = c => { const f = c.slice(0, 3).map(linear);
    return .2126 * f[0] + .7152 * f[1] + .0722 * f[2]; };
  const back = e => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor);
    if (c.length == 3 || c[3] == 1) return c; } return [255, 255, 255]; };
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), bad = [];
  while (walk.nextNode()) { const e = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || e.closest('svg')) continue;
    const [a, b] = [light(parse(getComputedStyle(e).color)), light(back(e))];
    if ((Math.max(a, b) + .05) / (Math.min(a, b) + .05) < 4.5) bad.push(walk.currentNode.data.slice(0, 60)); }
  return bad; })()"""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile")) as one:
        yield one


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_fits_and_shows_everything(chromium, page, width, scheme):
    chromium.open(page, width, scheme=scheme)
    assert chromium.evaluate("document.documentElement.clientWidth") >= width - 20  # a scrollbar
    assert chromium.evaluate("document.documentElement.scrollWidth") <= width
    assert chromium.evaluate(OUTSIDE) == []
    assert chromium.evaluate("document.querySelectorAll('svg.chart').length") == 10
    assert chromium.evaluate(SPILT) == []
    assert chromium.evaluate(HIDDEN) == 0
    assert chromium.evaluate(BROKEN) == 0
    assert chromium.evaluate(SMALL) == 0
    assert chromium.evaluate(FAINT) == []
    dark = chromium.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(21, 23, 26)"
    assert dark == (scheme == "dark")


def test_nothing_is_asked_for_and_nothing_complained_of(chromium, page):
    chromium.open(page, 1400)
    asked = [e["params"]["request"]["url"] for e in chromium.events if e["method"] == "Network.requestWillBeSent"]
    assert {url for url in asked if not url.startswith("data:")} == {page.resolve().as_uri()}
    complaints = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
    assert [event for event in chromium.events if event["method"] in complaints] == []


def test_a_wide_table_scrolls_in_its_own_box(chromium, page):
    chromium.open(page, 390)
    assert chromium.evaluate("(b => b.scrollWidth > b.clientWidth)(document.querySelector('#table1 .scroll'))")
    # Scrolled to its end, its first column and its caption are still there.
    chromium.evaluate("document.querySelector('#table1 .scroll').scrollLeft = 9999")
    for part in ("tbody th", "caption span"):
        assert chromium.evaluate(f"document.querySelector('#table1 {part}').getBoundingClientRect().left") >= 0


def test_what_scrolls_on_a_phone_says_so(chromium, page):
    chromium.open(page, 390)
    mute = """[...document.querySelectorAll('.scroll')].filter(b => b.scrollWidth > b.clientWidth + 1
      && !(b.querySelector('.hint') || {}).offsetWidth).map(b => b.ariaLabel)"""
    assert chromium.evaluate(mute) == []
    assert chromium.evaluate("(b => b.scrollWidth > b.clientWidth)(document.querySelector('#figure1 .scroll'))")


def test_links_lead_to_the_records(chromium, page):
    chromium.open(page, 1400)
    first = chromium.evaluate("document.querySelector('#table7 td a').href")
    assert first == (page.parent / "results" / "cifar10-resnet18-paper-seed0.json").resolve().as_uri()


def test_on_paper_nothing_is_cut_off(chromium, page):
    chromium.open(page, 760, scheme="dark", media="print")
    assert chromium.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert chromium.evaluate("getComputedStyle(document.querySelector('nav')).display") == "none"
    assert chromium.evaluate("getComputedStyle(document.querySelector('.scroll')).overflowX") == "visible"
    assert chromium.evaluate("document.documentElement.scrollWidth") <= 760
    assert chromium.evaluate(FAINT) == []
