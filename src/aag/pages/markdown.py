"""Render a page as Markdown, for the docs. Charts are left out."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aag.pages.document import (
    Block,
    Bullets,
    Charts,
    Columns,
    Document,
    Heading,
    Image,
    Inline,
    Link,
    Paragraph,
    Styled,
    Table,
    Text,
    pieces,
)
from aag.pages.files import relative_url


def render_markdown(document: Document, out: Path) -> str:
    """Return a document as Markdown, with links relative to `out`."""
    renderer = _Renderer(out)
    parts = [f"# {_escape(document.title)}", *renderer.blocks(document.introduction)]
    for section in document.sections:
        label = f"{section.label}: " if section.label else ""
        parts += [f"## {label}{_escape(section.title)}", *renderer.blocks(section.blocks)]
    if document.footer:
        parts.append(renderer.text(document.footer))
    return "\n\n".join(parts) + "\n"


def make_table(heads: Sequence[Any], rows: Sequence[Sequence[Any]], left: int | None = None) -> str:
    """Return a table: its first columns aligned to the left, the others to the right; None: all to the left."""
    lines = ["| " + " | ".join(map(str, line)) + " |" for line in (heads, *rows)]
    left = len(heads) if left is None else left
    return "\n".join([lines[0], "|" + "---|" * left + "---:|" * (len(heads) - left), *lines[1:]])


class _Renderer:
    def __init__(self, out: Path) -> None:
        self.out = out

    def blocks(self, blocks: Sequence[Block]) -> list[str]:
        return [text for block in blocks if (text := self.block(block))]

    def block(self, block: Block) -> str:
        match block:
            case Heading(text):
                return f"**{_escape(text)}**"
            case Paragraph(text):
                return self.text(text)
            case Bullets(items):
                return "\n".join(f"- {self.text(item)}" for item in items)
            case Table():
                return self.table(block)
            case Columns(groups):
                return "\n\n".join(text for group in groups for text in self.blocks(group))
            case Charts():
                return ""

    def table(self, table: Table) -> str:
        if any(isinstance(piece, Image) for row in table.rows for cell in row for line in cell.lines for piece in line):
            return ""
        rows = [["<br>".join(self.text(line) for line in cell.lines) for cell in row] for row in table.rows]
        caption = f"{_escape(table.caption)}\n\n" if table.caption else ""
        return caption + make_table(list(map(_escape, table.columns)), rows)

    def text(self, text: Text) -> str:
        return "".join(map(self.inline, pieces(text)))

    def inline(self, piece: Inline) -> str:
        match piece:
            case Link(text, Path() as target):
                return f"[{_escape(text)}]({relative_url(target, self.out)})"
            case Link(text) | Styled(text, ""):
                return _escape(text)
            case Styled(text, "code"):
                return f"`{text}`"
            case Styled(text, "strong"):
                return f"**{_escape(text)}**"
            case Styled(text):
                return _escape(text)
            case Image(_, about):
                return _escape(about)
        return _escape(str(piece))


def _escape(text: str) -> str:
    """Return text without markup, on one line of a table; spaces at its ends stay."""
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", re.sub(r"\s+", " ", text))
