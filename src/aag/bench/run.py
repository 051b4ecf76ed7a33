"""Run the sections, print their tables and save the record."""

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
from rich.table import Table

from aag.bench import (
    SECTIONS,
    augmentation,
    decoding,
    evaluation,
    machine,
    methods,
    photographs,
    pipeline,
    serving,
    startup,
    training,
)
from aag.bench.plan import Plan, make_plan
from aag.bench.tables import tables
from aag.errors import AAGError, unknown_name
from aag.files import explain_write_errors, write_json
from aag.training.runtime import find_device

FORMAT = 2  # of the record


def bench(
    console: Console,
    *,
    device: str = "auto",
    quick: bool = False,
    save: str = "",
    only: Sequence[str] = (),
    data: str = "sample",
    data_root: str = "",
) -> dict[str, Any]:
    """Measure, print, save and return the record. With `only`, other sections saved in the same file are kept."""
    only = [name for words in only for name in words.split(",")]
    for name in only:
        if name not in SECTIONS:
            raise unknown_name("section", name, SECTIONS)
    plan = make_plan(find_device(device), quick, data, Path(data_root) if data_root else None)
    plan.image_set(1)  # reports unknown data at once
    record: dict[str, Any] = {"kind": "benchmark", "format": FORMAT, "date": datetime.now(UTC).strftime("%Y-%m-%d")}
    record |= machine.hardware(plan)
    path = _path(save, plan, record)
    if path and only and path.exists():
        record |= _load_kept(path, record, only)
    seconds = 0.2 if quick else 1.0
    load: dict[str, float | None] = {"before": machine.other_load(seconds)}
    during = machine.OtherLoad()
    with _empty_compile_cache() as cache:
        work: dict[str, Callable[[], dict[str, Any]]] = {
            "startup": lambda: startup.run(plan, cache),  # first, while the cache is empty
            "training": lambda: training.run(plan),
            "pipeline": lambda: pipeline.run(plan),
            "photographs": lambda: photographs.run(plan),
            "decoding": lambda: decoding.run(plan),
            "augmentation": lambda: augmentation.run(plan),
            "evaluation": lambda: evaluation.run(plan),
            "serving": lambda: serving.run(plan),
            "methods": lambda: methods.run(plan),
        }
        assert work.keys() == set(SECTIONS)
        for name, measure in work.items():
            if only and name not in only:
                continue
            started = time.perf_counter()
            with console.status(f"{name} …"):
                record[name] = measure()
            record[name]["section_seconds"] = time.perf_counter() - started
            record["seconds"] = sum(record[name]["section_seconds"] for name in SECTIONS if name in record)
            if "pipeline" in record and "training" in record:
                pipeline.compare(record["pipeline"], record["training"])
            _save(path, record)  # after each section: an interruption loses only the current one
    load |= {"during": during.cores(), "after": machine.other_load(seconds)}
    kept = record.get("others_cpu", {})  # of kept sections: the higher load counts
    record["others_cpu"] = {
        when: max((cores, kept.get(when)), key=lambda each: -1.0 if each is None else each)
        for when, cores in load.items()
    }
    _save(path, record)
    show(console, record)
    if path:
        console.print(f"saved in {path}", highlight=False, soft_wrap=True)
    return record


def show(console: Console, record: dict[str, Any]) -> None:
    """Print a record's tables, the machine, and a warning where other processes used it."""
    for table in tables(record):
        printed = Table(title=table.title, title_justify="left", caption=table.note, caption_justify="left")
        for place, heading in enumerate(table.columns):
            printed.add_column(heading, justify="right" if place else "left")
        for cells in table.cells(table.columns):
            printed.add_row(*(text.replace("**", "") for text in cells))
        console.print(printed)
    note = "; --quick: too small to mean anything" if record["quick"] else ""
    lines = [
        f"{record['gpu'] or record['cpu_model']}, CPU threads {record['threads']}, torch {record['torch']}; "
        f"medians of {record['repeats']}; {record['seconds']:.0f} s{note}",
        machine.load_warning(record["others_cpu"]),
    ]
    for line in filter(None, lines):
        console.print(line, highlight=False, soft_wrap=True)


def _path(save: str, plan: Plan, record: dict[str, Any]) -> Path | None:
    if save == "none" or (not save and plan.quick):
        return None
    device = re.sub(r"\W+", "-", record["gpu"] or "cpu").lower()
    return Path(save) if save else Path("results/bench") / f"{device}-{record['date']}.json"


def _load_kept(path: Path, record: dict[str, Any], only: Sequence[str]) -> dict[str, Any]:
    """Return the sections of a saved record that are not measured again; same machine and code required."""
    try:
        saved = json.loads(path.read_text())
    except (OSError, ValueError):
        raise AAGError(f"{path} is not a benchmark record; give another --save") from None
    different = [name for name, value in record.items() if name != "date" and saved.get(name) != value]
    if different:
        raise AAGError(
            f"{path} was measured with another {', '.join(different)}; give another --save, or run without --only"
        )
    return {name: saved[name] for name in (*SECTIONS, "others_cpu") if name in saved and name not in only}


@contextmanager
def _empty_compile_cache() -> Iterator[Path]:
    """Compile into an empty folder: times must not depend on what ran on this machine before."""
    with tempfile.TemporaryDirectory(prefix="aag-bench-", ignore_cleanup_errors=True) as folder:
        variables = startup.compile_cache(Path(folder))
        before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
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
