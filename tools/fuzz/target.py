"""`Target`: a reader to fuzz, with valid files to start from."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from aag.errors import AAGError


@dataclass(frozen=True)
class Target:
    """A reader and its seeds."""

    seeds: Callable[[], list[bytes]]
    """Makes valid files, small ones: a mutation then hits something that matters."""
    read: Callable[[Path], object]
    """Reads a file. It may only return, or raise one of `refusals` with a message of one line."""
    suffix: str = ""
    """Extension of the input files."""
    refusals: tuple[type[Exception], ...] = (AAGError,)
    repair: Callable[[bytes], bytes] | None = None
    """Corrects the checksums of a mutated file, so that reading goes on behind them. Used for every second input."""


def read_input(target: Target, path: Path) -> str:
    """Read a file and return "read" or "refused". Any other exception is a finding; so is a refusal of two lines."""
    try:
        target.read(path)
    except target.refusals as refusal:
        if "\n" in str(refusal):
            raise RuntimeError(f"the refusal has several lines: {str(refusal)!r}") from refusal
        return "refused"
    return "read"
