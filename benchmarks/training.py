"""A training step by stage, and views a second end to end, from the pieces that the training loop is made of."""

import gc
import itertools
import time
from dataclasses import replace
from typing import Any

import torch

from aag import data, methods, nets
from aag.augment import permutation
from aag.config import TrainConfig
from aag.train.loop import set_settings
from aag.train.runtime import Runtime, decide
from aag.train.schedule import learning_rate
from aag.train.step import Step
from aag.train.views import Views
from benchmarks.plan import Plan, photographs
from benchmarks.timing import measure, wait

STEPS = 20  # in one timing of the step alone, on a GPU; on a CPU a few will do


def run(plan: Plan) -> dict[str, Any]:
    rows = []
    for number, config in enumerate(plan.training):
        row = _train(plan, config)
        if plan.cuda:  # the cache of compilations is this run's own, and empty at first
            row["compile_cache"] = "holds what the row above compiled" if number else "empty"
        rows.append(row)
    return {
        "images": plan.training_images,
        "threads": plan.threads,
        "protocol": (
            "augmentation: a chunk's time over its batches; share: of augmentation + step; end to end: views and "
            "steps in the loop's order; memory: of PyTorch's allocator, peak reserved less the images' bytes"
        ),
        "rows": rows,
    }


def _train(plan: Plan, config: TrainConfig) -> dict[str, Any]:
    runtime = decide(config.validate())
    device = runtime.device
    sample = replace(data.load("sample"), images=photographs(plan.training_images), labels=None)
    spec, policy = set_settings(config, sample)
    images = sample.images.to(device)
    _fresh_memory(device)

    method = methods.build(config, policy)
    encoder = nets.build(spec, seed=0).to(device).to(memory_format=torch.channels_last)
    step = Step(encoder, method, config, runtime)
    views = Views(images, method, config.batch_size, config.seed, runtime.compile)
    order = permutation(config.seed, 0, len(images), device)
    epoch = itertools.count()

    started = time.perf_counter()
    step.warm_up(views.batch(order, next(epoch), 0))
    wait(device)
    warm_up = time.perf_counter() - started
    batch = views.batch(order, next(epoch), 0).clone()  # its chunk would count as memory

    whole_epoch = len(images) // config.batch_size
    steps = plan.training_chunks * views.batches if plan.training_chunks else whole_epoch
    lr = learning_rate(config, whole_epoch, whole_epoch)
    calls = STEPS if plan.cuda else min(4, steps)
    last = None

    def train_steps() -> None:
        nonlocal last
        now = next(epoch)
        for at in range(steps):
            last = step(views.batch(order, now, at), lr)

    timed: dict[str, Any] = {"repeats": plan.repeats, "warm_up": plan.warm_up, "device": device}
    augmentation = measure(lambda: views.batch(order, next(epoch), 0), **timed)
    stepping = measure(lambda: [step(batch, lr) for _ in range(calls)], **timed)
    end_to_end = measure(train_steps, **timed)
    if last is None or not torch.isfinite(last).all():
        raise RuntimeError("the loss is not a number: these timings would be worth nothing")

    augmentation_ms = 1000 * augmentation.median / views.batches
    step_ms = 1000 * stepping.median / calls
    return {
        **_settings(config, runtime),
        "views": len(method.views),
        "batches_augmented_at_once": views.batches,
        "steps": steps,
        "augmentation_ms": augmentation_ms,
        "step_ms": step_ms,
        "augmentation_share": augmentation_ms / (augmentation_ms + step_ms),
        "end_to_end_ms": 1000 * end_to_end.median / steps,
        "views_per_second": end_to_end.rate(steps * config.batch_size * len(method.views)),
        "warm_up_seconds": warm_up,
        "peak_memory_besides_images": torch.cuda.max_memory_reserved(device) - images.nbytes if plan.cuda else None,
    }


def _settings(config: TrainConfig, runtime: Runtime) -> dict[str, Any]:
    names = ("recipe", "network", "width", "batch_size", "auxiliary", "forward")
    return {**{name: getattr(config, name) for name in names}, "runtime": str(runtime)}


def _fresh_memory(device: torch.device) -> None:
    """Gives back what earlier measurements left, and starts the count of the peak."""
    gc.collect()
    if device.type != "cuda":
        return
    torch._dynamo.reset()  # compiled functions hold on to their tensors
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
