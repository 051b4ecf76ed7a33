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
from aag.data import DATASETS

COMMANDS = {
    "python -c pass": ["-c", "pass"],  # Python's own share of the two below
    "import aag": ["-c", "import aag"],
    "aag --help": ["-m", "aag", "--help"],
}
REPEATS = 5


def run(plan: Plan, cache: Path) -> dict[str, Any]:
    """`cache`: an empty folder for compiled kernels."""
    repeats, warm_up = (1, 0) if plan.quick else (REPEATS, 1)
    rows = []
    for name, arguments in COMMANDS.items():
        command = [sys.executable, *arguments]
        timing = measure(
            lambda command=command: subprocess.run(command, check=True, capture_output=True),  # type: ignore[misc]
            repeats=repeats, warm_up=warm_up,
        )  # fmt: skip
        rows.append({"name": name, "median_seconds": timing.median, "seconds": list(timing.seconds)})
    return {
        "protocol": (
            f"a new process each time, median of {repeats}; first step: once, from before the process starts until "
            "the first step is done, with all that aag train does before it except reading its options; cold: with an "
            "empty compile cache; warm: again, with the cache that this left"
        ),
        "rows": rows + _first_steps(plan, cache),
    }


def _first_steps(plan: Plan, cache: Path) -> list[dict[str, Any]]:
    case = plan.training[0]
    with tempfile.TemporaryDirectory(prefix="aag-bench-") as folder:
        data = plan.data
        if data in DATASETS and DATASETS[data].bundled and plan.cuda and not plan.quick:
            data = str(Path(folder) / "images.npz")  # CIFAR-10's size: loading and the first kNN take time, too
            _write_images(plan, Path(data))
        job = {
            "settings": case.settings.replace(data=data).to_json(),
            "recipe": case.recipe,
            "device": str(plan.device),
            "compile": plan.compile,
            "data_root": str(plan.data_root) if plan.data_root else None,
        }
        name = f"aag train --recipe {case.recipe}, to its first step"
        states = {"cold": ", cold", "warm": ", warm"} if plan.cuda else {"run": ""}
        return [_first_step(name + state, job | {"out": f"{folder}/{out}"}, cache) for out, state in states.items()]


def _first_step(name: str, job: dict[str, Any], cache: Path) -> dict[str, Any]:
    started = time.monotonic()  # the same clock in all processes of a machine
    process = subprocess.run(
        [sys.executable, "-m", "aag.bench.first_step", json.dumps(job | {"started": started})],
        env=os.environ | compile_cache(cache), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if process.returncode:
        raise RuntimeError(f"{name}: {process.stderr.strip()[-500:]}")
    measured = json.loads(process.stdout.splitlines()[-1])
    return {"name": name, "median_seconds": measured["seconds"], **measured}


def compile_cache(folder: Path) -> dict[str, str]:
    """Return environment variables that put compiled kernels into a folder."""
    return {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "TRITON_CACHE_DIR": str(folder / "triton")}


def _write_images(plan: Plan, path: Path) -> None:
    parts = {"train": plan.training_images, "test": plan.knn_test}
    arrays = {f"{part}_images": plan.images(count).numpy() for part, count in parts.items()}
    labels = {f"{part}_labels": np.arange(count) % 10 for part, count in parts.items()}
    np.savez(path, **arrays, **labels)  # type: ignore[arg-type]
