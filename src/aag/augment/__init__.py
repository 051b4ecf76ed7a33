"""Images to views, a whole batch at once on any device, each image with its own draw."""

from aag.augment.auxiliary import AutoAugment, AuxiliaryAugment, RandAugment
from aag.augment.base import Augmentation
from aag.augment.basic import BasicAugment
from aag.augment.ops import OPS, apply_op
from aag.augment.policies import POLICIES
from aag.rng import keys, permutation, uniforms

__all__ = [
    "OPS",
    "POLICIES",
    "Augmentation",
    "AutoAugment",
    "AuxiliaryAugment",
    "BasicAugment",
    "RandAugment",
    "apply_op",
    "keys",
    "permutation",
    "uniforms",
]
