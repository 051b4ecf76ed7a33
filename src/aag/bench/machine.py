"""Where a benchmark ran, and whether it had the machine to itself."""

import os
import platform
import re
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from aag.bench.plan import Plan, cores
from aag.provenance import provenance

BUSY = 0.15  # of a core: where others take more, timings on the CPU are theirs, too


def hardware(plan: Plan) -> dict[str, Any]:
    """What two records must share for their numbers to stand side by side."""
    return {
        "device": plan.device.type,
        "quick": plan.quick,
        "threads": plan.threads,
        "cores": cores(),
        "repeats": plan.repeats,
        "cpu_model": cpu_model(),
        **provenance(str(plan.device)),
        "torchvision": version("torchvision"),
    }


def cpu_model() -> str:
    try:
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()


class Others:
    """Watches, from its making on, what other processes take of the cores we may use.

    What the host of a virtual machine takes away counts, as far as it says so. A child of ours counts as another's
    until it has ended and been waited for.
    """

    def __init__(self) -> None:
        self.before, self.started = _taken(), time.perf_counter()

    def cores(self) -> float | None:
        """Cores' worth of CPU time until now; None if unknown."""
        after, passed = _taken(), time.perf_counter() - self.started
        if self.before is None or after is None:
            return None
        return max(0.0, round((after - self.before) / passed, 2))


def others(seconds: float = 1.0) -> float | None:
    """Cores' worth of CPU time that other processes take just now; None if unknown."""
    watch = Others()
    time.sleep(seconds)
    return watch.cores()


def _taken() -> float | None:
    """Seconds of our cores that were not idle, less our own and our children's."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    mine = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    try:
        lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    except OSError:
        return None
    ticks = 0
    for name, *times in lines:
        if name in mine:
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, times[:8])
            ticks += user + nice + system + irq + softirq + steal
    return ticks / os.sysconf("SC_CLK_TCK") - sum(os.times()[:4])


def warning(busy: dict[str, float | None]) -> str | None:
    """One line where others used the machine, else None."""
    told = [f"{taken:.2f} of a core {when} the run" for when, taken in busy.items() if taken and taken > BUSY]
    return f"warning: other processes took {', '.join(told)}: timings are theirs, too" if told else None
