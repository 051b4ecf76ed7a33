"""Errors that tell users in one line what went wrong and what to do."""

from collections.abc import Iterable
from difflib import get_close_matches


class AAGError(Exception):
    """A mistake that the user can correct. The command line prints its one line and no traceback."""


class NotFiniteError(AAGError):
    """Training has reached NaN or infinity: its last checkpoint is good, what came after is not."""


class KernelsUnsupportedError(AAGError):
    """What the kernels cannot compute and plain PyTorch can: training falls back on it."""


def unknown(what: str, name: str, known: Iterable[str], hint: str = "") -> AAGError:
    """Return the error for a name that is not among the known ones; it proposes similar names."""
    names = sorted(known)
    near = get_close_matches(name.lower(), names, n=3, cutoff=0.5)
    advice = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names[:20])}"
    return AAGError(f"unknown {what} {name!r}; {advice}" + (f" ({hint})" if hint else ""))


def first_line(error: object) -> str:
    """Return the first line of an exception's message, without an error number; its type's name if it is empty."""
    message = str(getattr(error, "strerror", None) or error).strip()
    return message.splitlines()[0] if message else type(error).__name__
