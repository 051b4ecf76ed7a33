"""The learning rate of every step."""

import math

from aag.config import TrainConfig


def learning_rate(config: TrainConfig, step: int, steps_per_epoch: int) -> float:
    """At global step 0, 1, …: linear warm-up, then cosine to zero without restarts, or two drops to a tenth."""
    peak = config.lr * config.batch_size / 128
    warmup_epochs = config.warmup_epochs
    if warmup_epochs is None:
        warmup_epochs = min(10, config.epochs // 2) if config.batch_size > 256 else 0
    warmup, total = warmup_epochs * steps_per_epoch, config.epochs * steps_per_epoch
    if step < warmup:
        return peak * (step + 1) / warmup
    if config.schedule == "cosine":
        return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))
    return peak * 0.1 ** sum(step >= share * total for share in (0.6, 0.8))
