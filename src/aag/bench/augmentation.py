"""Images a second of each augmentation family: ours, a batch at once, beside torchvision's, image by image."""

import itertools
from typing import Any

import torch
from torch import Tensor

from aag import kernels, methods
from aag.augment import Augmentation
from aag.bench.plan import Plan
from aag.bench.rivals import FAMILIES, KINDS, Torchvision
from aag.bench.timing import CPU, Timing, measure
from aag.methods import Method
from aag.training.views import Views

BATCH = 128
GPU_PASSES = 10  # over the images in one timing: a single pass is a millisecond


def run(plan: Plan) -> dict[str, Any]:
    images = plan.photographs(plan.augment_images)
    rows = []
    with Torchvision(images, plan.threads) as torchvision:
        for name, family in FAMILIES.items():
            row: dict[str, Any] = {"family": name, "ours_cpu": _per_core(_ours(plan, (family,), images, CPU), plan)}
            if plan.cuda:
                row |= _on_gpu(plan, (family,), images)
            for kind in KINDS:
                timing = _median_of(plan, lambda name=name, kind=kind: torchvision(name, kind))
                row[f"torchvision_{kind}"] = _per_core(timing.rate(len(images)), plan)
            rows.append(row | _ratios(row))
    if plan.cuda:  # as training makes them; each view counts as an image, as in the rows above
        families = methods.families(plan.training[0])
        rows.append({"family": f"AAG's {len(families)} views", **_on_gpu(plan, families, images)})
    return {
        "images": len(images),
        "image_size": images.shape[2],
        "threads": plan.threads,
        "torchvision_processes": plan.threads,
        "batch": BATCH,
        "protocol": (
            f"uint8 in and out; ours with {plan.threads} threads in chunks as in training, keys and indexing "
            f"included; torchvision with {plan.threads} processes of one thread, images ready in memory; a core: "
            "over the threads or processes"
        ),
        "rows": rows,
    }


def _on_gpu(plan: Plan, families: tuple[Augmentation, ...], images: Tensor) -> dict[str, Any]:
    """By kernels, where they run, and in plain PyTorch."""
    found = {}
    if not kernels.unavailable_reason(plan.device):
        found["ours_gpu_kernels"] = _ours(plan, families, images, plan.device)
    with kernels.disabled():
        found["ours_gpu_plain"] = _ours(plan, families, images, plan.device)
    return found


def _ours(plan: Plan, families: tuple[Augmentation, ...], images: Tensor, device: torch.device) -> dict[str, Any]:
    """All images once (on a GPU ten times), by the class that makes training's views."""
    views = Views(images.to(device), Method(families), BATCH, 0)
    chunk = views.batches * BATCH
    chunks = -(-len(images) // chunk)  # a last chunk that is not full is filled up from the start, and counted so
    number = itertools.count()  # after the last chunk comes the first again
    passes = GPU_PASSES if device.type == "cuda" and not plan.quick else 1
    views.make(0, next(number))  # which compiles kernels, and finds the epoch's order

    def work() -> None:
        for _ in range(passes * chunks):
            views.make(0, next(number))

    made = passes * chunks * chunk * len(families)
    return _median_of(plan, work, device).rate(made) | {"chunk": chunk}


def _median_of(plan: Plan, work: Any, device: torch.device = CPU) -> Timing:
    return measure(work, repeats=plan.repeats, warm_up=plan.warm_up, device=device)


def _per_core(rate: dict[str, Any], plan: Plan) -> dict[str, Any]:
    return rate | {"per_core": rate["per_second"] / plan.threads}


def _ratios(row: dict[str, Any]) -> dict[str, float]:
    """Each of ours over each of torchvision's."""
    ours = [name for name in row if name.startswith("ours")]
    return {
        f"{name}_over_{kind}": row[name]["per_second"] / row[f"torchvision_{kind}"]["per_second"]
        for name in ours
        for kind in KINDS
    }
