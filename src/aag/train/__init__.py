"""The loop: steps, schedule, checkpoints, metrics.

config = aag.config.recipe_config("paper", "cifar10")
result = aag.train.train(config)
"""

from aag.train.loop import train
from aag.train.reporter import Reporter
from aag.train.result import Result, summarise
from aag.train.run import Run

__all__ = ["Reporter", "Result", "Run", "summarise", "train"]
