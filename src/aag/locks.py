"""Locks between processes: the system releases them however a process ends."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aag.errors import AAGError
from aag.files import explain_write_errors, open_regular

_log = logging.getLogger(__name__)


class LockedError(AAGError):
    """Another process holds the lock."""


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file; warn where the system has no locks. Raise LockedError if another holds it."""
    with explain_write_errors(path.parent):
        if path.exists() and not path.is_file():  # opening a pipe would block
            raise AAGError(f"{path} is not a regular file; remove it")
        file = path.open("a")
    with file:
        try:
            import fcntl  # not on Windows

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LockedError(f"another process is using {path.parent}; choose another --out") from error
        except (ImportError, OSError) as error:
            reason = "this system" if isinstance(error, ImportError) else "its file system"
            _log.warning("%s: %s has no locks; do not start a second command with this --out", path.parent, reason)
        yield


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock. The check takes a shared lock for a few microseconds."""
    try:
        import fcntl

        with open_regular(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (ImportError, OSError):  # Windows, a run that was copied without its lock, or no locks here
        pass
    return False
