"""AAG: image representations without labels, on one modest GPU, with small batches.

    import aag

    encoder = aag.load("runs/my-run")             # an encoder with .features(images) and .embed(images)
    loss = aag.losses.gnt_xent(x, y, z)           # each [n, d]
    views = aag.augment.AutoAugment("cifar10")(images, seed=0)

Submodules load on first use, so that importing the package, and the command line's help, cost nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["AAGError", "augment", "data", "evaluate", "load", "losses", "methods", "nets", "train"]

if TYPE_CHECKING:
    from aag import augment, data, evaluate, losses, methods, nets, train
    from aag.errors import AAGError
    from aag.nets import load


def __getattr__(name: str) -> Any:
    if name == "load":
        return import_module("aag.nets").load
    if name == "AAGError":
        return import_module("aag.errors").AAGError
    if name in __all__:
        return import_module(f"aag.{name}")
    raise AttributeError(f"module 'aag' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
