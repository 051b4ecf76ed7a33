"""Read mutated files in this process, one after the other, and report each to the runner."""

import json
import os
import re
import sys
import tempfile
import time
import traceback
import warnings
from importlib import import_module
from pathlib import Path
from random import Random

from fuzz.mutate import make_input
from fuzz.target import Target, read_input

ADDRESS_SPACE = 16 << 30  # more than is reserved at the start: what goes wild fails here, not the machine


def work(target: Target, name: str, seed: int, start: int, stop: int, report_fd: int) -> None:
    """Read the inputs `start` to `stop` and write a line of JSON for each to `report_fd`."""
    _limit_memory()
    warnings.simplefilter("ignore")
    seeds = target.seeds()
    path = Path(tempfile.gettempdir()) / f"input{target.suffix}"  # the runner's folder
    with open(report_fd, "w", buffering=1) as report:
        print("{}", file=report)  # ready
        for number in range(start, stop):
            path.write_bytes(make_input(target, seeds, Random(f"{seed} {name} {number}")))
            print(json.dumps(measure(target, path)), file=report)


def measure(target: Target, path: Path) -> dict[str, object]:
    """Read a file; return the outcome, the seconds of CPU time and the peak of this process's memory in bytes."""
    reset_peak()
    begun = time.process_time()
    detail = ""
    try:
        outcome = read_input(target, path)
    except BaseException as error:
        outcome, detail = "failed", "".join(traceback.format_exception(error))[-2000:]
    return {"outcome": outcome, "seconds": time.process_time() - begun, "peak": peak_bytes(), "detail": detail}


def reset_peak() -> None:
    """Start to measure the peak anew (Linux)."""
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        pass


def peak_bytes() -> int:
    """Return the largest resident size of this process since `reset_peak`, 0 if the system does not tell."""
    try:
        found = re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())
        return int(found[1]) * 1024 if found else 0
    except OSError:
        return 0


def _limit_memory() -> None:
    try:
        import resource

        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + ADDRESS_SPACE, used + ADDRESS_SPACE))
    except (ImportError, OSError):  # not Linux
        pass


if __name__ == "__main__":
    module, name, *numbers = sys.argv[1:]
    work(import_module(module).TARGETS[name], name, *map(int, numbers))
