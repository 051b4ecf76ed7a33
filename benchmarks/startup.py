"""Seconds from the shell to the first line: what every use of the command line pays."""

import subprocess
import sys
from typing import Any

from benchmarks.timing import measure

COMMANDS = {
    "python -c pass": ["-c", "pass"],  # what Python itself takes, of the two below
    "import aag": ["-c", "import aag"],
    "aag --help": ["-m", "aag", "--help"],
}
REPEATS = 5


def run() -> dict[str, Any]:
    rows = []
    for name, arguments in COMMANDS.items():
        command = [sys.executable, *arguments]
        timing = measure(lambda c=command: subprocess.run(c, check=True, capture_output=True), repeats=REPEATS)  # type: ignore[misc]
        rows.append({"name": name, "median_seconds": timing.median, "seconds": list(timing.seconds)})
    return {"protocol": f"a new process each time, median of {REPEATS} after one warm-up", "rows": rows}
