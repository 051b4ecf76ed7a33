"""Small runs in processes of their own, and what must not depend on what happens to them."""

import os
import random
import re
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import aag.cli.train  # noqa: F401 (before the forks)
from aag.cli import main
from aag.runs import Run

OPTIONS = {  # what a method needs on so few images
    "moco": ["--bn-group-size", "8", "--queue", "32"], "deepcluster": ["--clusters", "8"], "and": ["--rounds", "2"],
    "super-and": ["--rounds", "2"],
}  # fmt: skip
TIMES = ("seconds", "views_per_second", "evaluation_seconds")
MAX_SECONDS = 600.0  # for one command; a longer one hangs


@dataclass
class Part:
    """What came of one part."""

    name: str
    cases: int = 0
    failures: list[str] = field(default_factory=list)
    found: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def check(self, passed: bool, case: str) -> None:
        self.cases += 1
        if not passed:
            self.failures.append(case)
            print(f"  FAILED {self.name}: {case}", flush=True)


@dataclass(frozen=True)
class CommandResult:
    """How a command ended."""

    code: int  # negative: the signal that killed it
    out: str
    seconds: float

    def __str__(self) -> str:
        return f"code {self.code}; {self.out[-300:]}"

    @property
    def is_one_line(self) -> bool:
        return self.code == 2 and "Traceback" not in self.out and len(re.findall(r"^error: ", self.out, re.M)) == 1


class Runs:
    """A folder of runs, and the commands that make them."""

    def __init__(self, folder: Path, seed: int, methods: list[str]) -> None:
        self.folder, self.random, self.methods = folder, random.Random(seed), methods
        self.data, self.log = folder / "images.npz", folder / "output.txt"
        pixels = np.random.default_rng(seed).integers(0, 256, (136, 16, 16, 3), np.uint8)
        labels = np.arange(136) % 4
        np.savez(
            self.data, train_images=pixels[:96], train_labels=labels[:96], test_images=pixels[96:],
            test_labels=labels[96:],
        )  # fmt: skip

    # --- commands -----------------------------------------------------------------------------------------------------

    def command(self, out: Path, method: str = "aag", seed: int = 0) -> list[str]:
        return [
            "train", "--data", str(self.data), "--method", method, "--out", str(out), "--seed", str(seed),
            "--width", "4", "--epochs", "2", "--batch-size", "16", "--knn-every", "1", "--device", "cpu",
            "--checkpoint-minutes", "0", "--no-report", *OPTIONS.get(method, []),
        ]  # fmt: skip

    def start(self, command: list[str], prepare: Callable[[], None] = lambda: None, out: str = "") -> int:
        """Start a command in a new process and return its id. `prepare` runs in it first."""
        process = os.fork()
        if process:
            return process
        try:
            written = os.open(out or self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o666)
            os.dup2(written, 1)
            os.dup2(written if not out else os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666), 2)
            prepare()
            sys.stdout, sys.stderr = (open(number, "w", 1, closefd=False) for number in (1, 2))  # noqa: SIM115
            code = main(command)
            sys.stdout.flush()
        except BaseException:
            traceback.print_exc()
            code = 70
        os._exit(code)

    def wait(self, process: int, started: float) -> CommandResult:
        """Wait for a command. Kill it if it hangs."""
        while True:
            done, status = os.waitpid(process, os.WNOHANG)
            if done:
                break
            if time.monotonic() - started > MAX_SECONDS:
                os.kill(process, signal.SIGKILL)
            time.sleep(0.005)
        out = self.log.read_text(errors="replace")
        return CommandResult(os.waitstatus_to_exitcode(status), out, time.monotonic() - started)

    def run(self, command: list[str], prepare: Callable[[], None] = lambda: None, out: str = "") -> CommandResult:
        started = time.monotonic()
        return self.wait(self.start(command, prepare, out), started)

    def signal_after(
        self, command: list[str], seconds: float, number: signal.Signals = signal.SIGKILL
    ) -> CommandResult | None:
        """Start a command and send it a signal. None: it had ended before."""
        started = time.monotonic()
        process = self.start(command)
        time.sleep(seconds)
        if os.waitpid(process, os.WNOHANG)[0]:
            return None
        os.kill(process, number)
        return self.wait(process, started)

    # --- runs ---------------------------------------------------------------------------------------------------------

    def new_folder(self, name: str) -> Path:
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        return folder

    @cache  # noqa: B019 (there is one object)
    def undisturbed(self, method: str = "aag") -> tuple[Path, float]:
        """Return a run that nothing happened to, and the seconds it took."""
        folder = self.new_folder(f"undisturbed-{method}")
        ended = self.run(self.command(folder, method))
        assert ended.code == 0, f"{method} alone: {ended}"
        return folder, ended.seconds

    def copy_stopped(self, name: str) -> Path:
        """Return a copy of a run that was killed half way, with two checkpoints."""
        return Path(shutil.copytree(self._stopped(), self.new_folder(name)))

    @cache  # noqa: B019
    def _stopped(self) -> Path:
        seconds = self.undisturbed()[1]
        while True:
            folder = self.new_folder("stopped")
            self.signal_after(self.command(folder), self.random.uniform(0.3, 0.9) * seconds)
            if (folder / "last.1.ckpt").exists() and Run(folder).metrics()[-1]["epoch"] < 2:
                return folder

    def resume(self, folder: Path, method: str = "aag") -> tuple[bool, CommandResult]:
        """Run the command of a folder to its end. The first result: the run is as if nothing had happened."""
        ended = self.run(self.command(folder, method))
        return ended.code == 0 and self.is_undisturbed(folder, method), ended

    def is_undisturbed(self, folder: Path, method: str = "aag") -> bool:
        """Return whether a complete run equals the undisturbed one, and no temporary file is left."""
        temporary = [path for path in folder.iterdir() if path.name.endswith(".tmp")]
        return content(folder) == content(self.undisturbed(method)[0]) and not temporary


def content(folder: Path) -> tuple[bytes, list[dict[str, Any]]]:
    """Return what must not depend on interruptions: the encoder's bytes, and what was logged without times."""
    rows = [row for row in Run(folder).metrics() if row["kind"] not in ("start", "note")]
    timeless = [{name: value for name, value in row.items() if name not in TIMES} for row in rows]
    return (folder / "encoder.safetensors").read_bytes(), timeless
