"""Keep a long command running when its output fails: a full disk, a closed pipe or terminal."""

import contextlib
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO

from aag.errors import first_line


class FaultTolerantStream:
    """A text stream whose writes never fail: after the first one, it drops all text."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.has_failed = stream, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        self._attempt(lambda: self.stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._attempt(self.stream.flush)

    def _attempt(self, action: Callable[[], object]) -> None:
        if self.has_failed:
            return
        try:
            action()
        except (OSError, ValueError) as error:  # ValueError: the stream is closed
            self.has_failed = True
            discard(self.stream)
            with contextlib.suppress(OSError, ValueError):  # standard error may be the same file
                print(f"warning: cannot print ({first_line(error)}); continuing without output", file=sys.stderr)


def discard(stream: TextIO) -> None:
    """Redirect a stream to the null device, so that flushing it at exit cannot fail."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, stream.fileno())
        finally:
            os.close(nowhere)
