"""The page and its Markdown: whole, self-contained, with every kind of cell; nothing of a record is taken as markup."""

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from aag.errors import AAGError
from aag.pages.markdown import render_markdown
from aag.pages.plots import COLOURS
from aag.paper.page import make_document, write_pages
from aag.paper.summary import Summary
from synthetic import PAPER

VOID = {"meta", "link", "img", "br"}
ROOT = Path(__file__).parent.parent.parent


class Checked(HTMLParser):
    """Every tag that is opened is closed; what it saw."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.seen.append((tag, dict(attrs)))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.seen if name == tag]


@pytest.fixture(scope="module")
def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def markdown(page: Path) -> str:
    return (page.parent / "docs" / "reproduction.md").read_text(encoding="utf-8")


def row(text: str, table: str, name: str) -> str:
    section = text[text.index(f'<section id="{table}">') :]
    start = section.index(f'<th scope="row">{name}')
    return section[start : section.index("</tr>", start)]


def test_the_page_is_well_formed_and_accessible(text):
    page = Checked(text)
    ids = [attributes["id"] for _, attributes in page.seen if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert len(re.findall("<section id=", text)) == 15  # the state, seven tables, six figures, the records
    assert len(page.all("caption")) == len(page.all("table")) == 9
    assert all(attributes.get("scope") for attributes in page.all("th"))
    assert all(attributes.get("alt") for attributes in page.all("img"))
    assert len({attributes["src"] for attributes in page.all("img")}) == 6 * 4  # figure 1
    charts = [attributes for attributes in page.all("svg") if attributes.get("role") == "img"]
    assert len(charts) == 1 + 2 + 4 + 2 + 2  # the drawing, and figures 2 to 6
    assert all(attributes.get("aria-label") for attributes in charts)


def test_the_column_of_words_stands_beside_the_groups(text):
    heads = text[text.index('<section id="table1">') :].partition("</thead>")[0]
    assert heads.count('class="group"') == 3
    assert '<th scope="col" rowspan=2>memory bank</th></tr><tr>' in heads
    assert row(text, "table1", "Instance").endswith('<td class="">yes</td>')


def test_the_drawing_has_the_terms_of_the_loss_and_the_colours_of_the_page(text):
    drawing = re.search(r'<svg class="drawing".*?</svg>', text)[0]

    assert re.sub(r"<[^>]+>", "", re.search(r">(GNT-Xent.*?)</text>", drawing)[1]) == "GNT-Xent = Lxy + Lzx + Lzy"
    assert set(re.findall(r"(?:fill|stroke): ([^;\"]+)", drawing)) <= {f"var(--{name})" for name in COLOURS} | {"none"}


def test_the_page_loads_nothing(text):
    page = Checked(text)
    assert not page.all("script")
    for tag, attributes in page.seen:
        for name in ("src", "srcset", "data", "poster"):
            assert (attributes.get(name) or "data:").startswith("data:"), tag
    assert not re.search(r"url\((?!#)", text)
    assert "@import" not in text
    for attributes in page.all("a"):
        assert not re.match(r"\w+:|//", attributes["href"] or "")


def test_links_lead_to_records_and_places(text, page):
    ids = set(re.findall(r' id="([^"]+)"', text))
    links = [attributes["href"] or "" for attributes in Checked(text).all("a")]
    assert sum(link.startswith("results/") for link in links) > 20
    for link in links:
        assert link[1:] in ids if link.startswith("#") else (page.parent / unquote(link)).is_file()


def test_every_kind_of_cell_is_shown(text):
    full = row(text, "table7", "full model")
    for part in ("88.87", "88.70–89.00, n = 3", "▲ +0.57", "paper 88.3", "records of seed <a"):
        assert part in full
    assert "▼ −1.80" in row(text, "table7", "two basic views")
    assert "▽ −0.20" in row(text, "table7", "three basic views")
    short = row(text, "table7", "StepLR")
    assert "short: 20 of 200 epochs" in short
    assert 'class="diff' not in short
    stale = row(text, "table7", "RandAugment")
    assert "not run yet" in stale
    assert "record</a>: momentum 0.5, now 0.9" in stale
    assert "11.11" not in text
    assert "recorded without linear" in row(text, "table5", "SimCLR, τ 0.5 (linear)")
    assert '<span class="tag">quoted</span>' in row(text, "table1", "SimCLR")
    assert "82.3†" in row(text, "table1", "SimCLR")
    assert "91.4‡" in row(text, "table2", "SimCLR, tuned (kNN)")
    alexnet = row(text, "table1", "AAG")
    assert "(0.00, not comparable)" in alexnet or "(+0.00, not comparable)" in alexnet
    assert "▲ +0.00" not in alexnet


def test_records_are_escaped(text, markdown):
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "no-&lt;number&gt;.json" in text
    assert "<b>99" not in text
    assert r"\<script\>alert(1)\</script\>" in markdown
    assert r"a\|b\`c\`" in markdown


def test_the_markdown_says_the_same(markdown, folder):
    found = re.search(
        r"\| full model \| \*\*88\.87\*\* ▲ \+0\.57<br>88\.70–89\.00, n = 3<br>paper 88\.3<br>"
        r"records of seed \[0\]\(([^)]+)\)",
        markdown,
    )
    assert found
    assert (folder.parent / "docs" / found[1]).is_file()
    assert "short: 20 of 200 epochs<br>paper 87.1" in markdown
    assert re.search(
        r"\| RandAugment \| not run yet<br>paper 88.1<br>stale \[record\]\([^)]+\): momentum 0.5, now 0.9", markdown
    )
    assert "The best batch size by kNN is 128" in markdown
    assert re.search(r"two basic views, CIFAR-10, ResNet-18: 84\.00, paper 85\.8 ▼ −1\.80 \[record\]", markdown)
    figure = markdown.partition("## Figure 6: t-SNE")[2].partition("\n## ")[0]
    assert "t-SNE of the 128-d embedding: 600 images (test), cosine distance, perplexity 30.0" in figure
    assert f"results/tsne/{PAPER.name}.json)" in figure
    notes = [part for part in markdown.split("\n\n") if part.startswith("‡")]
    assert len(notes) == 3  # each a paragraph of its own
    for table in re.findall(r"(?:^\|.*\n)+", markdown, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


def test_without_records_everything_is_not_run_yet(tmp_path):
    page, also = tmp_path / "deep" / "page.html", tmp_path / "page.md"
    write_pages(tmp_path / "none", page, also)
    text, markdown = page.read_text(), also.read_text()
    Checked(text)
    assert "Runs: 0 of 38 done" in text
    assert text.count("not run yet") > 70
    assert "Within 0.5" not in markdown
    assert "## Records: Where the numbers come from\n\nNone yet.\n" in markdown


def test_a_page_is_the_same_when_written_again(folder, page, tmp_path):
    again = folder.parent / "again.html"
    write_pages(folder, again)
    assert again.read_bytes() == page.read_bytes()


def test_both_pages_are_written_or_neither(folder, tmp_path):
    page = tmp_path / "page.html"
    page.write_text("before")
    (tmp_path / "file").write_text("")
    for bad in (tmp_path, tmp_path / "file" / "page.md", page):
        with pytest.raises(AAGError, match="cannot write"):
            write_pages(tmp_path / "none", page, bad)
        assert page.read_text() == "before"
        assert {path.name for path in tmp_path.iterdir()} == {"page.html", "file"}
    warnings = write_pages(folder, page, tmp_path / "page.md")
    assert len(warnings) == 3
    assert warnings[0].startswith("skipped ")
    assert page.read_text() != "before"
    assert (tmp_path / "page.md").exists()


def test_the_page_of_the_docs_is_what_the_records_say():
    path = ROOT / "docs" / "reproduction.md"
    assert path.read_text() == render_markdown(make_document(Summary(ROOT / "results")), path), "run make tables"
