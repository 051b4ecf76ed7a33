"""Which runs have our kernels, and why others do without."""

from dataclasses import replace

import pytest

from aag.config import TrainConfig
from aag.training.runtime import _without_kernels


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, ""),
        ({"network": "resnet50"}, ""),
        ({"network": "alexnet-ip", "width": 10}, ""),  # a ResNet's alone
        ({"network": "resnet18-edges"}, ""),
        ({"network": "resnet18-edges", "width": 8}, "8 is no multiple of 16"),
        ({"network": "resnet18+sobel"}, "none for resnet18+sobel"),
        ({"network": "amdim-edges"}, "none for amdim-edges"),
        ({"network": "vit_tiny_patch16_224"}, "vit_tiny_patch16_224 is timm's"),
        ({"forward": "per-view"}, "one view at a time"),
    ],
    ids=str,
)
def test_kernels_know_our_networks(changes, reason):
    assert _without_kernels(replace(TrainConfig(), **changes)) == reason
