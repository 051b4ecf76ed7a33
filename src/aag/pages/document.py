"""A page as data: sections of paragraphs, lists, tables and charts. Renderers turn it into HTML or Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aag.pages.plots import Chart


@dataclass(frozen=True)
class Link:
    text: str
    target: Path | str  # a file, or the id of a section of this page
    about: str = ""  # for screen readers, where the text alone says too little


@dataclass(frozen=True)
class Styled:
    text: str
    style: str  # a class of page.css; Markdown knows `strong` and `code`


@dataclass(frozen=True)
class Image:
    png: bytes
    about: str


Inline = str | Link | Styled | Image
Text = str | Sequence[Inline]


@dataclass(frozen=True)
class Heading:
    text: str


@dataclass(frozen=True)
class Paragraph:
    text: Text
    style: str = ""


@dataclass(frozen=True)
class Bullets:
    items: Sequence[Text]


@dataclass(frozen=True)
class Cell:
    """A cell of a table, in lines."""

    lines: Sequence[Text]
    style: str = ""


@dataclass(frozen=True)
class Table:
    """The first cell of each row is its head."""

    name: str
    columns: Sequence[str]  # heads of the columns, with that of the row heads
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    style: str = "cells"


@dataclass(frozen=True)
class Charts:
    """Charts side by side. Markdown leaves them out."""

    charts: Sequence[Chart]


@dataclass(frozen=True)
class Columns:
    """Groups of blocks, side by side where there is room."""

    groups: Sequence[Sequence["Block"]]


Block = Heading | Paragraph | Bullets | Table | Charts | Columns


@dataclass(frozen=True)
class Section:
    id: str
    title: str
    blocks: Sequence[Block]
    label: str = ""  # stands before the title, such as "Table 1"; sections that have one are in the page's menu


@dataclass(frozen=True)
class Document:
    title: str
    introduction: Sequence[Block]
    sections: Sequence[Section]
    footer: Text = ""


def pieces(text: Text) -> Sequence[Inline]:
    return (text,) if isinstance(text, str) else text
