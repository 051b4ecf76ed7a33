"""Soak test of `aag train`: kill, damage and starve small runs, and compare each with one that nothing happened to.

    python tools/soak.py                       # all parts with the default counts
    python tools/soak.py --kills 20 --steps 0  # fewer kills, no long run

Every case is a real process, forked after the imports. A case passes if the same command then ends with the bytes of
the undisturbed run, or says in one line why it cannot. The exit code is 1 if a case failed.
"""

import argparse
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # and no threads before a fork

import numpy as np
import torch

import aag.cli.train  # noqa: F401 (before the forks)
from aag.cli import main
from aag.errors import AAGError
from aag.nets import load
from aag.runs import Run
from aag.training import Callback, checkpoint, train

NOBODY = 65534  # a user who may not write to root's folders
OPTIONS = {  # what a method needs on so few images
    "moco": ["--bn-group-size", "8", "--queue", "32"], "deepcluster": ["--clusters", "8"], "and": ["--rounds", "2"],
    "super-and": ["--rounds", "2"],
}  # fmt: skip
TIMES = ("seconds", "views_per_second", "evaluation_seconds")
SECONDS_AT_MOST = 600.0  # for one command; a longer one hangs


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
class Ended:
    """How a command ended."""

    code: int  # negative: the signal that killed it
    out: str
    seconds: float

    @property
    def is_one_line(self) -> bool:
        return self.code == 2 and "Traceback" not in self.out and len(re.findall(r"^error: ", self.out, re.M)) == 1


class Soak:
    """A folder of runs, and the commands that make them."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.draw = folder, random.Random(seed)
        self.data, self.log = folder / "images.npz", folder / "output.txt"
        pixels = np.random.default_rng(seed).integers(0, 256, (136, 16, 16, 3), np.uint8)
        labels = np.arange(136) % 4
        np.savez(
            self.data, train_images=pixels[:96], train_labels=labels[:96], test_images=pixels[96:],
            test_labels=labels[96:],
        )  # fmt: skip

    def words(self, out: Path, method: str = "aag", seed: int = 0) -> list[str]:
        return [
            "train", "--data", str(self.data), "--method", method, "--out", str(out), "--seed", str(seed),
            "--width", "4", "--epochs", "2", "--batch-size", "16", "--knn-every", "1", "--device", "cpu",
            "--checkpoint-minutes", "0", "--no-report", *OPTIONS.get(method, []),
        ]  # fmt: skip

    def start(self, words: list[str], prepare: Callable[[], None] = lambda: None, out: str = "") -> int:
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
            code = main(words)
            sys.stdout.flush()
        except BaseException:
            import traceback

            traceback.print_exc()
            code = 70
        os._exit(code)

    def end(self, process: int, started: float) -> Ended:
        """Wait for a command."""
        while True:
            done, status = os.waitpid(process, os.WNOHANG)
            if done:
                break
            if time.monotonic() - started > SECONDS_AT_MOST:
                os.kill(process, signal.SIGKILL)
            time.sleep(0.005)
        return Ended(
            os.waitstatus_to_exitcode(status), self.log.read_text(errors="replace"), time.monotonic() - started
        )

    def run(self, words: list[str], prepare: Callable[[], None] = lambda: None, out: str = "") -> Ended:
        started = time.monotonic()
        return self.end(self.start(words, prepare, out), started)

    def kill_after(self, words: list[str], seconds: float, number: signal.Signals = signal.SIGKILL) -> Ended:
        started = time.monotonic()
        process = self.start(words)
        time.sleep(seconds)
        if os.waitpid(process, os.WNOHANG)[0]:
            return Ended(0, "", seconds)
        os.kill(process, number)
        return self.end(process, started)

    def fresh(self, name: str) -> Path:
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        return folder

    def stopped(self, name: str, template: Path) -> Path:
        """Return a copy of a run that was stopped half way."""
        return Path(shutil.copytree(template, self.fresh(name)))


def content(folder: Path) -> tuple[bytes, list[dict[str, Any]]]:
    """Return what must not depend on interruptions: the encoder's bytes, and what was logged without times."""
    rows = [row for row in Run(folder).metrics() if row["kind"] not in ("start", "note")]
    kept = [{name: value for name, value in row.items() if name not in TIMES} for row in rows]
    return (folder / "encoder.safetensors").read_bytes(), kept


