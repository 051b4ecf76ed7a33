"""AutoAugment's tables, against torchvision's copy and a few entries typed from the paper."""

import pytest
from torchvision.transforms import AutoAugment, AutoAugmentPolicy

from aag.augment import OPS, POLICIES

THEIRS = {
    "cifar10": AutoAugmentPolicy.CIFAR10,
    "svhn": AutoAugmentPolicy.SVHN,
    "imagenet": AutoAugmentPolicy.IMAGENET,
}


def test_three_sets_have_a_policy():
    assert sorted(POLICIES) == ["cifar10", "imagenet", "svhn"]


@pytest.mark.parametrize("name", THEIRS)
def test_policy_has_25_pairs_of_known_operations(name):
    assert len(POLICIES[name]) == 25
    for pair in POLICIES[name]:
        assert len(pair) == 2
        for op, probability, level in pair:
            assert op in OPS
            assert probability * 10 == pytest.approx(round(probability * 10))
            assert 0 <= probability <= 1
            assert level in range(10)


@pytest.mark.parametrize("name", THEIRS)
def test_policy_agrees_with_torchvisions(name):
    for ours, theirs in zip(POLICIES[name], AutoAugment(THEIRS[name]).policies, strict=True):
        for (op, probability, level), (their_op, their_probability, their_level) in zip(ours, theirs, strict=True):
            assert (op, probability) == (their_op, their_probability)
            assert their_level in (level, None)  # torchvision drops the level where the operation has none


@pytest.mark.parametrize(
    ("name", "number", "pair"),
    [
        ("cifar10", 1, (("Invert", 0.1, 7), ("Contrast", 0.2, 6))),
        ("cifar10", 4, (("ShearY", 0.5, 8), ("TranslateY", 0.7, 9))),
        ("cifar10", 15, (("Solarize", 0.5, 2), ("Invert", 0.0, 3))),
        ("cifar10", 22, (("TranslateY", 0.9, 9), ("TranslateY", 0.7, 9))),
        ("cifar10", 25, (("TranslateY", 0.7, 9), ("AutoContrast", 0.9, 1))),
        ("svhn", 1, (("ShearX", 0.9, 4), ("Invert", 0.2, 3))),
        ("svhn", 16, (("Invert", 0.8, 5), ("TranslateY", 0.0, 2))),
        ("svhn", 25, (("ShearX", 0.7, 2), ("Invert", 0.1, 5))),
        ("imagenet", 1, (("Posterize", 0.4, 8), ("Rotate", 0.6, 9))),
        ("imagenet", 19, (("ShearX", 0.6, 5), ("Equalize", 1.0, 9))),
    ],
)
def test_sub_policy_is_as_printed(name, number, pair):
    assert POLICIES[name][number - 1] == pair


def test_imagenets_last_five_repeat_earlier_ones():
    policy = POLICIES["imagenet"]
    assert policy[20:] == tuple(policy[number - 1] for number in (5, 2, 14, 15, 3))
