"""The page in a real browser: nothing overflows, fails to load or hides, at a phone's width and a desktop's."""

import json
import re
import shutil
import subprocess
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), "")
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="no Chromium on this machine (Debian: apt-get install chromium)")

# Everything that reaches past the right edge, but for what scrolls in a box of its own.
OUTSIDE = """[...document.body.querySelectorAll('*')].filter(e => !e.parentElement.closest('.scroll')
  && e.getBoundingClientRect().right > document.documentElement.clientWidth + 1).map(e => e.outerHTML.slice(0, 99))"""
# Row names that reach past their cell.
OVERFLOWING = """[...document.querySelectorAll('tbody th')].filter(e => {const r = document.createRange();
  r.selectNodeContents(e); return r.getBoundingClientRect().right > e.getBoundingClientRect().right})
  .map(e => e.textContent)"""
HIDDEN = """[...document.querySelectorAll('svg, img')].filter(e => {const b = e.getBoundingClientRect();
  return b.width < 10 || b.height < 10 || getComputedStyle(e).visibility != 'visible'}).length"""
BROKEN = "[...document.images].filter(e => !e.complete || !e.naturalWidth).length"
SMALL_TEXT = """[...document.querySelectorAll('svg text')].filter(e => {const m = e.getScreenCTM();
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


SCROLL = "(b => b.scrollWidth > b.clientWidth)(document.querySelector('%s .scroll'))"


def evaluate(folder: Path, html: str, width: int, expressions: dict[str, str], scheme: str = "light") -> dict[str, Any]:
    """Show a page in a frame of this width; return the values of JavaScript expressions."""
    html = html.replace("Content-Security-Policy", "none", 1)  # it would refuse our expressions, too
    script = "".join(f"found[{json.dumps(name)}] = run({json.dumps(code)});" for name, code in expressions.items())
    harness = folder / "harness.html"
    harness.write_text(
        f'<!doctype html><meta charset="utf-8"><iframe width="{width}" height="900" srcdoc="{escape(html)}"></iframe>'
        "<script>onload = () => { const found = {}, run = document.querySelector('iframe').contentWindow.eval;"
        f"{script} document.title = JSON.stringify(found); }}</script>"
    )
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
        f"--user-data-dir={folder / 'profile'}", f"--blink-settings=preferredColorScheme={int(scheme == 'light')}",
        "--dump-dom", harness.as_uri(),
    ]  # fmt: skip
    printed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    title = re.search(r"<title>(.*?)</title>", printed)
    assert title, printed[-500:]
    return json.loads(unescape(title[1]))


@pytest.fixture(scope="module")
def html(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 390, 1400])
def test_the_page_fits_and_shows_everything(html, tmp_path, width, scheme):
    expressions = {
        "width": "document.documentElement.scrollWidth",
        "charts": "document.querySelectorAll('svg.chart').length",
        "background": "getComputedStyle(document.body).backgroundColor",
        "outside": OUTSIDE, "overflowing": OVERFLOWING, "hidden": HIDDEN, "broken": BROKEN, "small": SMALL_TEXT,
        "faint": FAINT,
    }  # fmt: skip
    assert evaluate(tmp_path, html, width, expressions, scheme) == {
        "width": width, "charts": 10, "outside": [], "overflowing": [], "hidden": 0, "broken": 0, "small": 0,
        "faint": [], "background": "rgb(21, 23, 26)" if scheme == "dark" else "rgb(253, 253, 251)",
    }  # fmt: skip


def test_wide_tables_scroll_on_a_phone(html, tmp_path):
    left = "document.querySelector('#table1 %s').getBoundingClientRect().left >= 0"
    found = evaluate(tmp_path, html, 390, {
        "table": SCROLL % "#table1",
        "views": SCROLL % "#figure1",
        "without a hint": """[...document.querySelectorAll('.scroll')].filter(b => b.scrollWidth > b.clientWidth + 1
          && !(b.querySelector('.hint') || {}).offsetWidth).map(b => b.ariaLabel)""",
        # Scrolled to its end, a table still shows its first column and its caption.
        "end": "document.querySelector('#table1 .scroll').scrollLeft = 9999",
        "names": left % "tbody th",
        "caption": left % "caption span",
    })  # fmt: skip
    assert found == {
        "table": True, "views": True, "without a hint": [], "end": 9999, "names": True, "caption": True
    }  # fmt: skip


def test_nothing_is_cut_off_in_print(html, tmp_path):
    found = evaluate(tmp_path, html.replace("@media print", "@media all"), 760, {
        "colour": "getComputedStyle(document.body).color",
        "menu": "getComputedStyle(document.querySelector('nav')).display",
        "overflow": "getComputedStyle(document.querySelector('.scroll')).overflowX",
        "width": "document.documentElement.scrollWidth",
        "faint": FAINT,
    })  # fmt: skip
    assert found == {"colour": "rgb(0, 0, 0)", "menu": "none", "overflow": "visible", "width": 760, "faint": []}