def temporaries(folder: Path) -> int:
    return sum(path.name.endswith(".tmp") for path in folder.iterdir())


# --- parts ------------------------------------------------------------------------------------------------------------


def kill_randomly(soak: Soak, part: Part, count: int, methods: list[str]) -> None:
    """SIGKILL at random moments, again and again until the run is complete."""
    methods = list(dict.fromkeys(["aag", *methods]))  # later parts compare with aag's
    for number, method in enumerate(methods):
        whole = soak.fresh(f"whole-{method}")
        ended = soak.run(soak.words(whole, method))
        part.check(ended.code == 0, f"{method} alone: code {ended.code}")
        kills, wanted = 0, (count + len(methods) - 1 - number) // len(methods)
        while kills < wanted:
            folder = soak.fresh("killed")
            words = soak.words(folder, method)
            lives = 0
            while kills < wanted and lives < 8:
                killed = soak.kill_after(words, soak.draw.uniform(0, 0.8 * ended.seconds))
                if killed.code == 0:
                    break
                kills, lives = kills + 1, lives + 1
                part.found[f"kills of {method}"] += 1
            final = soak.run(words)
            same = final.code == 0 and content(folder) == content(whole) and not temporaries(folder)
            part.check(same, f"{method} after {lives} kills: code {final.code}; {final.out[-300:]}")


def kill_at_file_operations(soak: Soak, part: Part, count: int) -> None:
    """SIGKILL right before or after the n-th operation on files."""
    whole = soak.folder / "whole-aag"
    operations = ("replace", "link", "unlink", "fsync", "open", "write")
    for number in range(count):
        place, late = soak.draw.randrange(1, 150), number % 2 == 1  # a run has about so many

        def prepare(place: int = place, late: bool = late) -> None:
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

            for name in operations:
                setattr(os, name, lethal(getattr(os, name)))

        folder = soak.fresh("targeted")
        killed = soak.run(soak.words(folder), prepare)
        part.found["kills" if killed.code == -signal.SIGKILL else f"code {killed.code}"] += 1
        final = soak.run(soak.words(folder))
        same = final.code == 0 and content(folder) == content(whole) and not temporaries(folder)
        part.check(same, f"{'after' if late else 'before'} operation {place}: code {final.code}; {final.out[-300:]}")


def signals(soak: Soak, part: Part, count: int) -> None:
    """SIGTERM, SIGINT and SIGHUP at random moments: the run stops, and resumes exactly."""
    whole = soak.folder / "whole-aag"
    seconds = soak.run(soak.words(soak.fresh("timed"))).seconds
    for number in range(count):
        chosen = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)[number % 3]
        folder = soak.fresh("signalled")
        ended = soak.kill_after(soak.words(folder), soak.draw.uniform(0, seconds), chosen)
        part.found[f"{chosen.name}: code {ended.code}"] += 1
        final = soak.run(soak.words(folder))
        same = final.code == 0 and content(folder) == content(whole) and "Traceback" not in ended.out
        part.check(same, f"{chosen.name}: code {final.code}; {ended.out[-300:]} {final.out[-300:]}")


def flip_bits(soak: Soak, part: Part, count: int, template: Path) -> None:
    """One flipped bit in a file of a stopped run: the same command ends with the same bytes, or names the damage."""
    whole = content(soak.folder / "whole-aag")
    for number in range(count):
        name = ("last.ckpt", "last.1.ckpt", "encoder.safetensors", "config.json", "metrics.jsonl")[number % 5]
        folder = soak.stopped("damaged", template)
        _flip(folder / name, soak.draw)
        ended = soak.run(soak.words(folder))
        exact = ended.code == 0 and content(folder)[0] == whole[0]
        part.found[f"{name}: {'exact' if exact else 'named' if ended.is_one_line else 'FAILED'}"] += 1
        part.check(exact or ended.is_one_line, f"{name}: code {ended.code}; {ended.out[-300:]}")
        if name.startswith("last"):
            part.check(exact, f"{name} was not recovered: {ended.out[-300:]}")


