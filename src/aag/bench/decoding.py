"""Files decoded per second into an image store, compared with plain loops on all cores.

The loops decode, crop and resize in one process per core, and discard the pixels. Ours also hashes and writes them.
"""

import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.multiprocessing as multiprocessing
from PIL import Image

from aag.bench.plan import Plan
from aag.bench.timing import measure_interleaved
from aag.data.encoded import ImageFiles
from aag.data.store import open_images
from aag.provenance import core_count

TASK = 32  # files per task of a process


class Files(NamedTuple):
    """A kind of file to decode."""

    name: str
    width: int
    height: int
    extension: str
    size: int  # that it is resized to
    different: int  # files; the others are links to them
    per_core: int


KINDS = (
    Files("12 MP JPEG", 4000, 3000, "jpg", 128, 16, 48),
    Files("500×400 JPEG", 500, 400, "jpg", 128, 128, 1024),
    Files("32 px PNG", 32, 32, "png", 32, 512, 8192),
)


def run(plan: Plan) -> dict[str, Any]:
    forks = "fork" in multiprocessing.get_all_start_methods()  # as in DataLoader
    context = multiprocessing.get_context("fork" if forks else "spawn")
    with ProcessPoolExecutor(core_count(), context, torch.set_num_threads, (1,)) as pool:
        rows = [_measure(plan, kind, pool) for kind in KINDS]
    return {
        "cores": core_count(),
        "protocol": (
            "files in the page cache; ours: from the first chunk to the complete store, with hashes and writing; the "
            f"others: {core_count()} running processes, which discard the pixels"
        ),
        "rows": rows,
    }


def _measure(plan: Plan, kind: Files, pool: ProcessPoolExecutor) -> dict[str, Any]:
    count = TASK if plan.quick else kind.per_core * core_count()
    with tempfile.TemporaryDirectory(prefix="aag-bench-") as name:
        folder = Path(name) / "files"
        _write_files(plan, kind, folder, count)
        paths = sorted(os.listdir(folder))
        ours: list[tuple[float, float]] = []
        loops = [partial(_run_loop, pool, loop, folder, paths, kind.size) for loop in LOOPS.values()]
        store = partial(_run_store, Path(name), folder, paths, kind.size, ours)
        timings = measure_interleaved([*loops, store], repeats=plan.repeats, warm_up=plan.warm_up)
    rates, starts = zip(*ours[-plan.repeats :], strict=True)
    row: dict[str, Any] = {"name": kind.name, "resized_to": kind.size, "files": count, "ours": float(np.median(rates))}
    row |= {"start_seconds": float(np.median(starts))}
    row |= {name: count / timing.median for name, timing in zip(LOOPS, timings, strict=False)}
    return row | {"ours_over_faster": row["ours"] / max(row[name] for name in LOOPS)}


def _write_files(plan: Plan, kind: Files, folder: Path, count: int) -> None:
    """Write enlarged photographs with noise, so that they compress about as well as camera pictures, and link them."""
    folder.mkdir()
    different = 2 if plan.quick else min(count, kind.different)
    photographs = plan.images(different).permute(0, 2, 3, 1).numpy()
    rng = np.random.default_rng(0)
    for i, pixels in enumerate(photographs):
        large = np.asarray(Image.fromarray(pixels).resize((kind.width, kind.height), Image.Resampling.BICUBIC))
        if kind.extension == "jpg":
            large = (large + rng.normal(0, 6, (kind.height, kind.width, 1))).clip(0, 255).astype(np.uint8)
        Image.fromarray(large).save(folder / f"{i:07}.{kind.extension}", quality=90)
    for i in range(len(photographs), count):
        os.link(folder / f"{i % len(photographs):07}.{kind.extension}", folder / f"{i:07}.{kind.extension}")


def _run_store(root: Path, folder: Path, paths: list[str], size: int, results: list[tuple[float, float]]) -> None:
    """Decode into a store; append images per second after the first chunk, and the seconds before it, to `results`."""
    seen: list[tuple[float, int]] = []
    with tempfile.TemporaryDirectory(dir=root) as cache:
        started = time.perf_counter()
        open_images(
            ImageFiles(folder, paths),
            size,
            root=cache,
            progress=lambda done, _: seen.append((time.perf_counter(), done)),
        )
        ended = time.perf_counter()
    first, done = next((when, done) for when, done in seen if done)
    results.append(((len(paths) - done) / max(ended - first, 1e-9), first - started))


def _run_loop(
    pool: ProcessPoolExecutor, loop: Callable[[list[str], int], None], folder: Path, paths: list[str], size: int
) -> None:
    tasks = [[str(folder / path) for path in paths[start : start + TASK]] for start in range(0, len(paths), TASK)]
    for done in [pool.submit(loop, task, size) for task in tasks]:
        done.result()


def pillow_loop(paths: list[str], size: int) -> None:
    """Decode with Pillow, JPEGs at reduced size as for thumbnails."""
    for path in paths:
        with Image.open(path) as file:
            file.draft("RGB", (2 * size, 2 * size))
            image = file.convert("RGB")
            side = min(image.size)
            left, top = (image.width - side) / 2, (image.height - side) / 2
            box = (left, top, left + side, top + side)
            np.asarray(image.resize((size, size), Image.Resampling.BICUBIC, box=box, reducing_gap=3.0))


def torchvision_loop(paths: list[str], size: int) -> None:
    """Decode and resize with torchvision."""
    import torchvision
    from torchvision.transforms.v2 import functional

    for path in paths:
        image = torchvision.io.decode_image(path, torchvision.io.ImageReadMode.RGB)
        image = functional.center_crop(image, [min(image.shape[1:])])
        functional.resize(image, [size, size], functional.InterpolationMode.BICUBIC, antialias=True)


LOOPS: dict[str, Callable[[list[str], int], None]] = {"pillow": pillow_loop, "torchvision": torchvision_loop}
