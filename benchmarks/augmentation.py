"""Images a second of each augmentation family: ours, a batch at once, beside torchvision's, image by image."""

import itertools
import time
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor

from aag.augment import Augmentation, permutation
from aag.methods import Method
from aag.train.views import Views
from benchmarks.plan import Plan, photographs
from benchmarks.rivals import FAMILIES, KINDS, Torchvision
from benchmarks.timing import CPU, Timing, measure, wait

BATCH = 128
GPU_PASSES = 10  # over the images in one timing: a single pass is a millisecond


def run(plan: Plan, compiled: bool) -> dict[str, Any]:
    """`compiled`: on the GPU measure torch.compile, too, as training uses it."""
    images = photographs(plan.augment_images)
    rows = []
    with Torchvision(images, plan.threads) as torchvision:
        for name, family in FAMILIES.items():
            row: dict[str, Any] = {"family": name, "ours_cpu": _ours(plan, family, images, CPU)}
            if plan.cuda:
                row["ours_gpu"] = _ours(plan, family, images, plan.device)
            if plan.cuda and compiled:
                row["ours_gpu_compiled"] = _ours(plan, family, images, plan.device, compiled=True)
            for kind in KINDS:
                timing = _median_of(plan, lambda name=name, kind=kind: torchvision(name, kind))
                row[f"torchvision_{kind}"] = timing.rate(len(images))
            rows.append(row | _ratios(row))
    return {
        "images": len(images),
        "image_size": images.shape[2],
        "threads": plan.threads,
        "torchvision_processes": plan.threads,
        "batch": BATCH,
        "protocol": (
            f"uint8 in and out; ours with {plan.threads} threads in chunks as in training, keys and indexing "
            f"included; torchvision with {plan.threads} processes of one thread, images ready in memory"
        ),
        "rows": rows,
    }


def _ours(
    plan: Plan, family: Augmentation, images: Tensor, device: torch.device, compiled: bool = False
) -> dict[str, Any]:
    """All images once (on a GPU ten times), by the class that makes training's views."""
    images = images.to(device)
    if compiled:
        torch._dynamo.reset()  # each family anew: what was compiled for another's settings is no start
    views = Views(images, cast(Method, SimpleNamespace(views=(family,))), BATCH, 0, compiled)
    chunk = views.batches * BATCH
    chunks = -(-len(images) // chunk)  # a last chunk that is not full is filled up from the start, and counted so
    order = permutation(0, 0, len(images), device)
    epoch = itertools.count()  # a new one each time, or the chunk made before would be handed out
    passes = GPU_PASSES if device.type == "cuda" and not plan.quick else 1

    def work() -> None:
        for _ in range(passes):
            now = next(epoch)
            for number in range(chunks):
                views.batch(order, now, number * views.batches)

    started = time.perf_counter()
    views.batch(order, next(epoch), 0)
    wait(device)
    first_chunk = time.perf_counter() - started
    timing = _median_of(plan, work, device)
    return timing.rate(passes * chunks * chunk) | {"chunk": chunk, "first_chunk_seconds": first_chunk}


def _median_of(plan: Plan, work: Any, device: torch.device = CPU) -> Timing:
    return measure(work, repeats=plan.repeats, warm_up=plan.warm_up, device=device)


def _ratios(row: dict[str, Any]) -> dict[str, float]:
    """Each of ours over each of torchvision's."""
    ours = [name for name in row if name.startswith("ours")]
    return {
        f"{name}_over_{kind}": row[name]["per_second"] / row[f"torchvision_{kind}"]["per_second"]
        for name in ours
        for kind in KINDS
    }
