"""Time `aag train` on JPEGs that are not decoded yet, with and without --start-early.

    python tools/measure_start_early.py 24576       # images
    python tools/measure_start_early.py 24576 500   # at most 500 files read per second, as from a slow server

The files are links to 128 JPEGs of 500×400 pixels. Each run has a process and an empty cache folder of its own. Times
are from the call of `aag.train`.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import aag
from aag.data.encoded import ImageFiles, Part
from aag.training import Callback, Trainer

REPEATS, FILES = 3, 128


class Clock(Callback):
    """Seconds from the start to the first step and to the end of the first epoch."""

    def __init__(self) -> None:
        self.started, self.first_step, self.first_epoch = time.monotonic(), 0.0, 0.0

    def on_step(self, trainer: Trainer, loss: float) -> None:
        self.first_step = self.first_step or time.monotonic() - self.started

    def on_epoch(self, trainer: Trainer) -> None:
        if trainer.epoch == 1:
            self.first_epoch = time.monotonic() - self.started


def write_files(folder: Path, count: int) -> None:
    """Write enlarged photographs with noise, and link them."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i, pixels in enumerate(aag.data.load("sample").images[:FILES].permute(0, 2, 3, 1).numpy()):
        large = np.asarray(Image.fromarray(pixels).resize((500, 400), Image.Resampling.BICUBIC))
        noisy = (large + rng.normal(0, 6, (400, 500, 1))).clip(0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(folder / f"{i:07}.jpg", quality=90)
    for i in range(FILES, count):
        os.link(folder / f"{i % FILES:07}.jpg", folder / f"{i:07}.jpg")


def train_once(folder: str, out: str, start_early: bool, files_per_second: float) -> None:
    def load_slowly(self: ImageFiles, part: Part) -> Part:
        time.sleep(len(part.items) * (os.cpu_count() or 1) / files_per_second)  # one thread per core reads
        return part

    if files_per_second:
        ImageFiles.load = load_slowly  # type: ignore[method-assign]
    clock = Clock()
    aag.train(
        f"{folder}/files", recipe="demo", labels="none", start_early=start_early, image_size=32, width=4, epochs=1,
        batch_size=256, out=f"{out}/run", data_root=out, callbacks=[clock],
    )  # fmt: skip
    how = "--start-early" if start_early else "usual"
    load, threads = os.getloadavg()[0], torch.get_num_threads()
    print(f"{how:<14} first step {clock.first_step:6.1f} s, epoch 1 ends {clock.first_epoch:6.1f} s, "
          f"{threads} threads, load {load:.1f}", flush=True)  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1] == "once":
        train_once(sys.argv[2], sys.argv[3], sys.argv[4] == "True", float(sys.argv[5]))
        sys.exit()
    count, rate = (*sys.argv[1:], "0")[:2]
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder, "files"), int(count))
        for _ in range(REPEATS):
            for start_early in (False, True):
                with tempfile.TemporaryDirectory() as out:
                    subprocess.run([sys.executable, __file__, "once", folder, out, str(start_early), rate], check=True)
