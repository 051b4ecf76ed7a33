"""A training step by stage, and views/s end to end, measured on the trainer itself."""

import itertools
import os
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from aag.bench.ceiling import count_flop, measure_rates
from aag.bench.plan import Case, Plan
from aag.bench.startup import compile_cache
from aag.bench.timing import measure, measure_interleaved, peak_memory, reset_memory, time_once
from aag.rng import permutation
from aag.training import Trainer, build_encoder
from aag.training.schedule import learning_rate

CALLS = 20  # in one timing of a stage on a GPU; 2 on a CPU
STAGES = ("loader", "augmentation", "forward", "backward", "optimiser")


def run(plan: Plan) -> dict[str, Any]:
    rates = measure_rates(plan)
    names = ("recipe", "network", "width", "batch_size", "auxiliary", "forward")
    return {
        "data": plan.data,
        "images": plan.training_images,
        "threads": plan.threads,
        "protocol": (
            "loader: the epoch's order and the selection of a chunk's images, per batch; augmentation: a chunk's views "
            "minus that selection, per batch; forward, backward, optimizer: a step up to there minus a step up to the "
            "stage before; end to end: order, views and steps as in training; memory: peak reserved by PyTorch's "
            "allocator minus the images' bytes; ceiling: FLOP of convolutions and matrix products, forward and "
            "backward, at the rate of one large matrix product"
        ),
        **rates,
        "rows": [measure_case(plan, case, names, lambda timed: _numbers(plan, timed, rates)) for case in plan.training],
    }


class TimedTraining:
    """A trainer on the plan's images, warmed up, and what is timed of it."""

    def __init__(self, plan: Plan, case: Case) -> None:
        self.device = plan.device
        reset_memory(self.device)
        images, settings = plan.image_set(plan.training_images), case.settings.resolve(plan.precision)
        encoder, method = build_encoder(settings, images), settings.method_type(settings.method_settings)
        self.trainer = Trainer(encoder, method, images, settings.train, device=plan.device, compile=plan.compile)
        self.trainer.prepare()
        self.views = len(self.trainer.batches.augmentations)
        self.compile_cache = None if self.trainer.runtime.is_plain else _describe_compile_cache()
        self.warm_up_seconds = time_once(self.trainer.warm_up, self.device)
        steps = self.trainer.steps_per_epoch
        self.lr = learning_rate(self.trainer.settings, steps, steps)
        self.history = torch.zeros(steps, len(self.trainer.step.names), device=self.device)
        self._position = itertools.count()  # each pass continues where the last one stopped

    def close(self) -> None:
        self.trainer.close()

    def train(self, steps: int) -> None:
        """Run the next steps, without what a method does between epochs."""
        for _ in range(steps):
            epoch, step = divmod(next(self._position), self.trainer.steps_per_epoch)
            self.history[step] = self.trainer.train_step(epoch, step, self.lr)

    def end_to_end(self, seconds: float, *, repeats: int, warm_up: int) -> dict[str, Any]:
        """Time passes of about this duration: whole chunks, at most an epoch."""
        per_chunk = self.trainer.batches.per_chunk
        chunks = max(1, round(seconds / time_once(lambda: self.train(per_chunk), self.device)))
        steps = min(self.trainer.steps_per_epoch, chunks * per_chunk)
        timing = measure(lambda: self.train(steps), repeats=repeats, warm_up=warm_up, device=self.device)
        return {
            "steps": steps,
            "end_to_end_ms": 1000 * timing.median / steps,
            "views_per_second": timing.rate(steps * self.trainer.settings.batch_size * self.views),
        }

    def costs(self) -> dict[str, Any]:
        """Return what a row states besides its timings. Call it before stages are captured: they take memory."""
        peak = peak_memory(self.device)
        return {
            "peak_memory_besides_images": None if peak is None else peak - self.trainer.images.nbytes,
            "warm_up_seconds": self.warm_up_seconds,
            "compile_cache": self.compile_cache,
        }

    def check_finite(self) -> None:
        if not all(torch.isfinite(value).all() for value in (self.history, *self.trainer.encoder.parameters())):
            raise RuntimeError("the loss is not finite, so the timings mean nothing")


def measure_case(
    plan: Plan, case: Case, names: tuple[str, ...], numbers: Callable[[TimedTraining], dict[str, Any]]
) -> dict[str, Any]:
    """Return a row: the options of these names, the runtime, and the numbers or why there are none."""
    row = case.options(*names)
    try:
        with closing(TimedTraining(plan, case)) as timed:
            return {**row, "runtime": str(timed.trainer.runtime), **numbers(timed)}
    except torch.cuda.OutOfMemoryError:
        return {**row, "missing": "not enough GPU memory"}


def _numbers(plan: Plan, timed: TimedTraining, rates: dict[str, Any]) -> dict[str, Any]:
    end_to_end = timed.end_to_end(plan.pass_seconds, repeats=plan.repeats, warm_up=plan.warm_up)
    costs = timed.costs()
    stages = _stages(plan, timed)
    timed.check_finite()
    forward, flop = count_flop(timed.trainer.encoder.spec)
    ceiling = rates["matmul_flops"] / flop
    return {
        "views": timed.views,
        "batches_augmented_at_once": timed.trainer.batches.per_chunk,
        **{f"{name}_ms": value for name, value in stages.items()},
        "sum_ms": sum(stages.values()),
        **end_to_end,
        "forward_flop_per_view": forward,
        "flop_per_view": flop,
        "ceiling_views_per_second": ceiling,
        "share_of_ceiling": end_to_end["views_per_second"]["per_second"] / ceiling,
        **costs,
    }


def _stages(plan: Plan, timed: TimedTraining) -> dict[str, float]:
    """Return the milliseconds per step of each stage."""
    trainer, device = timed.trainer, timed.device
    settings, batches, images = trainer.settings, trainer.batches, trainer.images
    repeats: dict[str, Any] = {"repeats": plan.repeats, "warm_up": plan.warm_up, "device": device}
    order = permutation(settings.seed, 0, len(images), device)
    calls = CALLS if plan.cuda and not plan.quick else 2
    epoch, chunk = itertools.count(), itertools.count()

    def select() -> Tensor:
        place = torch.arange(batches.per_chunk * settings.batch_size, device=device) % len(order)
        return images[order[place]]

    def repeat(work: Callable[[], object]) -> None:
        for _ in range(calls):
            work()

    def milliseconds(*works: Callable[[], object]) -> list[float]:
        """Return the time of one call of each."""
        many = [partial(repeat, work) for work in works]
        return [1000 * timing.median / calls for timing in measure_interleaved(many, **repeats)]

    ordering, selecting, making = milliseconds(
        lambda: permutation(settings.seed, next(epoch), len(images), device),
        select,
        lambda: batches.make_chunk(0, next(chunk)),
    )
    batch = batches.first_batch(0)
    forward, backward, update = milliseconds(
        *(trainer.step.partial_step(batch, until) for until in ("forward", "backward", "update"))
    )
    values = (
        ordering / trainer.steps_per_epoch + selecting / batches.per_chunk,
        (making - selecting) / batches.per_chunk,
        forward,
        backward - forward,
        update - backward,
    )
    return dict(zip(STAGES, values, strict=True))


def _describe_compile_cache() -> str:
    """Say whether the compilers' caches are empty: the time of the warm-up depends on it."""
    folders = [os.environ.get(name) for name in compile_cache(Path())]
    empty = all(folder and not any(path.is_file() for path in Path(folder).rglob("*")) for folder in folders)
    return "empty" if empty else "holds earlier compilations"
