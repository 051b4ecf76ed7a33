"""What every page shares: the page as data, its renderers to HTML and Markdown, plots, and how files are written."""

from aag.pages.document import (
    Bullets,
    Cell,
    Charts,
    Columns,
    Document,
    Heading,
    Image,
    Link,
    Paragraph,
    Section,
    Styled,
    Table,
    Text,
)
from aag.pages.files import write_texts
from aag.pages.html import render_html
from aag.pages.markdown import render_markdown

__all__ = [
    "Bullets", "Cell", "Charts", "Columns", "Document", "Heading", "Image", "Link", "Paragraph", "Section", "Styled",
    "Table", "Text", "render_html", "render_markdown", "write_texts",
]  # fmt: skip
