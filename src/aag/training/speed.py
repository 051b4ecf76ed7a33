"""Measure the speed of a run: train copies of its encoder and method for a few seconds, then discard them."""

import copy
import gc
import time
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import nn

from aag.data import TrainTestSets
from aag.methods import Method
from aag.training.callbacks import KNN, Health
from aag.training.encoders import build_encoder
from aag.training.settings import RunSettings
from aag.training.trainer import Trainer


class Speed(NamedTuple):
    """Seconds that the parts of a run take."""

    epoch: float
    evaluation: float  # one kNN and health
    start: float  # preparing and compiling


class _TimedTrainer(Trainer):
    """Stops after `seconds` of steps. Adds up the time of evaluations, and what the method prepares for each epoch."""

    def __init__(self, *parts: Any, seconds: float, **options: Any) -> None:
        super().__init__(*parts, should_stop=lambda: time.monotonic() > self.ends, **options)
        self.seconds, self.ready, self.ends, self.evaluation = seconds, 0.0, float("inf"), 0.0
        self.preparing: list[float] = []

    def log(self, *rows: dict[str, Any]) -> None:
        super().log(*rows)
        self.evaluation += sum(row.get("evaluation_seconds", 0.0) for row in rows)

    def begin_epoch(self, epoch: int) -> None:
        started = time.monotonic()
        super().begin_epoch(epoch)
        if self.runtime.device.type == "cuda":
            torch.cuda.synchronize(self.runtime.device)
        now = time.monotonic()
        if not self.preparing:
            self.ready, self.ends = started, now + self.seconds
        self.preparing.append(now - started)


def measure_speed(
    settings: RunSettings,
    sets: TrainTestSets,
    *,
    seconds: float,
    method: Method | None = None,
    backbone: nn.Module | None = None,
    **runtime: Any,
) -> Speed:
    """Train copies for about `seconds` and return their speed. `runtime`: arguments of `Trainer`, such as device."""
    started = time.monotonic()
    train = settings.train
    epochs = train.rounds * (10**7 // train.rounds)  # the most that the settings accept: the time limit stops training
    # With --low-res-size, the run takes less time than measured.
    full_size: dict[str, Any] = {"low_res_size": None, "low_res_until": type(train).low_res_until}
    trainer = _TimedTrainer(
        build_encoder(settings, sets[0], copy.deepcopy(backbone)),
        copy.deepcopy(method) or settings.new_method(),
        sets[0],
        replace(train, epochs=epochs, start_from=None, pretrained=None, **full_size),
        callbacks=(KNN(*sets, every=0), Health(every=0)),
        seconds=seconds,
        **runtime,
    )
    trainer.fit()
    step = (trainer.progress.seconds - sum(trainer.preparing)) / max(1, trainer.position()["step"])
    epoch = step * trainer.steps_per_epoch + sum(trainer.preparing) / len(trainer.preparing)
    speed = Speed(epoch, trainer.evaluation, trainer.ready - started - trainer.evaluation)
    del trainer  # with its memory on the GPU
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return speed
