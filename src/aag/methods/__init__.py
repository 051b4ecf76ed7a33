"""AAG and its rivals, one short file each: the views a method asks for, its loss, and the memory it keeps."""

from aag.augment import Augmentation
from aag.config import TrainConfig
from aag.errors import unknown
from aag.methods.aag import AAG
from aag.methods.amdim import AMDIM
from aag.methods.base import Embeddings, Method, Outcome, Setting
from aag.methods.deepcluster import DeepCluster
from aag.methods.instance import Instance
from aag.methods.isif import ISIF
from aag.methods.moco import MoCo
from aag.methods.neighbours import AND
from aag.methods.simclr import SimCLR
from aag.methods.super_and import SuperAND

METHODS: dict[str, type[Method]] = {
    "aag": AAG, "instance": Instance, "isif": ISIF, "simclr": SimCLR, "moco": MoCo, "and": AND,
    "super-and": SuperAND, "deepcluster": DeepCluster, "amdim": AMDIM,
}  # fmt: skip

__all__ = ["AAG", "METHODS", "Embeddings", "Method", "Outcome", "Setting", "build", "families"]


def build(setting: Setting) -> Method:
    """The method that the configuration names."""
    return _kind(setting.config).from_setting(setting)


def families(config: TrainConfig) -> tuple[Augmentation, ...]:
    """The views of the method that the configuration names."""
    return _kind(config).families(config)


def _kind(config: TrainConfig) -> type[Method]:
    if config.method not in METHODS:
        raise unknown("method", config.method, METHODS)
    return METHODS[config.method]
