"""AutoAugment, RandAugment and the auxiliary view: what is drawn, how often, and what it does to the pixels."""

from collections import Counter, defaultdict
from fractions import Fraction
from math import ceil

import by_pillow
import pytest
import torch
from scipy.stats import chi2_contingency, chisquare
from torch import Tensor
from torch.nn.functional import pad

from aag.augment import OPS, POLICIES, Augmentation, AutoAugment, AuxiliaryAugment, RandAugment, auxiliary, keys
from aag.errors import AAGError

CHANCE = 1e-3  # the seeds are fixed, so a test that passes once always does
N = 40_000
SIGNED_BY_SIDE = {"ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"}
FACTORS = {"Brightness", "Color", "Contrast", "Sharpness"}
PLAIN = {"Identity", "AutoContrast", "Equalize", "Invert"}

Step = tuple[str, float]  # an operation and its magnitude, 0 where it has none


def blank(count: int, height: int = 32, width: int = 32) -> Tensor:
    """Images that take no memory: for looking at draws."""
    return torch.zeros(1, 3, height, width, dtype=torch.uint8).expand(count, -1, -1, -1)


@pytest.fixture
def drawn(monkeypatch):
    """Calls an augmentation and gives, for each image, the operations it was to get, one after another."""

    def look(augmentation: Augmentation, images: Tensor, key: Tensor | None = None, act: bool = False):
        apply_each, places = auxiliary.apply_each, []

        def record(op: Tensor, images: Tensor, magnitude: Tensor) -> Tensor:
            names = [OPS[number] for number in op.tolist()]
            values = [round(value, 9) for value in magnitude.tolist()]
            places.append([(n, 0.0 if n in PLAIN else v) for n, v in zip(names, values, strict=True)])
            return apply_each(op, images, magnitude) if act else images

        with monkeypatch.context() as patch:
            patch.setattr(auxiliary, "apply_each", record)
            out = augmentation(images, key=key)
        return list(zip(*places, strict=True)), out

    return look


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


def assert_distributed(counts: Counter, expected: dict) -> None:
    """A χ² test of counts against probabilities; the rare outcomes are taken together, others may not occur."""
    assert set(counts) <= {outcome for outcome, p in expected.items() if p > 0}
    total = sum(counts.values())
    often = [outcome for outcome, p in expected.items() if p * total >= 5]
    observed = [counts[outcome] for outcome in often]
    wanted = [expected[outcome] * total for outcome in often]
    if total - sum(wanted) > 1:
        observed.append(total - sum(observed))
        wanted.append(total - sum(wanted))
    scale = sum(observed) / sum(wanted)  # 1 but for rounding
    assert scale == pytest.approx(1, abs=1e-3)
    assert chisquare(observed, [w * scale for w in wanted]).pvalue > CHANCE


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


# --- the auxiliary view ----------------------------------------------------------------------------------------------


class Nothing(Augmentation):
    """A policy that leaves the crop to be looked at."""

    def draw(self, images: Tensor, key: Tensor) -> Tensor:
        return images


@pytest.mark.parametrize("policy", [AutoAugment(), RandAugment()], ids=str)
def test_without_a_crop_the_view_is_the_policys(photographs, policy):
    key = keys(0, 3, torch.arange(200))
    assert torch.equal(
        AuxiliaryAugment(policy, crop="none")(photographs[:200], key=key), policy(photographs[:200], key=key)
    )


@pytest.mark.parametrize("crop", ["resized", "padded"])
def test_the_crop_does_not_change_what_the_policy_draws(photographs, drawn, crop):
    key = keys(0, 3, torch.arange(200))
    alone, _ = drawn(AutoAugment(), photographs[:200], key)
    after_crop, _ = drawn(AuxiliaryAugment(crop=crop), photographs[:200], key)
    assert after_crop == alone


def test_resized_crop_comes_first_and_is_within_a_level_of_pillows(photographs, monkeypatch):
    resample, seen = auxiliary.resample, []
    monkeypatch.setattr(auxiliary, "resample", lambda *args: seen.append(args) or resample(*args))
    key = keys(0, 0, torch.arange(300))
    ours = AuxiliaryAugment(Nothing())(photographs[:300], key=key)
    ((_, box, flip, size),) = seen
    assert size == (32, 32)
    assert 0.2 * 1024 * 0.9 < (box[:, 2] * box[:, 3]).min() < 300
    theirs = [by_pillow.crop_and_resize(*one, size) for one in zip(photographs[:300], box, flip, strict=True)]
    assert by_pillow.levels_apart(ours, torch.stack(theirs)) <= 1
    policy = AutoAugment()
    assert torch.equal(AuxiliaryAugment(policy)(photographs[:300], key=key), policy(ours, key=key))


