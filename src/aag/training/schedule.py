"""The learning rate of every step."""

import math

from aag.config import TrainConfig


def learning_rate(config: TrainConfig, step: int, steps_per_epoch: int) -> float:
    """At global step 0, 1, …: linear warm-up, then cosine to zero, drops, or nothing; anew in every round."""
    peak = config.lr * config.batch_size / 128
    epochs = config.epochs // config.rounds
    warmup_epochs = config.warmup_epochs
    if warmup_epochs is None:
        warmup_epochs = min(10, epochs // 2) if config.batch_size > 256 else 0
    warmup, total = warmup_epochs * steps_per_epoch, epochs * steps_per_epoch
    step %= total
    if step < warmup:
        return peak * (step + 1) / warmup
    if config.schedule == "cosine":
        return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))
    if config.schedule == "constant":
        return peak
    return peak * config.decay_by ** sum(step >= share * total for share in config.decay_at)
