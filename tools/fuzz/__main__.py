"""Command line: run some or all targets."""

import argparse
import sys
import time
from pathlib import Path

from fuzz.runner import Limits, run
from fuzz.targets import TARGETS


def main() -> int:
    """Fuzz the chosen targets, print a table, and return 1 if anything was found."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", help=f"of {', '.join(TARGETS)} (default: all)")
    parser.add_argument("--inputs", type=int, default=100_000, help="in all (default: %(default)s)")
    parser.add_argument("--start", type=int, default=0, help="number of the first input of each target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=Limits.seconds, help="limit per input (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("fuzz-findings"), help="where to save findings")
    parser.add_argument("--engine", choices=["mutate", "atheris"], default="mutate")
    options = parser.parse_args()
    names = options.targets or list(TARGETS)
    if unknown := set(names) - set(TARGETS):
        parser.error(f"unknown target {min(unknown)}; known: {', '.join(TARGETS)}")
    if options.engine == "atheris":
        from fuzz import guided

        return guided.main(names, -(-options.inputs // len(names)), options.seed, options.out, options.seconds)
    each, found, total = -(-options.inputs // len(names)), 0, 0
    print(
        f"{'target':16} {'inputs':>8} {'read':>8} {'refused':>8} {'slowest':>8} {'peak':>8} {'inputs/s':>8}  findings"
    )
    for name in names:
        begun = time.perf_counter()
        limits = Limits(seconds=options.seconds)
        report = run(name, TARGETS[name], each, options.seed, options.out, limits, options.start)
        speed = each / (time.perf_counter() - begun)
        counts, findings = report.outcomes, report.findings
        print(
            f"{name:16} {counts.total():8,} {counts['read']:8,} {counts['refused']:8,} {report.slowest:6.2f} s"
            f" {report.peak / 1e9:5.2f} GB {speed:8.0f}  {len(findings)}",
            flush=True,
        )
        for finding in findings[:10]:
            print(f"  {finding}", flush=True)
        found, total = found + len(findings), total + counts.total()
    print(f"{total:,} inputs, {found} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