def read_flipped(soak: Soak, part: Part, count: int, template: Path) -> None:
    """Flipped bits and cuts in the encoder and the checkpoint: none may be read as if it were whole."""
    readers: dict[str, Callable[[Path], object]] = {"encoder.safetensors": load, "last.ckpt": checkpoint.load}
    for name, read in readers.items():
        for number in range(count):
            path = soak.folder / name
            shutil.copyfile(template / name, path)
            if number % 10:
                _flip(path, soak.draw)
            else:
                os.truncate(path, soak.draw.randrange(path.stat().st_size))
            try:
                read(path)
                part.check(False, f"{name}: damage {number} was read")
            except AAGError:
                part.check(True, "")


def fill_disk(soak: Soak, part: Part, count: int, template: Path) -> None:
    """Files may grow to a random size only: one line, and the next command with room ends with the same bytes."""
    whole = content(soak.folder / "whole-aag")
    largest = (template / "last.ckpt").stat().st_size
    for _ in range(count):
        folder, limit = soak.stopped("full", template), int(soak.draw.uniform(0, largest))

        def prepare(limit: int = limit) -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        ended = soak.run(soak.words(folder), prepare, out="/dev/null")
        final = soak.run(soak.words(folder))
        passed = ended.is_one_line and final.code == 0 and content(folder) == whole
        part.check(
            passed, f"limit {limit}: code {ended.code}, {ended.out[-300:]}; then {final.code}, {final.out[-300:]}"
        )


def forbid_writing(soak: Soak, part: Part, template: Path) -> None:
    """A folder that may not be written to: one line, and nothing changed."""
    folder = soak.stopped("forbidden", template)
    for path in (folder, *folder.iterdir()):
        path.chmod(0o555 if path.is_dir() else 0o444)
    soak.folder.chmod(0o755)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    ended = soak.run(soak.words(folder), lambda: os.setuid(NOBODY) if os.getuid() == 0 else None)
    same = before == {path.name: path.read_bytes() for path in folder.iterdir()}
    folder.chmod(0o755)
    part.check(ended.is_one_line and same, f"code {ended.code}; {ended.out[-300:]}")


def race(soak: Soak, part: Part, count: int) -> None:
    """Two commands with different seeds and one new folder: the folder is one's, whole, and says whose."""
    for _ in range(count):
        folder, started = soak.fresh("raced"), time.monotonic()
        processes = [soak.start(soak.words(folder, seed=seed)) for seed in (1, 2)]
        codes = [soak.end(process, started).code for process in processes]
        config = Run(folder).settings()["train"]["seed"]
        trained = json.loads(load(folder).extra["settings"])["train"]["seed"]
        part.found[f"codes {sorted(codes)}"] += 1
        won = codes.index(0) + 1 if 0 in codes else None
        part.check(sorted(codes) == [0, 2] and config == trained == won, f"codes {codes}, {config}, {trained}")


def lose_output(soak: Soak, part: Part, count: int) -> None:
    """Output to a full disk or to a reader that is gone: the run ends as always."""
    whole = content(soak.folder / "whole-aag")

    def closed_pipe() -> None:
        reader, writer = os.pipe()
        os.close(reader)
        os.dup2(writer, 1)

    for number in range(count):
        folder = soak.fresh("unheard")
        lost: dict[str, Any] = {"out": "/dev/full"} if number % 2 else {"prepare": closed_pipe}
        ended = soak.run(soak.words(folder), **lost)
        part.check(ended.code == 0 and content(folder) == whole, f"{lost}: code {ended.code}; {ended.out[-300:]}")


# --- a long run -------------------------------------------------------------------------------------------------------


