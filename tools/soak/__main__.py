"""Command line: run the parts, print their figures."""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import soak
from soak import damage, growth, interruptions
from soak.runs import Part, Runs


class Entry(NamedTuple):
    """A part of the soak test. `work` runs so many cases of it."""

    title: str
    work: Callable[[Runs, Part, int], None]
    cases: int  # by default


ENTRIES = {  # by the option that sets the count
    "kills": Entry("SIGKILL at random moments", interruptions.kill_randomly, 120),
    "targeted": Entry("SIGKILL at file operations", interruptions.kill_at_file_operations, 80),
    "signals": Entry("SIGTERM, SIGINT, SIGHUP", interruptions.send_signals, 30),
    "races": Entry("two commands, one new folder", interruptions.race, 20),
    "flips": Entry("bit flips, then resume", damage.flip_then_resume, 50),
    "reads": Entry("bit flips and cuts, then read", damage.damage_then_read, 500),
    "full": Entry("no space left (file size limit)", damage.fill_disk, 20),
    "readonly": Entry("read-only folder", damage.forbid_writing, 1),
    "outputs": Entry("output to a full disk, closed pipe", damage.lose_output, 6),
    "steps": Entry("a long run: growth", growth.train_long, 100_000),
}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="soak", description=soak.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, entry in ENTRIES.items():
        parser.add_argument(f"--{name}", type=int, default=entry.cases, help=f"{entry.title} (default: %(default)s)")
    methods = ["aag", "moco", "deepcluster", "and", "simclr"]
    parser.add_argument("--methods", nargs="+", default=methods, help="methods to kill at random moments")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run the parts whose count is not 0, and return 1 if a case failed."""
    options, parts = parse(arguments), []
    with tempfile.TemporaryDirectory(prefix="aag-soak-") as folder:
        runs = Runs(Path(folder), options.seed, options.methods)
        for name, entry in ENTRIES.items():
            if count := getattr(options, name):
                part, started = Part(entry.title), time.monotonic()
                entry.work(runs, part, count)
                part.seconds = round(time.monotonic() - started, 1)
                parts.append(part)
                failed, seconds = len(part.failures), part.seconds
                print(f"{part.name:<34} {part.cases:>5} cases {failed:>3} failed {seconds:>7.1f} s", flush=True)
    for part in parts:
        print(f"{part.name}: " + ", ".join(f"{name} ({count})" for name, count in part.found.items()))
    if options.json:
        figures = [{**vars(part), "found": dict(part.found)} for part in parts]
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    return int(any(part.failures for part in parts))


if __name__ == "__main__":
    sys.exit(main())
