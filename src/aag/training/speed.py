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
from aag.training.callbacks import KNN, Callback, Health
from aag.training.encoders import build_encoder
from aag.training.settings import RunSettings
from aag.training.trainer import Trainer


class Speed(NamedTuple):
    """Seconds that the parts of a run take."""

    epoch: float
    evaluation: float  # one kNN and health
    start: float  # preparing and compiling


class _SpeedTimer(Callback):
    """Add up the time of the evaluations, and start the time limit when the first ones are done."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.evaluation, self.ends = seconds, 0.0, float("inf")

    def on_log(self, trainer: Trainer, row: dict[str, Any]) -> None:
        self.evaluation += row.get("evaluation_seconds", 0.0)

    def on_epoch(self, trainer: Trainer) -> None:
        if trainer.epoch == 0:
            self.ends = time.monotonic() + self.seconds

    def is_over(self) -> bool:
        return time.monotonic() > self.ends


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
    timer = _SpeedTimer(seconds)
    train = settings.train
    epochs = train.rounds * (10**7 // train.rounds)  # the most that the settings accept: the timer stops training
    # With --low-res-size, the run takes less time than measured.
    full_size: dict[str, Any] = {"low_res_size": None, "low_res_until": type(train).low_res_until}
    trainer = Trainer(
        build_encoder(settings, sets[0], copy.deepcopy(backbone)),
        copy.deepcopy(method) or settings.new_method(),
        sets[0],
        replace(train, epochs=epochs, start_from=None, pretrained=None, **full_size),
        callbacks=(KNN(*sets, every=0), Health(every=0), timer),
        should_stop=timer.is_over,
        **runtime,
    )
    trainer.fit()
    steps = max(1, trainer.position()["step"])
    start = timer.ends - timer.seconds - started - timer.evaluation
    speed = Speed(trainer.progress.seconds / steps * trainer.steps_per_epoch, timer.evaluation, start)
    del trainer  # with its memory on the GPU
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return speed
