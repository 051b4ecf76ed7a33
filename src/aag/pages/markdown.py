"""Render a page as Markdown, for the docs. Charts, maps and images are left out."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aag.pages import document as doc
from aag.pages.map import Map


def render_markdown(document: doc.Document, out: Path) -> str:
    """Return a document as Markdown, with links relative to `out`."""
    renderer = _Renderer(out)
    parts = [f"# {escape(document.title)}", *renderer.blocks(document.introduction)]
    for section in document.sections:
        label = f"{section.label}: " if section.label else ""
        parts += [f"## {label}{escape(section.title)}", *renderer.blocks(section.blocks)]
    return "\n\n".join([*parts, renderer.text(document.footer)]).rstrip() + "\n"


def make_table(heads: Sequence[Any], rows: Sequence[Sequence[Any]], left: int | None = None) -> str:
    """Return a table: its first columns aligned to the left, the others to the right; None: all to the left."""
    lines = ["| " + " | ".join(map(str, line)) + " |" for line in (heads, *rows)]
    left = len(heads) if left is None else left
    return "\n".join([lines[0], "|" + "---|" * left + "---:|" * (len(heads) - left), *lines[1:]])


class _Renderer:
    def __init__(self, out: Path) -> None:
        self.out = out

    def blocks(self, blocks: Sequence[doc.Block]) -> list[str]:
        return [text for block in blocks if (text := self.block(block))]

    def block(self, block: doc.Block) -> str:
        match block:
            case doc.Paragraph(text, "heading"):
                return f"**{self.text(text)}**"
            case doc.Paragraph(text):
                return self.text(text)
            case doc.Bullets(items):
                return "\n".join(f"- {self.text(item)}" for item in items)
            case doc.Columns(groups):
                return "\n\n".join(text for group in groups for text in self.blocks(group))
            case doc.Table(style="views") | doc.Charts() | doc.Drawing() | Map():
                return ""
            case doc.Table(_, columns, rows, caption):
                cells = [["<br>".join(map(self.text, cell.lines)) for cell in row] for row in rows]
                return f"{escape(caption)}\n\n{make_table(list(map(escape, columns)), cells)}"

    def text(self, text: doc.Text) -> str:
        return "".join(map(self.inline, doc.pieces(text)))

    def inline(self, piece: doc.Inline) -> str:
        match piece:
            case doc.Link(text, Path()):
                return f"[{escape(text)}]({piece.url(self.out)})"
            case doc.Span(text, "code"):
                return f"`{text}`"
            case doc.Span(text, "strong"):
                return f"**{escape(text)}**"
            case doc.Link(text) | doc.Span(text) | doc.Image(_, text) | str(text):
                return escape(text)


def escape(text: str) -> str:
    """Return text without markup, on one line of a table; spaces at its ends stay."""
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", re.sub(r"\s+", " ", text))
