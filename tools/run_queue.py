"""Run the commands of results/queue.md in order, for a limited time.

    python tools/run_queue.py --minutes 9                # run; stop in time; the same command resumes
    python tools/run_queue.py --minutes 9 --match isif   # only commands that contain this text
    python tools/run_queue.py --list                     # what would run, and what has

The output of each command and the list of finished ones are in runs/queue.
"""

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from aag.files import write_json
from aag.signals import INTERRUPTED, RESUMABLE, SAVE_SECONDS
from aag.text import duration

ROOT = Path(__file__).parent.parent
QUEUE = ROOT / "results" / "queue.md"
FOLDER = ROOT / "runs" / "queue"
PROGRAMS = ("aag", "pytest")
MIN_SECONDS = 60.0  # to start another command
KILL_SECONDS = 60.0  # after the signal to stop
STOPPED = (INTERRUPTED, RESUMABLE, -signal.SIGTERM)  # exit codes; the last one of programs that cannot resume


def read_commands(path: Path = QUEUE) -> list[str]:
    """Return the commands of a queue: table rows whose first cell is one command and nothing else."""
    pattern = rf"^\| `((?:\w+=\S+ )*(?:{'|'.join(PROGRAMS)}) [^`]+)` \|"
    return re.findall(pattern, path.read_text(), re.MULTILINE)


def split_command(command: str) -> tuple[dict[str, str], list[str]]:
    """Return the environment variables that a command sets, and its words for this Python."""
    words = shlex.split(command)
    count = next(i for i, word in enumerate(words) if word in PROGRAMS)
    return dict(word.split("=", 1) for word in words[:count]), [sys.executable, "-m", *words[count:]]


class Runner:
    """Runs commands until a deadline, and remembers which are finished."""

    def __init__(self, folder: Path, deadline: float, say: Callable[[str], None] = print) -> None:
        self.folder, self.deadline, self.say = folder, deadline, say
        self.state_file = folder / "state.json"
        self.states: dict[str, str] = json.loads(self.state_file.read_text()) if self.state_file.exists() else {}

    def run_all(self, commands: list[str]) -> int:
        """Run what is not finished. Return 0, 75 if the time was too short, or 1 if a command failed."""
        for command in commands:
            if self.states.get(command) in ("done", "failed"):
                continue
            if self.seconds_left() < MIN_SECONDS:
                return RESUMABLE
            self.run(command)
            if self.states[command] == "stopped":
                return RESUMABLE
        return int("failed" in map(self.states.get, commands))

    def seconds_left(self) -> float:
        return self.deadline - time.monotonic() - SAVE_SECONDS

    def run(self, command: str) -> None:
        """Run one command, with its output in a file of its own; stop it in time to save."""
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.folder / f"{re.sub('[^a-z0-9]+', '-', command.lower()).strip('-')[:100]}.log"
        changes, words = split_command(command)
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", **changes}
        started = time.monotonic()
        with log.open("a") as output:
            process = subprocess.Popen(words, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
            try:
                code = process.wait(self.seconds_left())
            except subprocess.TimeoutExpired:
                process.terminate()
                try:
                    code = process.wait(KILL_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
                    code = process.wait()
            except BaseException:  # Ctrl-C reaches the command, too
                process.wait()
                raise
        state = "done" if code == 0 else "stopped" if code in STOPPED else "failed"
        self.states[command] = state
        write_json(self.state_file, self.states)
        self.say(f"{state:<8} {duration(time.monotonic() - started):>12}  {command}")
        if state == "failed":
            self.say(f"         exit code {code}; the end of {log}:")
            self.say("\n".join(log.read_text(errors="replace").splitlines()[-15:]))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop and save within this time")
    parser.add_argument("--match", default="", metavar="TEXT", help="run only commands that contain this text")
    parser.add_argument("--list", action="store_true", help="list the commands and run nothing")
    options = parser.parse_args(arguments)
    runner = Runner(FOLDER, time.monotonic() + 60 * options.minutes)
    commands = [command for command in read_commands() if options.match.lower() in command.lower()]
    if options.list:
        for command in commands:
            print(f"{runner.states.get(command, 'to do'):<8} {command}")
        return 0
    return runner.run_all(commands)


if __name__ == "__main__":
    sys.exit(main())
