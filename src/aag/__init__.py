"""AAG: train image encoders without labels, with small batches or large ones, on a CPU, one GPU or several.

    import aag

    result = aag.train("photos/", epochs=100)     # or tensors, arrays, a known data set; result.encoder
    result = aag.sweep("photos/", grid={"lr": [0.03, 0.06]}, epochs=30)    # which settings are best
    encoder = aag.load("runs/my-run")             # an encoder with .features(images) and .embed(images)
    loss = aag.losses.gnt_xent(x, y, z)           # each [n, d]
    views = aag.augment.AutoAugment("cifar10")(images, seed=0)

Submodules are imported on first use, so `import aag` and the command line's help are fast.
"""

from typing import TYPE_CHECKING

from aag.lazy import lazy_names

__version__ = "0.2.0"

if TYPE_CHECKING:
    from aag import augment, data, evaluate, losses, methods, nets, serving, sweeps, training
    from aag.data import ImageSet
    from aag.errors import AAGError
    from aag.methods import Method, MethodSettings
    from aag.nets import load
    from aag.runs import Run
    from aag.settings import TrainSettings
    from aag.sweeps import sweep
    from aag.training import Trainer, train

_MODULES = ("augment", "data", "evaluate", "losses", "methods", "nets", "serving", "sweeps", "training")
_NAMES = {
    "AAGError": "errors", "ImageSet": "data", "Method": "methods", "MethodSettings": "methods", "Run": "runs",
    "TrainSettings": "settings", "Trainer": "training", "load": "nets", "sweep": "sweeps", "train": "training",
}  # fmt: skip

__all__ = [
    "AAGError", "ImageSet", "Method", "MethodSettings", "Run", "TrainSettings", "Trainer", "augment", "data",
    "evaluate", "load", "losses", "methods", "nets", "serving", "sweep", "sweeps", "train", "training",
]  # fmt: skip


__getattr__ = lazy_names("aag", _NAMES, _MODULES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
