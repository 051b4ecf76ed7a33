"""Images/s of each augmentation: ours, a batch at a time, compared with torchvision's, image by image."""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from aag import kernels
from aag.augment import Augmentation
from aag.bench.peers import AUGMENTATIONS, KINDS, OURS, TransformProcesses
from aag.bench.plan import Plan
from aag.bench.timing import CPU, measure
from aag.methods import Method
from aag.training.batches import Batches

BATCH = 128
GPU_PASSES = 10  # over the images in one timing: a single pass takes a millisecond


class FixedViews(Method):
    """Only augmentations, for `Batches` to make views with."""

    def __init__(self, *augmentations: Augmentation) -> None:
        super().__init__()
        self._augmentations = augmentations

    def augmentations(self) -> tuple[Augmentation, ...]:
        return self._augmentations


def run(plan: Plan) -> dict[str, Any]:
    images = plan.images(plan.augment_images)
    rows = []
    with TransformProcesses(images, plan.threads) as processes:
        for name, augmentation in AUGMENTATIONS.items():
            method = FixedViews(augmentation)
            row: dict[str, Any] = {"family": name, "ours_cpu": _measure_ours(plan, method, images, CPU)}
            if plan.cuda:
                row |= _on_gpu(plan, method, images)
            row["ours_processes"] = _rate(plan, partial(processes, name, OURS), len(images), CPU)
            for kind in KINDS:
                row[f"torchvision_{kind}"] = _rate(plan, partial(processes, name, kind), len(images), CPU)
            rows.append(row | _ratios(row))
    if plan.cuda:  # as in training; each view counts as an image
        settings = plan.training[0].settings.resolve()
        aag = settings.method_type(settings.method_settings)
        rows.append({"family": f"AAG's {len(aag.augmentations())} views", **_on_gpu(plan, aag, images)})
    return {
        "images": len(images),
        "image_size": images.shape[2],
        "threads": plan.threads,
        "torchvision_processes": plan.threads,
        "batch": BATCH,
        "protocol": (
            f"uint8 in and out; ours: {plan.threads} threads, chunks as in training, with random keys and indexing; "
            f"processes, ours and torchvision's: {plan.threads} of one thread, images ready in memory; per core:"
            " divided by the threads or processes"
        ),
        "rows": rows,
    }


def _on_gpu(plan: Plan, method: Method, images: Tensor) -> dict[str, Any]:
    """Measure with kernels, where they run, and in plain PyTorch."""
    row = {}
    if not kernels.unavailable_reason(plan.device):
        row["ours_gpu_kernels"] = _measure_ours(plan, method, images, plan.device)
    with kernels.disabled():
        row["ours_gpu_plain"] = _measure_ours(plan, method, images, plan.device)
    return row


def _measure_ours(plan: Plan, method: Method, images: Tensor, device: torch.device) -> dict[str, Any]:
    """Augment all images once (ten times on a GPU), by the class that makes training's batches."""
    batches = Batches(images.to(device), method, BATCH, seed=0)
    chunk = batches.per_chunk * BATCH
    chunks = -(-len(images) // chunk)  # a partial last chunk is filled up from the start, and counted as full
    number = itertools.count()  # after the last chunk the first one follows again
    passes = GPU_PASSES if device.type == "cuda" and not plan.quick else 1
    batches.make_chunk(0, next(number))  # compiles kernels and finds the epoch's order

    def work() -> None:
        for _ in range(passes * chunks):
            batches.make_chunk(0, next(number))

    count = passes * chunks * chunk * len(batches.augmentations)
    return _rate(plan, work, count, device) | {"chunk": chunk}


def _rate(plan: Plan, work: Callable[[], object], count: int, device: torch.device) -> dict[str, Any]:
    rate = measure(work, repeats=plan.repeats, warm_up=plan.warm_up, device=device).rate(count)
    return rate | {"per_core": rate["per_second"] / plan.threads} if device == CPU else rate


def _ratios(row: dict[str, Any]) -> dict[str, float]:
    """Return the speed of each of ours divided by each of torchvision's."""
    return {
        f"{name}_over_{kind}": row[name]["per_second"] / row[f"torchvision_{kind}"]["per_second"]
        for name in row
        if name.startswith("ours")
        for kind in KINDS
    }
