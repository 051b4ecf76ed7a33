"""Seconds from the shell to the first line of text, and to the first training step."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from aag.bench.plan import Plan
from aag.bench.timing import measure

COMMANDS = {
    "python -c pass": ["-c", "pass"],  # what Python itself takes, of the two below
    "import aag": ["-c", "import aag"],
    "aag --help": ["-m", "aag", "--help"],
}
REPEATS = 5


def run(plan: Plan, cache: Path) -> dict[str, Any]:
    """`cache`: an empty folder for what is compiled."""
    repeats, warm_up = (1, 0) if plan.quick else (REPEATS, 1)
    rows = []
    for name, arguments in COMMANDS.items():
        command = [sys.executable, *arguments]
        timing = measure(
            lambda c=command: subprocess.run(c, check=True, capture_output=True),  # type: ignore[misc]
            repeats=repeats, warm_up=warm_up,
        )  # fmt: skip
        rows.append({"name": name, "median_seconds": timing.median, "seconds": list(timing.seconds)})
    return {
        "protocol": (
            f"a new process each time, median of {repeats}; to the first step: once, from before the process starts "
            "until the first step is done, all that aag train does before it included; cold: with an empty cache "
            "of compilations, warm: once more with what that left"
        ),
        "rows": rows + _first_steps(plan, cache),
    }


def _first_steps(plan: Plan, cache: Path) -> list[dict[str, Any]]:
    config = plan.training[0]
    with tempfile.TemporaryDirectory(prefix="aag-bench-") as folder:
        name = plan.data
        if name == "sample" and plan.cuda and not plan.quick:
            name = str(Path(folder) / "images.npz")  # of CIFAR-10's size, or loading and the first kNN would be nothing
            _write(plan, Path(name))
        options = ["--data", name, "--recipe", config.recipe, "--device", str(plan.device)]
        if plan.data_root:
            options += ["--data-root", str(plan.data_root)]
        if plan.quick:
            options += ["--width", str(config.width), "--batch-size", str(config.batch_size), "--compile", "off"]
        told = f"aag train --recipe {config.recipe}, to its first step"
        if not plan.cuda:
            return [_first_step(told, [*options, "--out", f"{folder}/run"], cache)]
        return [
            _first_step(f"{told}, {state}", [*options, "--out", f"{folder}/{state}"], cache)
            for state in ("cold", "warm")
        ]


def _first_step(name: str, options: list[str], cache: Path) -> dict[str, Any]:
    started = time.monotonic()  # the same clock in all processes of a machine
    ran = subprocess.run(
        [sys.executable, "-m", "aag.bench.first_step", repr(started), *options],
        env=os.environ | compile_cache(cache), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if ran.returncode:
        raise RuntimeError(f"{name}: {ran.stderr.strip()[-500:]}")
    found = json.loads(ran.stdout.splitlines()[-1])
    return {"name": name, "median_seconds": found["seconds"], **found}


def compile_cache(folder: Path) -> dict[str, str]:
    """Environment that keeps what is compiled in a folder of its own."""
    return {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "TRITON_CACHE_DIR": str(folder / "triton")}


def _write(plan: Plan, path: Path) -> None:
    parts = {"train": plan.training_images, "test": plan.knn_test}
    arrays = {f"{part}_images": plan.photographs(count).numpy() for part, count in parts.items()}
    labels = {f"{part}_labels": np.arange(count) % 10 for part, count in parts.items()}
    np.savez(path, **arrays, **labels)  # type: ignore[arg-type]
