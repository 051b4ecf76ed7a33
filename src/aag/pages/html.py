"""Render a page as one HTML file that loads nothing from the network. The only script is that of a map."""

import base64
import hashlib
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from aag.pages import document as doc
from aag.pages.escaping import escape
from aag.pages.map import Map, to_html
from aag.pages.plots import Chart, css_variables, to_svg

HERE = Path(__file__).parent


def render_html(document: doc.Document, out: Path) -> str:
    """Return a document as HTML, with links relative to `out`."""
    style = "\n" + css_variables() + (HERE / "page.css").read_text(encoding="utf-8")
    renderer = _Renderer(out)
    introduction = renderer.blocks(document.introduction)
    sections = "\n".join(map(renderer.section, document.sections))
    script = (HERE / "map.js").read_text(encoding="utf-8") if renderer.has_map else ""
    menu = "".join(
        f'<li><a href="#{escape(one.id)}">{escape(one.label)}</a></li>' for one in document.sections if one.label
    )
    title = escape(document.title)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(style, script)}"><link rel="icon" href="data:,">'
        f"<title>{title}</title><style>{style}</style></head>\n<body>\n"
        f"<header><h1>{title}</h1>{introduction}"
        f'<nav aria-label="{escape(document.menu_name)}"><ul>{menu}</ul></nav></header>\n<main>\n{sections}'
        f"\n</main>\n<footer><p>{renderer.text(document.footer)}</p></footer>\n"
        f"{f'<script>{script}</script>' if script else ''}</body></html>\n"
    )


def _policy(style: str, script: str) -> str:
    """Return the content security policy: the browser loads nothing and runs only the map's script.

    Attributes may hold style, because a chart's colours follow the reader's scheme.
    """
    scripts = f"; script-src {_hash(script)}" if script else ""
    styles = f"style-src 'unsafe-inline'; style-src-elem {_hash(style)}; style-src-attr 'unsafe-inline'"
    return f"default-src 'none'; img-src data:; {styles}{scripts}; base-uri 'none'; form-action 'none'"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


class _Renderer:
    def __init__(self, out: Path) -> None:
        self.out = out
        self.has_map = False

    def section(self, section: doc.Section) -> str:
        label = f"<small>{escape(section.label)}</small>" if section.label else ""
        head = f"<h2>{label}{escape(section.title)}</h2>"
        return f'<section id="{escape(section.id)}">{head}{self.blocks(section.blocks)}</section>'

    def blocks(self, blocks: Sequence[doc.Block]) -> str:
        return "".join(map(self.block, blocks))

    def block(self, block: doc.Block) -> str:
        match block:
            case doc.Paragraph(text, "heading"):
                return f"<h3>{self.text(text)}</h3>"
            case doc.Paragraph(text, style):
                kind = f' class="{escape(style)}"' if style else ""
                return f"<p{kind}>{self.text(text)}</p>"
            case doc.Bullets(items):
                return "<ul>" + "".join(f"<li>{self.text(item)}</li>" for item in items) + "</ul>"
            case doc.Table():
                return self.table(block)
            case doc.Columns(groups):
                return (
                    '<div class="columns">' + "".join(f"<div>{self.blocks(group)}</div>" for group in groups) + "</div>"
                )
            case doc.Charts(charts):
                return '<figure class="charts">' + "".join(map(self.chart, charts)) + "</figure>"
            case doc.Drawing(svg):
                return f'<figure class="drawing">{svg}</figure>'
            case Map():
                self.has_map = True
                return to_html(block)

    def chart(self, chart: Chart) -> str:
        title = escape(chart.title)
        if not chart.is_empty:
            note = f'<p class="protocol">{escape(chart.note)}</p>' if chart.note else ""
            drawn = to_svg(chart) + note
        else:
            why = escape(chart.empty)
            drawn = f'<div class="nothing" role="img" aria-label="{title}: {why}"><p>{why}</p></div>'
        return f"<div><h3>{title}</h3>{drawn}</div>"

    def table(self, table: doc.Table) -> str:
        hint = "Scroll sideways for more." * (len(table.columns) > 3)
        rows = []
        for first, *cells in table.rows:
            data = "".join(f'<td class="{escape(cell.style)}">{self.lines(cell.lines)}</td>' for cell in cells)
            rows.append(f'<tr><th scope="row">{self.lines(first.lines)}</th>{data}</tr>')
        caption = f'<caption class="hint"><span>{hint}</span></caption>' if hint else ""
        if table.caption:
            inline = f' <span class="hint">{hint}</span>' if hint else ""
            caption = f"<caption><span>{escape(table.caption)}{inline}</span></caption>"
        heads = _heads(table.columns, grouped=table.style == "cells")  # elsewhere, a comma belongs to a user's name
        return (
            f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.name)}">'
            f'<table class="{escape(table.style)}">{caption}'
            f"<thead>{heads}</thead><tbody>{''.join(rows)}</tbody></table></div>"
        )

    def lines(self, lines: Sequence[doc.Text]) -> str:
        first, *rest = [self.text(line) for line in lines]
        return first + "".join(f'<span class="row">{line}</span>' for line in rest)

    def text(self, text: doc.Text) -> str:
        return "".join(map(self.inline, doc.pieces(text)))

    def inline(self, piece: doc.Inline) -> str:
        match piece:
            case doc.Link(text, _, about):
                label = f' aria-label="{escape(about)}"' if about else ""
                return f'<a href="{escape(piece.url(self.out))}"{label}>{escape(text)}</a>'
            case doc.Span(text, "code"):
                return f"<code>{escape(text)}</code>"
            case doc.Span(text, "strong"):
                return f"<b>{escape(text)}</b>"
            case doc.Span(text, style):
                return f'<span class="{escape(style)}">{escape(text)}</span>'
            case doc.Image(content, about, side):
                kind = "png" if content.startswith(b"\x89PNG") else "jpeg"
                url = f"data:image/{kind};base64," + base64.b64encode(content).decode()
                return f'<img src="{url}" width="{side}" height="{side}" alt="{escape(about)}">'
            case str(text):
                return escape(text)


def _heads(columns: Sequence[str], *, grouped: bool) -> str:
    """Return the header rows. If grouped, columns named "data set, network" are grouped by data set, as in the paper.

    Columns with other names may follow them.
    """
    first = f'<th scope="col">{escape(columns[0])}</th>' if columns[0] else "<td></td>"
    parts = [column.split(", ") for column in columns[1:]]
    pairs = [names for names in parts if len(names) == 2]
    rest = [names[0] for names in parts[len(pairs) :]]
    if not grouped or len(pairs) < 2 or parts != [*pairs, *([name] for name in rest)]:
        return f"<tr>{first}" + "".join(f'<th scope="col">{escape(name)}</th>' for name in columns[1:]) + "</tr>"
    groups = [(name, len(list(under))) for name, under in groupby(pairs, key=lambda names: names[0])]
    above = "".join(f'<th scope="colgroup" colspan="{n}" class="group">{escape(name)}</th>' for name, n in groups)
    above += "".join(f'<th scope="col" rowspan=2>{escape(name)}</th>' for name in rest)
    under = "".join(f'<th scope="col">{escape(names[1])}</th>' for names in pairs)
    return f"<tr>{first.replace('<td>', '<td rowspan=2>')}{above}</tr><tr>{under}</tr>"