class Watch(Callback):
    """Samples memory, open files and threads of this process, and the files of the run, at tenths of the run."""

    def __init__(self, steps: int) -> None:
        self.steps, self.samples = steps, []  # type: ignore[var-annotated]

    def on_step(self, trainer: Any, loss: float) -> None:
        step = trainer.position()["step"]
        if step % (self.steps // 10) == 0:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            counts = {"files": "/proc/self/fd", "threads": "/proc/self/task", "run_files": trainer.run.folder}
            sample = {name: len(os.listdir(path)) for name, path in counts.items()}
            self.samples.append({"step": step, "MB": round(pages * 4096 / 1e6, 1), **sample})


def train_long(soak: Soak, part: Part, steps: int) -> None:
    """Many steps of a tiny network: memory, files and threads after a tenth of the run and at its end."""
    result = soak.folder / "long.json"

    def work() -> None:
        images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (400, 3, 8, 8), np.uint8))
        network = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
        watch = Watch(steps)
        train(
            images, method="simclr", network=network, out=soak.fresh("long"), epochs=steps // 100, batch_size=4,
            knn_every=0, checkpoint_minutes=0.1, device="cpu", lr=0.001, schedule="constant", callbacks=[watch],
        )  # fmt: skip
        result.write_text(json.dumps(watch.samples))

    process, started = os.fork(), time.monotonic()
    if not process:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    samples = json.loads(result.read_text()) if result.exists() else []
    if not samples:
        part.check(False, f"code {status}")
        return
    first, last = samples[0], samples[-1]
    for name in ("files", "threads", "run_files"):
        part.found[f"{name}: {first[name]} → {last[name]}"] = 1
        part.check(last[name] <= first[name], f"{name} grew from {first[name]} to {last[name]}")
    part.found[f"MB: {first['MB']} → {last['MB']}"] = 1
    part.found[f"steps/s: {round(steps / (time.monotonic() - started))}"] = 1
    part.check(last["MB"] - first["MB"] < 10, f"memory grew from {first['MB']} to {last['MB']} MB")


def _flip(path: Path, draw: random.Random) -> None:
    damaged = bytearray(path.read_bytes())
    damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
    path.write_bytes(damaged)


def soak(options: argparse.Namespace, folder: Path) -> list[Part]:
    soak, parts = Soak(folder, options.seed), []
    template = soak.fresh("template")

    def measure(name: str, work: Callable[..., None], *arguments: Any) -> None:
        part, started = Part(name), time.monotonic()
        work(soak, part, *arguments)
        part.seconds = round(time.monotonic() - started, 1)
        parts.append(part)
        print(f"{name:<34} {part.cases:>5} cases {len(part.failures):>3} failed {part.seconds:>7.1f} s", flush=True)

    measure("SIGKILL at random moments", kill_randomly, options.kills, options.methods)
    seconds = soak.run(soak.words(template)).seconds  # then stopped half way: the template of damaged runs
    while not (template / "last.1.ckpt").exists() or Run(template).metrics()[-1]["epoch"] == 2:
        shutil.rmtree(template, ignore_errors=True)
        soak.kill_after(soak.words(template), soak.draw.uniform(0.3, 0.9) * seconds)
        template.mkdir(exist_ok=True)
    measure("SIGKILL at file operations", kill_at_file_operations, options.targeted)
    measure("SIGTERM, SIGINT, SIGHUP", signals, options.signals)
    measure("bit flips, then resume", flip_bits, options.flips, template)
    measure("bit flips and cuts, then read", read_flipped, options.reads, template)
    measure("no space left (file size limit)", fill_disk, options.full, template)
    measure("read-only folder", forbid_writing, template)
    measure("two commands, one new folder", race, options.races)
    measure("output to a full disk, closed pipe", lose_output, options.outputs)
    if options.steps:
        measure(f"{options.steps:,} steps: growth", train_long, options.steps)
    return parts


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    counts = {"kills": 120, "targeted": 80, "signals": 30, "flips": 50, "reads": 500, "full": 20, "races": 20}
    for name, count in {**counts, "outputs": 6, "steps": 100_000, "seed": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=count, help="default: %(default)s")
    methods = ["aag", "moco", "deepcluster", "and", "simclr"]
    parser.add_argument("--methods", nargs="+", default=methods, help="for random kills, in addition to aag")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    options = parse()
    with tempfile.TemporaryDirectory(prefix="aag-soak-") as temporary:
        parts = soak(options, Path(temporary))
    for part in parts:
        print(f"{part.name}: " + ", ".join(f"{name} ({count})" for name, count in part.found.items()))
    if options.json:
        options.json.write_text(
            json.dumps([{**vars(part), "found": dict(part.found)} for part in parts], indent=1) + "\n"
        )
    sys.exit(any(part.failures for part in parts))
