"""Errors that tell users in one line what went wrong and what to do."""

from collections.abc import Iterable
from difflib import get_close_matches

from aag.text import printable

MAX_LINE = 1000  # characters of a message
MAX_NAMES = 20  # known names in a message
MAX_VALUE = 80  # characters of a value in a message


class AAGError(Exception):
    """A mistake that the user can correct. The command line prints its one line and no traceback."""

    def __init__(self, message: object = "") -> None:
        line = printable(" ".join(str(message).splitlines()))  # file names may hold anything
        super().__init__(line if len(line) <= MAX_LINE else f"{line[: MAX_LINE // 2]} … {line[-MAX_LINE // 2 :]}")


class NotFiniteError(AAGError):
    """Training has produced NaN or infinity. Its last checkpoint is still good."""


class KernelsUnsupportedError(AAGError):
    """The kernels cannot compute something; training falls back to plain PyTorch."""


def unknown_name(what: str, name: object, known: Iterable[str], hint: str = "") -> AAGError:
    """Return the error for a name that is not among the known ones; it proposes similar names."""
    names = sorted(known)
    near = _similar_names(name, names) if isinstance(name, str) else []
    listed = ", ".join(names[:MAX_NAMES]) + (", …" if len(names) > MAX_NAMES else "")
    advice = f"did you mean {' or '.join(near)}?" if near else f"known: {listed}"
    return AAGError(f"unknown {what} {describe(name)}; {advice}" + (f" ({hint})" if hint else ""))


def _similar_names(name: str, known: Iterable[str]) -> list[str]:
    """Return up to three names: those abbreviated to or from `name`, else containing it, else spelt alike."""
    plain = {each.strip("-").replace("_", "-").lower(): each for each in known}
    wanted = name[:MAX_VALUE].strip("-").replace("_", "-").lower()
    near = [each for each in plain if len(wanted) > 1 and (_initials(each) == wanted or _initials(wanted) == each)]
    near = near or [each for each in plain if len(wanted) > 1 and f"-{wanted}" in f"-{each}"]
    return [plain[each] for each in (near or get_close_matches(wanted, plain, n=3, cutoff=0.6))[:3]]


def _initials(name: str) -> str:
    """Return lr for learning-rate, and nothing for a single word."""
    return "".join(word[:1] for word in name.split("-")) if "-" in name else ""


def describe(value: object) -> str:
    """Return a value as messages show it: the dtype and shape of a tensor or array, a short repr of others."""
    if (shape := getattr(value, "shape", ())) and hasattr(value, "dtype"):
        return f"{value.dtype} {list(shape)}"
    try:
        text = " ".join(repr(value).split())
    except Exception:  # numbers of thousands of digits, and objects whose repr fails
        text = type(value).__name__
    return text if len(text) <= MAX_VALUE else f"{text[: MAX_VALUE - 1]}…"


def first_line(error: object) -> str:
    """Return the first line of an exception's message, without an error number; its type's name if it is empty."""
    message = str(getattr(error, "strerror", None) or error).strip()
    return message.splitlines()[0] if message else type(error).__name__
