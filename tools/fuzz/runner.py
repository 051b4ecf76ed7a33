"""Run a target in worker processes under limits of time and memory, and save the inputs that break it."""

import json
import os
import select
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from fuzz.mutate import make_input
from fuzz.target import Target

START_SECONDS = 600.0


@dataclass(frozen=True)
class Limits:
    """What one input may cost."""

    seconds: float = 10.0  # of CPU time; an input that takes three times as long by the clock hangs
    bytes: int = 2_000_000_000  # of the whole process; importing torch takes about 400 million


@dataclass
class Report:
    """Figures of one target."""

    outcomes: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0  # seconds
    peak: int = 0  # bytes
    findings: list[str] = field(default_factory=list)

    def count(self, line: dict[str, Any]) -> None:
        self.outcomes[line["outcome"]] += 1
        self.slowest, self.peak = max(self.slowest, line["seconds"]), max(self.peak, line["peak"])


def run(
    name: str, target: Target, inputs: int, seed: int, out: Path, limits: Limits, start: int = 0,
    module: str = "fuzz.targets",
) -> Report:  # fmt: skip
    """Read the mutated inputs `start` to `start + inputs`. Those that break a limit are saved in `out`.

    `module` is where the worker process finds the target: its `TARGETS[name]`.
    """
    report, number = Report(), start
    while number < start + inputs:
        for line in _work(module, name, seed, number, start + inputs, limits):
            report.count(line)
            problems = [line["detail"]] if line["outcome"] == "failed" else []
            if line["peak"] > limits.bytes:
                problems.append(f"{line['peak'] / 1e9:.2f} GB of memory")
            if line["seconds"] > limits.seconds:
                problems.append(f"{line['seconds']:.1f} s")
            if problems:
                content = make_input(target, target.seeds(), Random(f"{seed} {name} {number}"))
                report.findings.append(_save(out, name, number, content, target.suffix, ", ".join(problems)))
            number += 1
    return report


def _work(module: str, name: str, seed: int, start: int, stop: int, limits: Limits) -> Iterator[dict[str, Any]]:
    """Yield a line per input; after a crash or a hang the last line is made up."""
    read_end, write_end = os.pipe()
    command = [sys.executable, "-m", "fuzz.worker", module, name, *map(str, (seed, start, stop, write_end))]
    with tempfile.TemporaryDirectory(prefix="aag-fuzz-") as folder, open(read_end, "rb", buffering=0) as lines:
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "OMP_NUM_THREADS": "1",
            "TMPDIR": folder,  # a killed worker cannot remove its own
        }
        process = subprocess.Popen(
            command, pass_fds=[write_end], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(write_end)
        try:
            pending, seconds, number = b"", START_SECONDS, start - 1  # the first line says that the worker is ready
            while number < stop:
                while b"\n" not in pending:
                    ready = select.select([lines], [], [], seconds)[0]
                    block = lines.read(1 << 16) if ready else b""
                    if not block:
                        process.kill()
                        code = process.wait()
                        if number < start:
                            raise RuntimeError(f"the worker did not start (exit code {code}): {' '.join(command)}")
                        detail = f"crash: exit code {code}" if ready else f"hang: more than {seconds:.0f} s"
                        yield {"outcome": "failed", "seconds": 0.0, "peak": 0, "detail": detail}
                        return
                    pending += block
                line, _, pending = pending.partition(b"\n")
                if number >= start:
                    yield json.loads(line)
                seconds, number = 3 * limits.seconds, number + 1
        finally:
            process.kill()
            process.wait()


def _save(out: Path, name: str, number: int, content: bytes, suffix: str, problem: str) -> str:
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{name}-{number}{suffix}"
    path.write_bytes(content)
    path.with_name(f"{path.name}.txt").write_text(problem + "\n")
    return f"{path}: {problem.strip().splitlines()[-1]}"
