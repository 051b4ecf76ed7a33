"""AutoAugment and RandAugment: the policies, what is drawn, how often, and the pixels."""

from collections import Counter, defaultdict
from fractions import Fraction
from math import ceil

import pillow_reference
import pytest
import torch
from distributions import P_VALUE, WITHOUT_MAGNITUDE, assert_distributed, blank
from scipy.stats import chisquare
from torch import Tensor
from torchvision import transforms

from aag.augment import OPS, POLICIES, AutoAugment, RandAugment, autoaugment, keys

N = 40_000
GEOMETRIC = {"ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"}
FACTORS = {"Brightness", "Color", "Contrast", "Sharpness"}

Op = tuple[str, float]  # a name and its magnitude, 0 where it has none


def magnitudes(op: str, level: int, side: int) -> list[float]:
    """Return AutoAugment's magnitudes at a level: with a minus and a plus."""
    if op in WITHOUT_MAGNITUDE:
        return [0.0, 0.0]
    if op == "Posterize":
        return [{0: 8, 1: 8, 2: 7, 3: 7, 4: 6, 5: 6, 6: 5, 7: 5, 8: 4, 9: 4}[level]] * 2
    if op == "Solarize":
        return [round(256 - 256 / 9 * level, 9)] * 2
    if op in FACTORS:
        return [round(1 - 0.1 * level, 9), round(1 + 0.1 * level, 9)]
    widest = {"ShearX": 0.3, "ShearY": 0.3, "Rotate": 30}.get(op, 150 / 331 * side)
    return [round(-widest * level / 9, 9), round(widest * level / 9, 9)]


def always(op: str, level: int):
    """Return a policy that applies one operation twice."""
    return (((op, 1.0, level), (op, 1.0, level)),) * 25


# --- policies --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cifar10", "svhn", "imagenet"])
def test_policy_agrees_with_torchvisions(name):
    theirs = transforms.AutoAugment(transforms.AutoAugmentPolicy(name)).policies
    assert len(POLICIES[name]) == 25
    for pair, their_pair in zip(POLICIES[name], theirs, strict=True):
        for (op, probability, level), (their_op, their_probability, their_level) in zip(pair, their_pair, strict=True):
            assert (op, probability) == (their_op, their_probability)
            assert op in OPS
            assert level in range(10)
            assert their_level in (level, None)  # torchvision drops the level where the operation has none


# --- AutoAugment -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_pairs_of_operations_occur_with_the_policys_probabilities(record_ops, policy):
    """Test sub-policies, probabilities and signs together."""
    expected: dict[tuple[Op, Op], float] = defaultdict(float)
    for pair in POLICIES[policy]:
        first, second = (
            [(("Identity", 0.0), 1 - p), *(((op, value), p / 2) for value in magnitudes(op, level, 32))]
            for op, p, level in pair
        )
        for one, p in first:
            for other, q in second:
                expected[one, other] += p * q / 25
    ops, _ = record_ops(AutoAugment(policy), blank(N), keys(1, 0, torch.arange(N)))
    assert_distributed(Counter(ops), expected)


@pytest.mark.parametrize(
    ("op", "level", "values"),
    [
        ("ShearX", 9, {-0.3, 0.3}),
        ("ShearY", 3, {-0.1, 0.1}),
        ("TranslateX", 9, {-14.501510574, 14.501510574}),
        ("TranslateY", 9, {-14.501510574, 14.501510574}),
        ("TranslateY", 0, {0}),
        ("Rotate", 9, {-30, 30}),
        ("Rotate", 2, {-6.666666667, 6.666666667}),
        ("Brightness", 7, {0.3, 1.7}),
        ("Color", 0, {1}),
        ("Contrast", 9, {0.1, 1.9}),
        ("Sharpness", 1, {0.9, 1.1}),
        ("Posterize", 0, {8}),
        ("Posterize", 5, {6}),
        ("Posterize", 8, {4}),
        ("Solarize", 0, {256}),
        ("Solarize", 2, {199.111111111}),
        ("Solarize", 9, {0}),
    ],
)
def test_level_has_its_magnitudes(record_ops, monkeypatch, op, level, values):
    monkeypatch.setitem(POLICIES, "svhn", always(op, level))
    ops, _ = record_ops(AutoAugment("svhn"), blank(64))
    assert {sequence for pair in ops for sequence in pair} == {(op, value) for value in values}


