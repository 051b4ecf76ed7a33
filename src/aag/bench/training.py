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
from aag.training.loop import encoder_spec
from aag.training.runtime import Runtime, decide
from aag.training.schedule import learning_rate
from aag.training.step import Step
from aag.training.views import Views

CALLS = 20  # in one timing of a stage, on a GPU; on a CPU a few will do
STAGES = ("loader", "augmentation", "forward", "backward", "optimiser")
SETTINGS = ("recipe", "network", "width", "batch_size", "auxiliary", "forward")  # that a row states
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
        "rows": [
            measured_row(plan, config, SETTINGS, lambda it: _numbers(plan, it, ceiling)) for config in plan.training
        ],
    }


class Training:
    """A configuration's training on the plan's images, from the pieces of the loop, warmed up."""

    def __init__(self, plan: Plan, config: TrainConfig, runtime: Runtime) -> None:
        self.config, self.device = config, runtime.device
        sample = plan.image_set(plan.training_images)
        self.spec = encoder_spec(config, sample)
        self.images = sample.images.to(self.device)
        fresh_memory(self.device)

        self.encoder = nets.build(self.spec, seed=0)
        self.encoder.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.method = methods.build(methods.Setting(config, len(self.images), self.encoder))
        self.method.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.step = Step(self.encoder, self.method, config, runtime)
        self.views = Views(self.images, self.method, config.batch_size, config.seed)

        self.compile_cache = _compile_cache() if runtime.kernels or runtime.compile else None
        started = time.perf_counter()
        self.step.warm_up(lambda: self.views.first(0))
        wait(self.device)
        self.warm_up_seconds = time.perf_counter() - started

        self.whole_epoch = len(self.images) // config.batch_size
        self.lr = learning_rate(config, self.whole_epoch, self.whole_epoch)
        self.history = torch.zeros(self.whole_epoch, len(self.step.names), device=self.device)
        self.position = itertools.count()  # each pass goes on where the last one stopped

    def pass_on(self, steps: int) -> None:
        """Order, views and steps as the loop has them; what a method does between epochs is left out."""
        for _ in range(steps):
            epoch, at = divmod(next(self.position), self.whole_epoch)
            self.history[at] = self.step(self.views.batch(epoch, at), self.lr)

    def end_to_end(self, seconds: float, *, repeats: int, warm_up: int) -> dict[str, Any]:
        """Of passes of about so many seconds, in whole chunks; an epoch at most."""
        chunk_seconds = once(lambda: self.pass_on(self.views.batches), self.device)
        chunks = max(1, round(seconds / chunk_seconds))
        steps = min(self.whole_epoch, chunks * self.views.batches)
        timing = measure(lambda: self.pass_on(steps), repeats=repeats, warm_up=warm_up, device=self.device)
        return {
            "steps": steps,
            "end_to_end_ms": 1000 * timing.median / steps,
            "views_per_second": timing.rate(steps * self.config.batch_size * len(self.method.views)),
        }

    def memory_besides_images(self) -> int | None:
        peak = peak_memory(self.device)
        return None if peak is None else peak - self.images.nbytes

    def check(self) -> None:
        if not all(torch.isfinite(value).all() for value in (self.history, *self.encoder.parameters())):
            raise RuntimeError("the loss is not a number: these timings would be worth nothing")


def measured_row(
    plan: Plan, config: TrainConfig, names: tuple[str, ...], numbers: Callable[[Training], dict[str, Any]]
) -> dict[str, Any]:
    """The settings with these names, where it ran, and the numbers of its training or why there are none."""
    runtime = decide(config.validate())
    settings = {**{name: getattr(config, name) for name in names}, "runtime": str(runtime)}
    try:
        with kernels.disabled() if runtime.is_plain else nullcontext():  # as the loop has it
            return {**settings, **numbers(Training(plan, config, runtime))}
    except torch.cuda.OutOfMemoryError:
        return {**settings, "missing": "not enough GPU memory"}


def _numbers(plan: Plan, training: Training, ceiling: dict[str, Any]) -> dict[str, Any]:
    end_to_end = training.end_to_end(plan.pass_seconds, repeats=plan.repeats, warm_up=plan.warm_up)
    memory = training.memory_besides_images()  # before stages are captured
    stages = _stages(plan, training)
    training.check()
    forward, flop = flop_per_view(training.spec)
    return {
        "views": len(training.method.views),
        "batches_augmented_at_once": training.views.batches,
        "steps": end_to_end["steps"],
        **{f"{name}_ms": value for name, value in stages.items()},
        "sum_ms": sum(stages.values()),
        "end_to_end_ms": end_to_end["end_to_end_ms"],
        "views_per_second": end_to_end["views_per_second"],
        "forward_flop_per_view": forward,
        "flop_per_view": flop,
        "ceiling_views_per_second": ceiling["matmul_flops"] / flop,
        "share_of_ceiling": end_to_end["views_per_second"]["per_second"] * flop / ceiling["matmul_flops"],
        "peak_memory_besides_images": memory,
        "warm_up_seconds": training.warm_up_seconds,
        "compile_cache": training.compile_cache,
    }


def _stages(plan: Plan, training: Training) -> dict[str, float]:
    """Milliseconds a step of each stage."""
    config, step, views = training.config, training.step, training.views
    images, device, size = training.images, training.device, views.batches * config.batch_size
    timed: dict[str, Any] = {"repeats": plan.repeats, "warm_up": plan.warm_up, "device": device}
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


def _compile_cache() -> str:
    """What compiling finds done already: the warm-up depends on it."""
    folders = [os.environ.get(name) for name in compile_cache(Path())]
    empty = all(folder and not any(path.is_file() for path in Path(folder).rglob("*")) for folder in folders)
    return "empty" if empty else "holds what was compiled before"
