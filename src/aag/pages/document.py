"""A page as data: sections of paragraphs, lists, tables, charts and maps. Renderers turn it into HTML or Markdown."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from aag.pages.map import Map
from aag.pages.plots import Chart


class Link(NamedTuple):
    text: str
    target: Path | str  # a file, or the id of a section of this page
    about: str = ""  # for screen readers, where the text alone says too little

    def url(self, page: Path) -> str:
        """Return the target relative to a page, so that both can be moved together."""
        if isinstance(self.target, str):
            return f"#{self.target}"
        try:
            path = Path(os.path.relpath(self.target, page.parent)).as_posix()
            return quote(os.fsencode(path), safe="/=+")  # names of files need not be text
        except ValueError:  # another drive of Windows
            return self.target.resolve().as_uri()


class Span(NamedTuple):
    text: str
    style: str  # a class of page.css; Markdown knows `strong` and `code`


class Image(NamedTuple):
    content: bytes  # PNG or JPEG
    about: str
    side: int = 72  # CSS pixels


Inline = str | Link | Span | Image
Text = str | list[Inline]


class Paragraph(NamedTuple):
    text: Text
    style: str = ""  # a class of page.css, or "heading"


class Bullets(NamedTuple):
    items: Sequence[Text]


class Cell(NamedTuple):
    lines: Sequence[Text]
    style: str = ""


class Table(NamedTuple):
    """The first cell of each row is its head."""

    name: str
    columns: Sequence[str]  # heads of the columns, with that of the row heads
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    style: str = "cells"


class Charts(NamedTuple):
    """Charts side by side. Markdown leaves them out."""

    charts: Sequence[Chart]


class Drawing(NamedTuple):
    """A drawing in the page's colours. Markdown leaves it out."""

    svg: str


@dataclass(frozen=True)
class Columns:
    """Groups of blocks, side by side where there is room."""

    groups: Sequence[Sequence["Block"]]


Block = Paragraph | Bullets | Table | Charts | Drawing | Columns | Map


class Section(NamedTuple):
    id: str
    title: str
    blocks: Sequence[Block]
    label: str = ""  # stands before the title, such as "Table 1"; sections that have one are in the page's menu


class Document(NamedTuple):
    title: str
    introduction: Sequence[Block]
    sections: Sequence[Section]
    footer: Text = ""
    menu_name: str = "Tables and figures"  # of the menu, for screen readers


def heading(text: str) -> Paragraph:
    return Paragraph(text, "heading")


def join(*pieces: Inline) -> Text:
    return list(pieces)


def pieces(text: Text) -> list[Inline]:
    return [text] if isinstance(text, str) else text
