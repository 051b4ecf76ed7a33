"""AAG and its rivals, one short file each: the views a method asks for and the loss it returns."""

from aag.config import TrainConfig
from aag.errors import unknown
from aag.methods.aag import AAG
from aag.methods.base import Method

METHODS = {"aag": AAG}

__all__ = ["AAG", "METHODS", "Method", "build"]


def build(config: TrainConfig, policy: str) -> Method:
    """The method of a configuration; `policy` is AutoAugment's for this data set."""
    if config.method not in METHODS:
        raise unknown("method", config.method, METHODS)
    return METHODS[config.method].from_config(config, policy)
