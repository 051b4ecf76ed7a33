"""Escape text for HTML: no markup, no control characters, no surrogates."""

import html

from aag.text import printable


def escape(text: str) -> str:
    """Return text for an element or for an attribute in quotes."""
    return html.escape(printable(text))
