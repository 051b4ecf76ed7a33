"""AutoAugment and RandAugment: what is drawn, how often, and what it does to the pixels."""

from collections import Counter, defaultdict
from fractions import Fraction
from math import ceil

import by_pillow
import pytest
import torch
from draws import CHANCE, PLAIN, assert_distributed, blank
from scipy.stats import chisquare
from torch import Tensor

from aag.augment import OPS, POLICIES, AutoAugment, AuxiliaryAugment, RandAugment, auxiliary, keys
from aag.errors import AAGError

N = 40_000
SIGNED_BY_SIDE = {"ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"}
FACTORS = {"Brightness", "Color", "Contrast", "Sharpness"}

Step = tuple[str, float]  # an operation and its magnitude, 0 where it has none


def meanings(op: str, level: int, side: int) -> list[float]:
    """AutoAugment's magnitudes for a level: two where a sign is drawn."""
    if op in PLAIN:
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
    """A policy of one operation, twice."""
    return (((op, 1.0, level), (op, 1.0, level)),) * 25


# --- AutoAugment -----------------------------------------------------------------------------------------------------


def test_every_sub_policy_is_drawn_equally_often(drawn, monkeypatch):
    # Solarize has no sign, so that its two levels tell which of 25 sub-policies was drawn.
    marked = tuple((("Solarize", 1.0, i // 5), ("Solarize", 1.0, i % 5)) for i in range(25))
    monkeypatch.setitem(POLICIES, "svhn", marked)
    steps, _ = drawn(AutoAugment("svhn"), blank(N))
    expected = {tuple((op, meanings(op, level, 32)[0]) for op, _, level in pair): 1 / 25 for pair in marked}
    assert len(expected) == 25
    assert_distributed(Counter(steps), expected)


@pytest.mark.parametrize("policy", POLICIES)
def test_pairs_of_steps_occur_as_the_table_says(drawn, policy):
    """Sub-policies, the probabilities of their two steps and both signs, all at once."""
    expected: dict[tuple[Step, Step], float] = defaultdict(float)
    for pair in POLICIES[policy]:
        first, second = (
            [(("Identity", 0.0), 1 - p), *(((op, value), p / 2) for value in meanings(op, level, 32))]
            for op, p, level in pair
        )
        for one, p in first:
            for other, q in second:
                expected[one, other] += p * q / 25
    steps, _ = drawn(AutoAugment(policy), blank(N), keys(1, 0, torch.arange(N)))
    assert_distributed(Counter(steps), expected)


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_a_step_runs_with_its_probability(drawn, monkeypatch, probability):
    monkeypatch.setitem(POLICIES, "svhn", ((("Invert", probability, 0), ("Invert", 1 - probability, 0)),) * 25)
    steps, _ = drawn(AutoAugment("svhn"), blank(N))
    first, second = (sum(step[place][0] == "Invert" for step in steps) / N for place in (0, 1))
    assert first == pytest.approx(probability, abs=4 * (probability * (1 - probability) / N) ** 0.5)
    assert second == pytest.approx(1 - probability, abs=4 * (probability * (1 - probability) / N) ** 0.5)


@pytest.mark.parametrize("op", sorted(SIGNED_BY_SIDE | FACTORS))
def test_half_of_the_images_get_the_plus_in_each_place_by_itself(drawn, monkeypatch, op):
    monkeypatch.setitem(POLICIES, "svhn", always(op, 6))
    steps, _ = drawn(AutoAugment("svhn"), blank(8000))
    low, high = meanings(op, 6, 32)
    assert low < high
    assert_distributed(Counter(steps), {((op, a), (op, b)): 1 / 4 for a in (low, high) for b in (low, high)})


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
def test_level_means(drawn, monkeypatch, op, level, values):
    monkeypatch.setitem(POLICIES, "svhn", always(op, level))
    steps, _ = drawn(AutoAugment("svhn"), blank(64))
    assert {step for pair in steps for step in pair} == {(op, value) for value in values}


@pytest.mark.parametrize("augmentation", [AutoAugment("svhn"), RandAugment(1, 30)])
def test_translation_is_a_share_of_the_width_or_the_height(drawn, monkeypatch, augmentation):
    monkeypatch.setitem(
        POLICIES, "svhn", ((("TranslateX", 1.0, 9), ("Identity", 1.0, 0)), (("TranslateY", 1.0, 9),) * 2) * 12
    )
    steps, _ = drawn(augmentation, blank(2000, height=331, width=662))
    furthest = {op: max(v for pair in steps for o, v in pair if o == op) for op in ("TranslateX", "TranslateY")}
    assert furthest == {"TranslateX": 300, "TranslateY": 150}


@pytest.mark.parametrize(
    "augmentation",
    [AutoAugment(), AutoAugment("svhn"), AutoAugment("imagenet"), RandAugment(), RandAugment(3, 9, bins=11)],
    ids=str,
)
def test_views_are_pillows_pixels_for_the_steps_drawn(photographs, drawn, augmentation):
    images = photographs[:400]
    steps, ours = drawn(augmentation, images, keys(2, 5, torch.arange(400)), act=True)
    for place in range(len(steps[0])):
        todo = [step[place] for step in steps]
        images = torch.stack([by_pillow.operation(op, im, v) for (op, v), im in zip(todo, images, strict=True)])
    angled = torch.tensor([any(op in by_pillow.FREE_ANGLED for op, _ in step) for step in steps])
    assert 10 < angled.sum() < 390
    assert torch.equal(ours[~angled], images[~angled])
    assert by_pillow.share_differing(ours[angled], images[angled]) <= 0.001


def test_policies_see_bytes_and_steps_follow_each_other(photographs, monkeypatch):
    monkeypatch.setitem(POLICIES, "svhn", ((("Posterize", 1.0, 9), ("Solarize", 1.0, 5)),) * 25)
    out = AutoAugment("svhn")(photographs[:50])
    posterized = photographs[:50] // 16 * 16
    assert torch.equal(out, torch.where(posterized < 114, posterized, 255 - posterized))


# --- RandAugment -----------------------------------------------------------------------------------------------------


def test_fourteen_operations_are_equally_likely_in_both_places(drawn):
    steps, _ = drawn(RandAugment(), blank(N))
    names = {name for pair in steps for name, _ in pair}
    assert names == set(OPS) - {"Invert"}
    pairs = Counter((first, second) for (first, _), (second, _) in steps)
    assert_distributed(pairs, {(a, b): 1 / 196 for a in names for b in names})


def rand_steps(drawn, augmentation: RandAugment, count: int = 4000) -> dict[str, Counter]:
    steps, _ = drawn(augmentation, blank(count))
    values: dict[str, Counter] = defaultdict(Counter)
    for step in steps:
        for name, value in step:
            values[name][value] += 1
    return values


def test_magnitude_10_of_31_bins_is_a_third_of_the_range(drawn):
    values = rand_steps(drawn, RandAugment(2, 10))
    assert {name: sorted(v) for name, v in values.items()} == {
        "Identity": [0],
        "ShearX": [-0.1, 0.1],
        "ShearY": [-0.1, 0.1],
        "TranslateX": [-4, 4],
        "TranslateY": [-4, 4],
        "Rotate": [-10, 10],
        "Brightness": [0.7, 1.3],
        "Color": [0.7, 1.3],
        "Contrast": [0.7, 1.3],
        "Sharpness": [0.7, 1.3],
        "Posterize": [7],
        "Solarize": [170],
        "AutoContrast": [0],
        "Equalize": [0],
    }


def test_magnitude_10_of_11_bins_is_the_whole_range(drawn):
    values = rand_steps(drawn, RandAugment(2, 10, bins=11))
    assert {name: sorted(v) for name, v in values.items() if name not in PLAIN} == {
        "ShearX": [-0.3, 0.3],
        "ShearY": [-0.3, 0.3],
        "TranslateX": [-14, 14],
        "TranslateY": [-14, 14],
        "Rotate": [-30, 30],
        "Brightness": [0.1, 1.9],
        "Color": [0.1, 1.9],
        "Contrast": [0.1, 1.9],
        "Sharpness": [0.1, 1.9],
        "Posterize": [4],
        "Solarize": [0],
    }


def test_magnitude_0_does_nothing_that_has_a_magnitude(drawn):
    values = rand_steps(drawn, RandAugment(2, 0))
    for name in SIGNED_BY_SIDE:
        assert set(values[name]) == {0}
    for name in FACTORS:
        assert set(values[name]) == {1}
    assert set(values["Posterize"]) == {8}
    assert set(values["Solarize"]) == {255}


def test_both_signs_are_equally_likely(drawn):
    values = rand_steps(drawn, RandAugment(2, 10), N)
    for name in SIGNED_BY_SIDE | FACTORS:
        assert chisquare(list(values[name].values())).pvalue > CHANCE / 9


@pytest.mark.parametrize("bins", [11, 31, 52])
def test_no_rounding_moves_a_solarize_threshold_across_a_level(monkeypatch, bins):
    thresholds = []

    def record(op: Tensor, images: Tensor, magnitude: Tensor) -> Tensor:
        thresholds.append(magnitude[op == OPS.index("Solarize")][0].item())
        return images

    monkeypatch.setattr(auxiliary, "apply_each", record)
    for magnitude in range(bins):
        RandAugment(1, magnitude, bins)(blank(200))
    exact = [255 * (1 - Fraction(magnitude, bins - 1)) for magnitude in range(bins)]
    assert [ceil(t) for t in thresholds] == [ceil(t) for t in exact]


@pytest.mark.parametrize("n", [1, 3, 5])
def test_n_operations_follow_each_other(drawn, n):
    steps, _ = drawn(RandAugment(n), blank(50))
    assert {len(step) for step in steps} == {n}


# --- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: AutoAugment("cifar"), "did you mean cifar10"),
        (lambda: RandAugment(n=0), "1 to 16 operations, not 0"),
        (lambda: RandAugment(magnitude=31), r"0 … 30, not 31"),
        (lambda: RandAugment(magnitude=-1), r"0 … 30, not -1"),
        (lambda: AuxiliaryAugment(crop="resize"), "did you mean resized"),
    ],
)
def test_a_mistake_is_answered_with_what_is_possible(build, message):
    with pytest.raises(AAGError, match=message):
        build()
