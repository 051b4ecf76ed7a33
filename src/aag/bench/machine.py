"""The machine that a benchmark ran on, and how busy other processes kept it."""

import os
import platform
import re
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from aag.bench.plan import Plan
from aag.provenance import core_count, provenance

BUSY_CORES = 0.15  # cores used by other processes, above which timings are not to be trusted


def hardware(plan: Plan) -> dict[str, Any]:
    """Return what must be equal for the numbers of two records to be compared."""
    return {
        "device": plan.device.type,
        "quick": plan.quick,
        "threads": plan.threads,
        "cores": core_count(),
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


class OtherLoad:
    """Measures, from its creation on, the CPU time that other processes use on our cores.

    It includes the time that the host of a virtual machine reports as stolen. A child process of ours counts as
    another process until it has ended.
    """

    def __init__(self) -> None:
        self._before, self._started = _busy_seconds(), time.perf_counter()

    def cores(self) -> float | None:
        """Return the mean number of cores in use by others since the start; None if unknown."""
        after, passed = _busy_seconds(), time.perf_counter() - self._started
        if self._before is None or after is None:
            return None
        return max(0.0, round((after - self._before) / passed, 2))


def other_load(seconds: float = 1.0) -> float | None:
    """Return the number of cores that other processes use now; None if unknown."""
    load = OtherLoad()
    time.sleep(seconds)
    return load.cores()


def _busy_seconds() -> float | None:
    """Return the busy seconds of the cores we may use, minus our own and our children's."""
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


def load_warning(load: dict[str, float | None]) -> str | None:
    """Return one line if other processes used the machine, else None."""
    busy = [f"{cores:.2f} cores {when} the run" for when, cores in load.items() if cores and cores > BUSY_CORES]
    return f"warning: other processes used {', '.join(busy)}; the timings are unreliable" if busy else None
