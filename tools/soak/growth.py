"""A long run: does its memory grow, or the number of its files and threads?"""

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aag.training import Callback, train
from soak.runs import Part, Runs

MEMORY_MB = 10  # that may come and go


class Watch(Callback):
    """Samples memory, open files and threads of this process, and the files of the run, at tenths of the run."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.samples: list[dict[str, float]] = []

    def on_step(self, trainer: Any, loss: float) -> None:
        step = trainer.position()["step"]
        if step % (self.steps // 10) == 0:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            counts = {"files": "/proc/self/fd", "threads": "/proc/self/task", "run_files": trainer.run.folder}
            sample = {name: len(os.listdir(path)) for name, path in counts.items()}
            self.samples.append({"step": step, "MB": round(pages * 4096 / 1e6, 1), **sample})


def train_long(runs: Runs, part: Part, steps: int) -> None:
    """Many steps of a tiny network: memory, files and threads after a tenth of the run and at its end."""
    started, result = time.monotonic(), runs.folder / "long.json"
    process = os.fork()
    if not process:
        code = 1
        try:
            result.write_text(json.dumps(_sample(steps, runs.new_folder("long"))))
            code = 0
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if code:
        part.check(False, f"code {code}")
        return
    samples = json.loads(result.read_text())
    first, last = samples[0], samples[-1]
    for name in ("files", "threads", "run_files"):
        part.found[f"{name}: {first[name]} → {last[name]}"] = 1
        part.check(last[name] <= first[name], f"{name} grew from {first[name]} to {last[name]}")
    part.found[f"MB: {first['MB']} → {last['MB']}"] = 1
    part.found[f"steps/s: {round(steps / (time.monotonic() - started))}"] = 1
    part.check(last["MB"] - first["MB"] < MEMORY_MB, f"memory grew from {first['MB']} to {last['MB']} MB")


def _sample(steps: int, folder: Path) -> list[dict[str, float]]:
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (400, 3, 8, 8), np.uint8))
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    watch = Watch(steps)
    train(
        images, method="simclr", network=network, out=folder, epochs=steps // 100, batch_size=4, knn_every=0,
        checkpoint_minutes=0.1, device="cpu", lr=0.001, schedule="constant", callbacks=[watch],
    )  # fmt: skip
    return watch.samples
