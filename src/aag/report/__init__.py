"""The pages a person looks at: ours beside the paper's, as one HTML file or as Markdown."""

from pathlib import Path

from aag.report.content import Content
from aag.report.files import write_texts
from aag.report.markdown import markdown
from aag.report.page import Page

__all__ = ["write_pages"]


def write_pages(results: Path, page: Path, also: Path | None = None) -> list[str]:
    """Writes the page and, `also`, the Markdown: both or, where one cannot be written, neither.

    Gives what is wrong with the records, in a line each.
    """
    content = Content(results)
    texts = [(page, Page(content, page).html())]
    if also:
        texts.append((also, markdown(content, also)))
    write_texts(texts)
    return content.warnings
