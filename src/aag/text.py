"""Counts, sizes and times in words, and text that is safe to print."""

import unicodedata
from collections.abc import Iterable, Sequence


def pluralize(count: float, noun: str, plural: str = "") -> str:
    """Return a count with its noun: 1 run, 2,000 runs; `plural` where it does not end in s alone."""
    number = f"{count:,}" if isinstance(count, int) else f"{count:g}"
    return f"{number} {noun if count == 1 else plural or noun + 's'}"


def describe_loss(value: object) -> str:
    """Return a method's setting `loss` in words: its own loss, if it has no such setting or the value is own."""
    return "its own loss" if value in (None, "own") else str(value)


def join_or(words: Iterable[str]) -> str:
    """Join words without repetition: a; a or b; a, b or c."""
    *others, last = dict.fromkeys(words)
    return f"{', '.join(others)} or {last}" if others else last


def keep_end(text: str, most: int) -> str:
    """Shorten text to its last `most` characters, since the end of a path matters most."""
    return text if len(text) <= most else f"…{text[len(text) - most + 1 :]}"


def readable_value(value: object) -> str:
    """Return a setting in words: none, yes, no, or the values of a list."""
    if value in (None, [], ""):
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def column_texts(values: Sequence[object]) -> list[str]:
    """Return the values of a column as text: floats with four digits, all with the same number of decimals."""
    floats = [value for value in values if isinstance(value, float)]
    has_exponent = any("e" in f"{value:.4g}" for value in floats)
    form = ".4g" if has_exponent else f".{max(map(_decimals, floats), default=0)}f"
    return ["–" if value is None else format(value, form) if isinstance(value, float) else printable(str(value))
            for value in values]  # fmt: skip


def _decimals(value: float) -> int:
    """Return the decimals of a value with four digits: 2 for 43.902 and 1 for 0.1."""
    return min(len(text.partition(".")[2]) for text in (f"{value:#.4g}", f"{value:.10g}"))


def readable_bytes(count: float) -> str:
    """Return a size in decimal units: 3 kB, 983 MB, 12.3 GB."""
    for unit in ("bytes", "kB", "MB"):
        if count < 999.5:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:,.1f} GB"


def duration(seconds: float) -> str:
    """Return a time: 7 s, 5 min 03 s, 2 h 07 min."""
    minutes, seconds = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {seconds:02d} s" if minutes else f"{seconds} s"
    return _hours(minutes)


def rough_duration(seconds: float) -> str:
    """Return an estimated time, without seconds: 1 min, 5 min, 2 h 07 min."""
    minutes = max(1, round(seconds / 60))
    return f"{minutes} min" if minutes < 60 else _hours(minutes)


def _hours(minutes: int) -> str:
    return f"{minutes // 60} h {minutes % 60:02d} min"


def printable(text: str) -> str:
    """Replace what a terminal cannot print or would execute, such as line breaks and colours in file names."""
    return text if text.isprintable() else "".join(letter if _is_printable(letter) else "?" for letter in text)


def _is_printable(letter: str) -> bool:
    # Python counts the spaces of Japanese and the joiners of Persian, Hindi and emoji as not printable.
    return letter.isprintable() or unicodedata.category(letter) == "Zs" or letter in "\u200c\u200d"
