"""The available memory, and a budget for large pictures that all decoders of this process share."""

import os
import re
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Condition, Lock

UNCOUNTED_BYTES = 32 << 20  # a picture that needs less never waits: each core may hold one of these
_FALLBACK_BYTES = 8 << 30  # if the system does not report its memory
_CGROUP_ROOT = Path("/sys/fs/cgroup")
_budget: "Budget | None" = None
_lock = Lock()


class OverBudgetError(Exception):
    """A request exceeds the whole budget."""


class Budget:
    """Bytes of memory to reserve. Requests are served in order, so a large one does not wait forever."""

    def __init__(self, total: int) -> None:
        self.total = self.free = total
        self._queue, self._changed = deque[object](), Condition()

    @contextmanager
    def reserve(self, amount: int) -> Iterator[None]:
        """Hold this number of bytes; wait until they are free. Raises OverBudgetError if they never will be."""
        if amount > self.total:
            raise OverBudgetError
        if amount <= UNCOUNTED_BYTES:
            yield
            return
        ticket = object()
        with self._changed:
            self._queue.append(ticket)
            try:
                self._changed.wait_for(lambda: self._queue[0] is ticket and self.free >= amount)
                self.free -= amount
            finally:
                self._queue.remove(ticket)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self.free += amount
                self._changed.notify_all()


def decoding_budget() -> Budget:
    """Return the budget of this process: a quarter of the memory, divided by the processes that torchrun started."""
    global _budget
    with _lock:
        if _budget is None:
            processes = os.environ.get("LOCAL_WORLD_SIZE", "")
            _budget = Budget(memory_limit() // 4 // max(1, int(processes) if processes.isdecimal() else 1))
        return _budget


def use_budget(budget: Budget) -> None:
    """Replace the budget of this process."""
    global _budget
    _budget = budget


def memory_limit() -> int:
    """Return the bytes of memory of this machine, or of its container if that may use less."""
    total = _FALLBACK_BYTES
    with suppress(OSError, ValueError, AttributeError):  # not on Windows
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([total, *(limit for limit, _ in _container_limits())])


def available_memory() -> int:
    """Return the bytes of memory that are free, or can be freed without swapping."""
    free = memory_limit()
    with suppress(OSError, ValueError):
        if found := re.search(r"MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text()):
            free = int(found[1]) * 1024
    return max(0, min([free, *(limit - used for limit, used in _container_limits())]))


def _container_limits() -> Iterator[tuple[int, int]]:
    """Yield the limit and the use, in bytes, of each control group that this process belongs to (Linux)."""
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, inside = line.split(":", 2)
            if controllers == "":  # version 2
                base, names = _CGROUP_ROOT, ("memory.max", "memory.current", "inactive_file")
            elif "memory" in controllers.split(","):
                base = _CGROUP_ROOT / "memory"
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            else:
                continue
            own = base / inside.strip("/")
            # In a container, the path may be that of the host; its own group is then the root.
            for folder in {base, own, *(parent for parent in own.parents if base in parent.parents)}:
                with suppress(OSError, ValueError, TypeError):  # "max", or no such file
                    limit, used = (int((folder / name).read_text()) for name in names[:2])
                    cached = re.search(rf"^{names[2]} (\d+)", (folder / "memory.stat").read_text(), re.MULTILINE)
                    yield limit, used - (int(cached[1]) if cached else 0)
