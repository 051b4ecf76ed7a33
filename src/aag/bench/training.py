"""A training step by stage, and views a second end to end, from the pieces that the training loop is made of."""

import itertools
import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from aag import kernels, methods, nets
from aag.augment import permutation
from aag.bench.ceiling import flop_per_view, rates
from aag.bench.plan import Plan
from aag.bench.startup import compile_cache
from aag.bench.timing import fresh_memory, interleaved, measure, once, peak_memory, wait
from aag.config import TrainConfig
from aag.train.loop import set_settings
from aag.train.runtime import Runtime, decide
from aag.train.schedule import learning_rate
from aag.train.step import Step
from aag.train.views import Views

CALLS = 20  # in one timing of a stage, on a GPU; on a CPU a few will do
STAGES = ("loader", "augmentation", "forward", "backward", "optimiser")
UNTIL = ("forward", "backward", "update")  # a step as far as this


def run(plan: Plan) -> dict[str, Any]:
    ceiling = rates(plan, decide(plan.training[0]).dtype)
    return {
        "data": plan.data,
        "images": plan.training_images,
        "threads": plan.threads,
        "protocol": (
            "loader: the epoch's order, and picking a chunk's images, over its batches; augmentation: a chunk's views "
            "less the picking; forward, backward, optimiser: steps that end there, less those that end before; end to "
            "end: order, views and steps as the loop has them; memory: of PyTorch's allocator, peak reserved less the "
            "images' bytes; ceiling: FLOP of convolutions and matrix products, forward and backward, at the rate of "
            "a large product"
        ),
        **ceiling,
        "rows": [_row(plan, config, ceiling) for config in plan.training],
    }


def _row(plan: Plan, config: TrainConfig, ceiling: dict[str, Any]) -> dict[str, Any]:
    runtime = decide(config.validate())
    try:
        with kernels.disabled() if runtime.is_plain else nullcontext():  # as the loop has it
            return _train(plan, config, runtime, ceiling)
    except torch.cuda.OutOfMemoryError:
        return {**_settings(config, runtime), "missing": "not enough GPU memory"}


def _train(plan: Plan, config: TrainConfig, runtime: Runtime, ceiling: dict[str, Any]) -> dict[str, Any]:
    device = runtime.device
    sample = plan.image_set(plan.training_images)
    spec, policy = set_settings(config, sample)
    images = sample.images.to(device)
    fresh_memory(device)

    encoder = nets.build(spec, seed=0).to(device).to(memory_format=torch.channels_last)
    method = methods.build(methods.Setting(config, policy, len(images), encoder))
    step = Step(encoder, method, config, runtime)
    views = Views(images, method, config.batch_size, config.seed)

    cache = _compile_cache() if runtime.kernels or runtime.compile else None
    started = time.perf_counter()
    step.warm_up(lambda: views.first(0))
    wait(device)
    warm_up = time.perf_counter() - started

    whole_epoch = len(images) // config.batch_size
    lr = learning_rate(config, whole_epoch, whole_epoch)
    history = torch.zeros(whole_epoch, len(step.names), device=device)
    position = itertools.count()  # each pass goes on where the last one stopped

    def train_steps(steps: int) -> None:
        for _ in range(steps):
            epoch, at = divmod(next(position), whole_epoch)
            history[at] = step(views.batch(epoch, at), lr)

    timed: dict[str, Any] = {"repeats": plan.repeats, "warm_up": plan.warm_up, "device": device}
    chunk_seconds = once(lambda: train_steps(views.batches), device)
    chunks = max(1, round(plan.pass_seconds / chunk_seconds))
    steps = min(whole_epoch, chunks * views.batches)
    end_to_end = measure(lambda: train_steps(steps), **timed)
    peak = peak_memory(device)  # before stages are captured

    stages = _stages(plan, config, step, views, timed)
    if not all(torch.isfinite(value).all() for value in (history, *encoder.parameters())):
        raise RuntimeError("the loss is not a number: these timings would be worth nothing")

    forward, flop = flop_per_view(spec)
    speed = end_to_end.rate(steps * config.batch_size * len(method.views))
    return {
        **_settings(config, runtime),
        "views": len(method.views),
        "batches_augmented_at_once": views.batches,
        "steps": steps,
        **{f"{name}_ms": value for name, value in stages.items()},
        "sum_ms": sum(stages.values()),
        "end_to_end_ms": 1000 * end_to_end.median / steps,
        "views_per_second": speed,
        "forward_flop_per_view": forward,
        "flop_per_view": flop,
        "ceiling_views_per_second": ceiling["matmul_flops"] / flop,
        "share_of_ceiling": speed["per_second"] * flop / ceiling["matmul_flops"],
        "peak_memory_besides_images": None if peak is None else peak - images.nbytes,
        "warm_up_seconds": warm_up,
        "compile_cache": cache,
    }


def _stages(plan: Plan, config: TrainConfig, step: Step, views: Views, timed: dict[str, Any]) -> dict[str, float]:
    """Milliseconds a step of each stage."""
    images, device, size = views.images, views.images.device, views.batches * config.batch_size
    order = permutation(config.seed, 0, len(images), device)
    calls = CALLS if plan.cuda and not plan.quick else 2
    epoch, chunk = itertools.count(), itertools.count()

    def pick() -> Tensor:
        place = torch.arange(size, device=device) % len(order)
        return images[order[place]]

    def repeated(work: Callable[[], object]) -> Callable[[], object]:
        return lambda: [work() for _ in range(calls)]

    ordering, picking, making = interleaved(
        [
            repeated(lambda: permutation(config.seed, next(epoch), len(images), device)),
            repeated(pick),
            repeated(lambda: views.make(0, next(chunk))),
        ],
        **timed,
    )
    batch = views.first(0)
    parts = interleaved([repeated(step.replayable(batch, until)) for until in UNTIL], **timed)
    forward, backward, update = (1000 * part.median / calls for part in parts)
    per_batch = 1000 / calls / views.batches
    ordering_ms = 1000 * ordering.median / calls / (len(images) // config.batch_size)
    values = (
        ordering_ms + per_batch * picking.median,
        per_batch * (making.median - picking.median),
        forward,
        backward - forward,
        update - backward,
    )
    return dict(zip(STAGES, values, strict=True))


def _settings(config: TrainConfig, runtime: Runtime) -> dict[str, Any]:
    names = ("recipe", "network", "width", "batch_size", "auxiliary", "forward")
    return {**{name: getattr(config, name) for name in names}, "runtime": str(runtime)}


def _compile_cache() -> str:
    """What compiling finds done already: the warm-up depends on it."""
    folders = [os.environ.get(name) for name in compile_cache(Path())]
    empty = all(folder and not any(path.is_file() for path in Path(folder).rglob("*")) for folder in folders)
    return "empty" if empty else "holds what was compiled before"
