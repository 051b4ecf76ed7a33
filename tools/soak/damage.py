"""Damaged files, full disks, forbidden folders and lost output."""

import os
import random
import resource
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aag.errors import AAGError
from aag.nets import load
from aag.training import checkpoint
from soak.runs import Part, Runs, content

NOBODY = 65534  # a user who may not write to root's folders
FILES = ("last.ckpt", "last.1.ckpt", "encoder.safetensors", "config.json", "metrics.jsonl")


def flip_then_resume(runs: Runs, part: Part, count: int) -> None:
    """One flipped bit in a file of a stopped run: the same command ends with the same bytes, or names the damage."""
    encoder = content(runs.undisturbed()[0])[0]
    for number in range(count):
        name, folder = FILES[number % len(FILES)], runs.copy_stopped("damaged")
        _flip_bit(folder / name, runs.random)
        ended = runs.run(runs.command(folder))
        exact = ended.code == 0 and content(folder)[0] == encoder  # a flipped row of metrics is lost
        part.found[f"{name}: {'exact' if exact else 'named' if ended.is_one_line else 'FAILED'}"] += 1
        part.check(exact or (ended.is_one_line and not name.startswith("last")), f"{name}: {ended}")


def damage_then_read(runs: Runs, part: Part, count: int) -> None:
    """Flipped bits and cuts in the encoder and the checkpoint: none may be read as if it were whole."""
    readers: dict[str, Callable[[Path], object]] = {"encoder.safetensors": load, "last.ckpt": checkpoint.load}
    whole = runs.copy_stopped("whole")
    for name, read in readers.items():
        for number in range(count):
            path = runs.folder / name
            shutil.copyfile(whole / name, path)
            if number % 10:
                _flip_bit(path, runs.random)
            else:
                os.truncate(path, runs.random.randrange(path.stat().st_size))
            try:
                read(path)
                part.check(False, f"{name}: damage {number} was read")
            except AAGError:
                part.check(True, "")


def fill_disk(runs: Runs, part: Part, count: int) -> None:
    """Files may grow to a random size only: one line, and the next command with room ends with the same bytes."""
    for _ in range(count):
        folder = runs.copy_stopped("full")
        limit = int(runs.random.uniform(0, (folder / "last.ckpt").stat().st_size))

        def prepare(limit: int = limit) -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        stopped = runs.run(runs.command(folder), prepare, out="/dev/null")
        same, ended = runs.resume(folder)
        part.check(stopped.is_one_line and same, f"limit {limit}: {stopped}; then {ended}")


def forbid_writing(runs: Runs, part: Part, count: int) -> None:
    """A folder that may not be written to: one line, and nothing changed."""
    runs.folder.chmod(0o755)
    for _ in range(count):
        folder = runs.copy_stopped("forbidden")
        for path in (folder, *folder.iterdir()):
            path.chmod(0o555 if path.is_dir() else 0o444)
        before = {path.name: path.read_bytes() for path in folder.iterdir()}
        ended = runs.run(runs.command(folder), lambda: os.setuid(NOBODY) if os.getuid() == 0 else None)
        same = before == {path.name: path.read_bytes() for path in folder.iterdir()}
        folder.chmod(0o755)
        part.check(ended.is_one_line and same, str(ended))


def lose_output(runs: Runs, part: Part, count: int) -> None:
    """Output to a full disk or to a reader that is gone: the run ends as always."""

    def close_pipe() -> None:
        reader, writer = os.pipe()
        os.close(reader)
        os.dup2(writer, 1)

    for number in range(count):
        folder = runs.new_folder("unheard")
        lost: dict[str, Any] = {"out": "/dev/full"} if number % 2 else {"prepare": close_pipe}
        ended = runs.run(runs.command(folder), **lost)
        part.check(ended.code == 0 and runs.is_undisturbed(folder), f"{lost}: {ended}")


def _flip_bit(path: Path, draw: random.Random) -> None:
    damaged = bytearray(path.read_bytes())
    damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
    path.write_bytes(damaged)
