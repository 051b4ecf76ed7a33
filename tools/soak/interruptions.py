"""Kills, signals and rivals at any moment."""

import json
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from aag.nets import load
from aag.runs import Run
from soak.runs import Part, Runs

FILE_OPERATIONS = ("replace", "link", "unlink", "fsync", "open", "write")  # of the module os
OPERATIONS_PER_RUN = 150  # about
LIVES = 8  # kills of one run at most


def kill_randomly(runs: Runs, part: Part, count: int) -> None:
    """SIGKILL at random moments, again and again until the run is complete."""
    for number, method in enumerate(runs.methods):
        seconds = runs.undisturbed(method)[1]
        kills, wanted = 0, (count + len(runs.methods) - 1 - number) // len(runs.methods)
        while kills < wanted:
            folder, lives = runs.new_folder("killed"), 0
            while kills < wanted and lives < LIVES:
                moment = runs.random.uniform(0, 0.8 * seconds)
                if runs.signal_after(runs.command(folder, method), moment) is None:
                    break
                kills, lives = kills + 1, lives + 1
                part.found[f"kills of {method}"] += 1
            same, ended = runs.resume(folder, method)
            part.check(same, f"{method} after {lives} kills: {ended}")


def kill_at_file_operations(runs: Runs, part: Part, count: int) -> None:
    """SIGKILL right before or after the n-th operation on files."""
    for number in range(count):
        place, late = runs.random.randrange(1, OPERATIONS_PER_RUN), number % 2 == 1
        folder = runs.new_folder("targeted")
        killed = runs.run(runs.command(folder), partial(_make_lethal, place, late))
        part.found["kills" if killed.code == -signal.SIGKILL else f"code {killed.code}"] += 1
        same, ended = runs.resume(folder)
        part.check(same, f"{'after' if late else 'before'} operation {place}: {ended}")


def _make_lethal(place: int, late: bool) -> None:
    """Make the n-th operation on files kill this process, after it has happened if `late`."""
    left = place

    def lethal(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0 and not late:
                os.kill(os.getpid(), signal.SIGKILL)
            result = real(*arguments, **options)
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return call

    for name in FILE_OPERATIONS:
        setattr(os, name, lethal(getattr(os, name)))


def send_signals(runs: Runs, part: Part, count: int) -> None:
    """SIGTERM, SIGINT and SIGHUP at random moments: the run stops, and resumes exactly."""
    seconds = runs.undisturbed()[1]
    for number in range(count):
        chosen = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)[number % 3]
        folder = runs.new_folder("signalled")
        stopped = runs.signal_after(runs.command(folder), runs.random.uniform(0, seconds), chosen)
        part.found[f"{chosen.name}: {f'code {stopped.code}' if stopped else 'too late'}"] += 1
        same, ended = runs.resume(folder)
        clean = stopped is None or "Traceback" not in stopped.out
        part.check(same and clean, f"{chosen.name}: {stopped}; then {ended}")


def race(runs: Runs, part: Part, count: int) -> None:
    """Two commands with different seeds and one new folder: the folder is one's, whole, and says whose."""
    for _ in range(count):
        folder, started = runs.new_folder("raced"), time.monotonic()
        processes = [runs.start(runs.command(folder, seed=seed)) for seed in (1, 2)]
        codes = [runs.wait(process, started).code for process in processes]
        config = Run(folder).settings()["train"]["seed"]
        trained = json.loads(load(folder).extra["settings"])["train"]["seed"]
        part.found[f"codes {sorted(codes)}"] += 1
        won = codes.index(0) + 1 if 0 in codes else None
        part.check(sorted(codes) == [0, 2] and config == trained == won, f"codes {codes}, {config}, {trained}")
