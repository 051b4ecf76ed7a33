"""The loop: steps, schedule, checkpoints, metrics.

config = aag.config.recipe_config("paper", "cifar10")
result = aag.training.train(config)
"""

from aag.training.loop import train
from aag.training.reporter import Reporter
from aag.training.result import Result, summarise
from aag.training.run import Run

__all__ = ["Reporter", "Result", "Run", "summarise", "train"]