@pytest.mark.parametrize("crop", ["resized", "padded"])
def test_crop_flip_and_policy_are_drawn_independently(drawn, monkeypatch, crop):
    seen = {}

    def watched_resample(images, box, flip, size):
        top, left, height, width = box.T
        seen.update(small=height * width < 600, high=2 * top < 32 - height, left=2 * left < 32 - width, flip=flip)
        return images.float()

    def watched_affine(images, matrix):
        sign, _, right, _, _, down = matrix.T
        seen.update(left=right - 32 * (sign < 0) < 0, high=down < 0, flip=sign < 0)
        return images

    monkeypatch.setattr(auxiliary, "resample", watched_resample)
    monkeypatch.setattr(auxiliary, "affine", watched_affine)
    steps, _ = drawn(AuxiliaryAugment(RandAugment(), crop=crop), blank(12_000))
    of_crop = {name: value.long() for name, value in seen.items() if name != "flip"}
    others = {"flip": seen["flip"].long()}
    for place in (0, 1):
        others[f"operation {place}"] = torch.tensor([OPS.index(step[place][0]) for step in steps])
    assert all(0.2 < value.double().mean() < 0.8 for value in of_crop.values())
    pairs = [(a, b) for a in {**of_crop, "flip": 0} for b in others if a != b]
    for a, b in pairs:
        table = torch.bincount({**of_crop, **others}[a] * len(OPS) + others[b], minlength=2 * len(OPS)).view(2, -1)
        occurring = table[:, table.sum(dim=0) > 0]
        assert chi2_contingency(occurring).pvalue > CHANCE / len(pairs), f"{a} and {b}"


def padded_crops(images: Tensor, reach: int) -> dict[tuple[int, int, bool], Tensor]:
    """Every crop of the images, framed by gray, and its mirror image."""
    side = images.shape[3]
    framed = pad(images, (reach,) * 4, value=128)
    crops = {}
    for down in range(2 * reach + 1):
        for right in range(2 * reach + 1):
            crop = framed[..., down : down + side, right : right + side]
            crops[down, right, False] = crop
            crops[down, right, True] = crop.flip(3)
    return crops


def test_padded_crops_are_whole_shifts_of_the_framed_image_all_equally_likely(photographs):
    images = photographs[:1000]
    out = AuxiliaryAugment(Nothing(), crop="padded", pad=2)(images, key=keys(0, 0, torch.arange(1000)))
    crops = padded_crops(images, 2)
    counts = Counter({which: int((out == crop).flatten(1).all(dim=1).sum()) for which, crop in crops.items()})
    assert sum(counts.values()) == 1000  # each view is one of the crops, and only one
    assert_distributed(counts, dict.fromkeys(crops, 1 / 50))


def test_padded_crops_reach_four_pixels(photographs):
    out = AuxiliaryAugment(Nothing(), crop="padded", flip=0.0)(photographs[:1].expand(1000, -1, -1, -1))
    crops = {which: crop for which, crop in padded_crops(photographs[:1], 4).items() if not which[2]}
    found = {which for which, crop in crops.items() if (out == crop).flatten(1).all(dim=1).any()}
    assert found == set(crops)


@pytest.mark.parametrize("crop", ["resized", "padded"])
@pytest.mark.parametrize(("flip", "low", "high"), [(0.0, 0, 0), (0.5, 440, 560), (1.0, 1000, 1000)])
def test_flips_occur_with_their_probability(photographs, crop, flip, low, high):
    uncropped = AuxiliaryAugment(Nothing(), crop=crop, flip=flip, scale=(1, 1), ratio=(1, 1), pad=0)
    out = uncropped(photographs)
    mirrored = (out == photographs.flip(3)).flatten(1).all(dim=1)
    straight = (out == photographs).flatten(1).all(dim=1)
    assert (mirrored ^ straight).all()
    assert low <= mirrored.sum() <= high


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
