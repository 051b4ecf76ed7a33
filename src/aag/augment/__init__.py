"""Augmentations: make views of a whole batch at once, on any device, with a random draw for each image."""

from aag.augment.autoaugment import AutoAugment, RandAugment
from aag.augment.auxiliary import AuxiliaryAugment
from aag.augment.base import Augmentation
from aag.augment.basic import BasicAugment
from aag.augment.ops import OPS, apply_op
from aag.augment.policies import POLICIES
from aag.rng import keys, permutation, uniforms

__all__ = [
    "OPS", "POLICIES", "Augmentation", "AutoAugment", "AuxiliaryAugment", "BasicAugment", "RandAugment", "apply_op",
    "keys", "permutation", "uniforms",
]  # fmt: skip
