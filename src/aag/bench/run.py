"""Runs the sections, prints their tables and saves the record."""

import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from aag.bench import SECTIONS, augmentation, evaluation, machine, methods, startup, training, usual
from aag.bench.plan import Plan, make_plan
from aag.bench.tables import tables
from aag.config import TrainConfig
from aag.errors import AAGError, unknown
from aag.files import explain_write_errors, write_json
from aag.training.runtime import decide

FORMAT = 2  # of the record


def bench(
    console: Console,
    *,
    device: str = "auto",
    quick: bool = False,
    save: str | None = None,
    only: Sequence[str] = (),
    data: str = "sample",
    data_root: Path | None = None,
) -> dict[str, Any]:
    """The record, printed and saved. With `only`, sections that an earlier run saved in the same place are kept."""
    for name in only:
        if name not in SECTIONS:
            raise unknown("section", name, SECTIONS)
    runtime = decide(TrainConfig(device=device).validate())
    plan = make_plan(runtime.device, quick, data, data_root)
    plan.image_set(1)  # an unknown set is told at once
    wait = 0.2 if quick else 1.0
    record: dict[str, Any] = {"kind": "benchmark", "format": FORMAT, "date": datetime.now(UTC).strftime("%Y-%m-%d")}
    record |= machine.hardware(plan)
    path = _path(save, plan, record)
    if path and only and path.exists():
        record |= _kept(path, record, only)
    busy = {"before": machine.others(wait)}
    watch = machine.Others()
    with _own_compile_cache() as cache:
        work: dict[str, Callable[[], dict[str, Any]]] = {
            "startup": lambda: startup.run(plan, cache),  # first, while the cache is empty
            "training": lambda: training.run(plan),
            "usual": lambda: usual.run(plan),
            "augmentation": lambda: augmentation.run(plan),
            "evaluation": lambda: evaluation.run(plan, runtime.dtype),
            "methods": lambda: methods.run(plan),
        }
        assert work.keys() == set(SECTIONS)
        for name, section in work.items():
            if only and name not in only:
                continue
            before = time.perf_counter()
            with console.status(f"{name} …"):
                record[name] = section()
            record[name]["section_seconds"] = time.perf_counter() - before
            record["seconds"] = sum(record[name]["section_seconds"] for name in SECTIONS if name in record)
            if "usual" in record and "training" in record:
                usual.compare(record["usual"], record["training"])
            _save(path, record)  # after each section, so that an interruption leaves what was measured
    if not runtime.compile:  # the compiler's processes live on, and would count as others
        busy["during"] = watch.cores()
    busy["after"] = machine.others(wait)
    earlier = record.get("others_cpu", {})  # of the sections kept: the worst is told
    record["others_cpu"] = {when: max(taken, earlier.get(when), key=_or_nothing) for when, taken in busy.items()}
    _save(path, record)
    show(console, record)
    if path:
        console.print(f"saved in {path}", highlight=False, soft_wrap=True)
    return record


def show(console: Console, record: dict[str, Any]) -> None:
    for table in tables(record):
        console.print(table)
    where = record["gpu"] or record["cpu_model"]
    note = "; quick: too small to mean anything" if record["quick"] else ""
    told = [
        f"{where}, CPU threads {record['threads']}, torch {record['torch']}; medians of {record['repeats']}; "
        f"{record['seconds']:.0f} s{note}",
        machine.warning(record["others_cpu"]),
    ]
    for line in filter(None, told):
        console.print(line, highlight=False, soft_wrap=True)


def _path(save: str | None, plan: Plan, record: dict[str, Any]) -> Path | None:
    if save == "none" or (save is None and plan.quick):
        return None
    device = re.sub(r"\W+", "-", record["gpu"] or "cpu").lower()
    return Path(save) if save else Path("results/bench") / f"{device}-{record['date']}.json"


def _kept(path: Path, record: dict[str, Any], only: Sequence[str]) -> dict[str, Any]:
    """The sections of an earlier run on this machine, with this code, that are not measured again."""
    try:
        earlier = json.loads(path.read_text())
    except (OSError, ValueError):
        raise AAGError(f"{path} is no benchmark's record; give another --save") from None
    other = [name for name, value in record.items() if name != "date" and earlier.get(name) != value]
    if other:
        raise AAGError(
            f"{path} was measured with another {', '.join(other)}; give another --save, or run without --only"
        )
    kept = [name for name in (*SECTIONS, "others_cpu") if name in earlier and name not in only]
    return {name: earlier[name] for name in kept}


def _or_nothing(taken: float | None) -> float:
    return -1.0 if taken is None else taken


@contextmanager
def _own_compile_cache() -> Iterator[Path]:
    """An empty folder for what is compiled: or the times would depend on what ran on this machine before."""
    with tempfile.TemporaryDirectory(prefix="aag-bench-", ignore_cleanup_errors=True) as folder:
        ours = startup.compile_cache(Path(folder))
        before = {name: os.environ.get(name) for name in ours}
        os.environ.update(ours)
        try:
            yield Path(folder)
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def _save(path: Path | None, record: dict[str, Any]) -> None:
    if path:
        with explain_write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, record)
