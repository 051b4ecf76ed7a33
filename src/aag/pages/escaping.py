"""Text for HTML: none of it is markup, and it holds neither control characters nor halves of characters."""

import html

from aag.text import printable


def escape(text: str) -> str:
    """Return text for an element or for an attribute in quotes."""
    return html.escape(printable(text))
