"""python -m benchmarks: measures every stage on this machine, prints tables and saves a record."""

import argparse
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console

from aag.config import TrainConfig
from aag.errors import AAGError
from aag.files import write_json
from aag.provenance import provenance
from aag.train.runtime import decide
from benchmarks import augmentation, evaluation, startup, training
from benchmarks.plan import Plan, make_plan
from benchmarks.tables import SECTIONS, tables

WIDTH = 150  # of the tables, where the output is no terminal


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, in seconds: a test, not a measurement")
    parser.add_argument(
        "--save", metavar="PATH", help="the record's file, or none (default: results/bench/DEVICE-DATE.json; "
        "with --quick none)",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    try:
        runtime = decide(TrainConfig(device=options.device))
    except AAGError as error:
        parser.error(str(error))

    plan = make_plan(runtime.device, options.quick)
    sections: dict[str, Callable[[], dict[str, Any]]] = {
        "training": lambda: training.run(plan),  # first, while the cache of compilations is empty
        "augmentation": lambda: augmentation.run(plan, compiled=runtime.compile and not plan.quick),
        "evaluation": lambda: evaluation.run(plan, runtime.dtype),
        "startup": startup.run,
    }
    assert sections.keys() == SECTIONS.keys()
    record = _header(plan)
    path = _path(options.save, plan, record)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="aag-bench-", ignore_cleanup_errors=True) as cache:
        if runtime.compile:  # or the warm-up would depend on what ran on this machine before
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
        for name, section in sections.items():
            before = time.perf_counter()
            with console.status(f"{name} …"):
                record[name] = section()
            record[name]["section_seconds"] = time.perf_counter() - before
            record["seconds"] = time.perf_counter() - started
            if path:  # after each section, so that an interruption leaves what was measured
                path.parent.mkdir(parents=True, exist_ok=True)
                write_json(path, record)
    for table in tables(record):
        console.print(table)
    where = record["gpu"] or record["cpu_model"]
    note = "; quick: too small to mean anything" if plan.quick else ""
    console.print(
        f"{where}, CPU threads {plan.threads}, torch {record['torch']}; medians of {plan.repeats}; "
        f"load before {record['load_before']}; {record['seconds']:.0f} s{note}",
        highlight=False, soft_wrap=True,
    )  # fmt: skip
    if path:
        console.print(f"saved in {path}", highlight=False, soft_wrap=True)
    return 0


def _header(plan: Plan) -> dict[str, Any]:
    return {
        "kind": "benchmark",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "device": plan.device.type,
        "quick": plan.quick,
        "threads": plan.threads,
        "repeats": plan.repeats,
        "cpu_model": _cpu_model(),
        "load_before": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,  # others' work slows ours
        **provenance(str(plan.device)),
        "torchvision": version("torchvision"),
    }


def _path(save: str | None, plan: Plan, record: dict[str, Any]) -> Path | None:
    if save == "none" or (save is None and plan.quick):
        return None
    device = re.sub(r"\W+", "-", record["gpu"] or "cpu").lower()
    return Path(save) if save else Path("results/bench") / f"{device}-{record['date']}.json"


def _cpu_model() -> str:
    try:
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()


if __name__ == "__main__":
    sys.exit(main())
