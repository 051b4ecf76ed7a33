"""The learning rate of every step."""

import math

from aag.settings import TrainSettings


def learning_rate(settings: TrainSettings, step: int, steps_per_epoch: int) -> float:
    """Return the rate at global step 0, 1, …: linear warm-up, then the schedule; both restart in every round."""
    assert settings.warmup_epochs is not None, "settings are resolved before training"
    peak = settings.lr * (settings.batch_size * settings.accumulate) / 128
    warmup, total = settings.warmup_epochs * steps_per_epoch, settings.round_epochs * steps_per_epoch
    step %= total
    if step < warmup:
        return peak * (step + 1) / warmup
    if settings.schedule == "cosine":
        return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))
    if settings.schedule == "constant":
        return peak
    drops = zip(settings.decay_at, settings.decay_factors, strict=True)
    return peak * math.prod(factor for fraction, factor in drops if step >= fraction * total)
