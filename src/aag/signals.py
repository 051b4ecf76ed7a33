"""Stop commands by signals: from Ctrl-C, schedulers, closed terminals and timers."""

import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Any

INTERRUPTED = 130  # exit code after Ctrl-C, by a shell's convention
RESUMABLE = 75  # exit code after a scheduler's signal: EX_TEMPFAIL of sysexits.h, "try again"
SAVE_SECONDS = 20.0  # time to start Python, finish the step and save
# SLURM sends SIGUSR1 or SIGTERM before it preempts a job; a timer sends SIGALRM. Windows has only the first two.
_STOP_NAMES = ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP", "SIGALRM")
STOP_SIGNALS = tuple(getattr(signal, name) for name in _STOP_NAMES if hasattr(signal, name))


class Terminated(KeyboardInterrupt):
    """A scheduler, a closed terminal or a timer asked this process to stop."""


def exit_code(signum: int | None) -> int:
    """Return the exit code after a stop that this signal asked for; None: another process got the signal."""
    return INTERRUPTED if signum == signal.SIGINT else RESUMABLE


def raise_stop(signum: int, frame: object = None) -> None:
    """Handle a signal by raising KeyboardInterrupt or Terminated."""
    raise KeyboardInterrupt if signum == signal.SIGINT else Terminated


@contextlib.contextmanager
def handle_stops(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Handle stop signals with `handler` inside the block; not SIGHUP where it is ignored, as under nohup.

    Only the main thread can; in others this does nothing.
    """
    before: dict[int, Any] = {}
    with contextlib.suppress(ValueError):
        for number in STOP_SIGNALS:
            if number != getattr(signal, "SIGHUP", None) or signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextlib.contextmanager
def hold_stops() -> Iterator[None]:
    """Delay stops until the block's heavy imports are done: some libraries swallow Ctrl-C or print a traceback."""
    asked: list[int] = []
    with handle_stops(lambda signum, frame: asked.append(signum)):
        yield
    if asked:
        raise_stop(asked[0])


@contextlib.contextmanager
def stop_within(minutes: float | None) -> Iterator[None]:
    """Send this process a stop signal, as a scheduler does, in time to save within `minutes`. None: no limit."""
    if minutes is not None:
        signal.setitimer(signal.ITIMER_REAL, max(60 * minutes - SAVE_SECONDS, 30 * minutes))
    try:
        yield
    finally:
        if minutes is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
