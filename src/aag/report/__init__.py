"""The pages a person looks at: ours beside the paper's, as one HTML file or as Markdown."""

from aag.report.markdown import write_markdown
from aag.report.page import write_page

__all__ = ["write_markdown", "write_page"]