@pytest.mark.parametrize("augmentation", [AutoAugment("svhn"), RandAugment(1, 30)])
def test_translation_is_a_fraction_of_the_width_or_the_height(record_ops, monkeypatch, augmentation):
    monkeypatch.setitem(
        POLICIES, "svhn", ((("TranslateX", 1.0, 9), ("Identity", 1.0, 0)), (("TranslateY", 1.0, 9),) * 2) * 12
    )
    ops, _ = record_ops(augmentation, blank(2000, height=331, width=662))
    furthest = {op: max(v for pair in ops for o, v in pair if o == op) for op in ("TranslateX", "TranslateY")}
    assert furthest == {"TranslateX": 300, "TranslateY": 150}


@pytest.mark.parametrize(
    "augmentation",
    [AutoAugment(), AutoAugment("svhn"), AutoAugment("imagenet"), RandAugment(), RandAugment(3, 9, bins=11)],
    ids=str,
)
def test_views_are_pillows_for_the_operations_drawn(photographs, record_ops, augmentation):
    images = photographs[:400]
    ops, ours = record_ops(augmentation, images, keys(2, 5, torch.arange(400)), apply=True)
    for position in range(len(ops[0])):
        todo = [sequence[position] for sequence in ops]
        images = torch.stack([pillow_reference.operation(op, im, v) for (op, v), im in zip(todo, images, strict=True)])
    angled = torch.tensor([any(op in pillow_reference.INEXACT for op, _ in sequence) for sequence in ops])
    assert 10 < angled.sum() < 390
    assert torch.equal(ours[~angled], images[~angled])
    assert pillow_reference.fraction_differing(ours[angled], images[angled]) <= 0.001


# --- RandAugment -----------------------------------------------------------------------------------------------------


def test_fourteen_operations_are_equally_likely_at_both_positions(record_ops):
    ops, _ = record_ops(RandAugment(), blank(N))
    names = {name for pair in ops for name, _ in pair}
    assert names == set(OPS) - {"Invert"}
    pairs = Counter((first, second) for (first, _), (second, _) in ops)
    assert_distributed(pairs, {(a, b): 1 / 196 for a in names for b in names})


def rand_magnitudes(record_ops, augmentation: RandAugment, count: int = 4000) -> dict[str, Counter]:
    ops, _ = record_ops(augmentation, blank(count))
    values: dict[str, Counter] = defaultdict(Counter)
    for sequence in ops:
        for name, value in sequence:
            values[name][value] += 1
    return values


@pytest.mark.parametrize(
    ("augmentation", "shear", "translate", "rotate", "factor", "posterize", "solarize"),
    [
        (RandAugment(2, 10), 0.1, 4, 10, 0.3, 7, 170),  # a third of the range
        (RandAugment(2, 10, bins=11), 0.3, 14, 30, 0.9, 4, 0),  # the whole range
        (RandAugment(2, 0), 0, 0, 0, 0, 8, 255),
    ],
)
def test_magnitude_is_a_fraction_of_the_range(
    record_ops, augmentation, shear, translate, rotate, factor, posterize, solarize
):
    values = rand_magnitudes(record_ops, augmentation)
    spread = {"ShearX": shear, "ShearY": shear, "TranslateX": translate, "TranslateY": translate, "Rotate": rotate}
    expected = {op: {-value, value} for op, value in spread.items()}
    expected |= {op: {round(1 - factor, 9), round(1 + factor, 9)} for op in FACTORS}
    expected |= {
        "Posterize": {posterize},
        "Solarize": {solarize},
        "Identity": {0},
        "AutoContrast": {0},
        "Equalize": {0},
    }
    assert {op: set(counter) for op, counter in values.items()} == expected


def test_both_signs_are_equally_likely(record_ops):
    values = rand_magnitudes(record_ops, RandAugment(2, 10), N)
    for name in GEOMETRIC | FACTORS:
        assert chisquare(list(values[name].values())).pvalue > P_VALUE / 9


@pytest.mark.parametrize("bins", [11, 31, 52])
def test_rounding_moves_no_solarize_threshold_across_a_level(monkeypatch, bins):
    thresholds = []

    def record(op: Tensor, images: Tensor, magnitude: Tensor) -> Tensor:
        thresholds.append(magnitude[op == OPS.index("Solarize")][0].item())
        return images

    monkeypatch.setattr(autoaugment, "apply_ops", record)
    for magnitude in range(bins):
        RandAugment(1, magnitude, bins)(blank(200), seed=0)
    exact = [255 * (1 - Fraction(magnitude, bins - 1)) for magnitude in range(bins)]
    assert [ceil(t) for t in thresholds] == [ceil(t) for t in exact]
