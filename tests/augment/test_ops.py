"""Every operation against Pillow, image by image."""

import shutil

import by_pillow
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from aag.augment import OPS, apply_op, ops
from aag.augment.ops import WITHOUT_MAGNITUDE, apply_each
from aag.errors import AAGError

FACTORS = [0.0, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.999, 1.0, 1.001, 1.1, 1.3, 1.5, 1.7, 1.9, 2.5]
SLOPES = [-1.0, -0.3, -0.2667, -0.1, -0.0333, 0.0, 0.01, 0.0667, 0.1, 0.2, 0.3, 0.75]
SHIFTS = [-40, -14.5, -14.4, -9.667, -4.0, -1.5, -0.5, -0.2, 0, 0.2, 0.5, 1.49, 1.5, 4.83, 14.5, 14.51, 31, 32]
RANGE: dict[str, list[float]] = {
    "ShearX": SLOPES,
    "ShearY": SLOPES,
    "TranslateX": SHIFTS,
    "TranslateY": SHIFTS,
    "Rotate": [-360, -90, -45, -30, -26.667, -10, -3.333, -0.4, 0, 1, 6.667, 10, 13.3333, 23.7, 30, 90, 180, 270, 400],
    "Brightness": FACTORS,
    "Color": FACTORS,
    "Contrast": FACTORS,
    "Sharpness": FACTORS,
    "Posterize": [1, 2, 3, 4, 5, 6, 7, 8],
    "Solarize": [0, 0.5, 1, 28.444, 85.333, 127, 128, 170, 170.667, 199.111, 254, 255, 256],
    **{name: [0.0] for name in sorted(WITHOUT_MAGNITUDE)},
}


def spread_over(name: str, count: int) -> list[float]:
    """The operation's magnitudes in turn, one for each of `count` images."""
    return [RANGE[name][i % len(RANGE[name])] for i in range(count)]


def extremes(height: int, width: int) -> Tensor:
    """Constant, two-valued, ramping and nearly constant images, where tables and means meet their edges."""
    place = torch.arange(height * width).view(height, width)
    flat = [torch.full((3, height, width), value) for value in (0, 1, 127, 128, 254, 255)]
    board = (place % 2 * 255).expand(3, height, width)
    ramp = (place % 256).expand(3, height, width)
    odd_one_out = torch.full((3, height, width), 200)
    odd_one_out[:, -1, -1] = 7
    by_channel = torch.stack([place % 256, torch.full_like(place, 90), 255 - place % 256])
    return torch.stack([*flat, board, ramp, odd_one_out, by_channel]).to(torch.uint8)


def test_the_range_names_every_operation():
    assert sorted(RANGE) == sorted(OPS)
    assert len(OPS) == 15


@pytest.mark.parametrize("name", OPS)
def test_operation_gives_pillows_pixels_over_its_range(photographs, name):
    for start, magnitude in enumerate(RANGE[name]):
        images = photographs[start * 40 : start * 40 + 40]
        theirs = by_pillow.operations(name, images, [magnitude] * len(images))
        differing = by_pillow.share_differing(apply_op(name, images, magnitude), theirs)
        assert differing <= by_pillow.allowed(name), f"{name} {magnitude}"


@pytest.mark.parametrize("name", [name for name in OPS if name != "Identity"])
def test_operation_changes_photographs(photographs, name):
    strongest = {"Posterize": 4.0, "Solarize": 100.0}.get(name, RANGE[name][-4:][0])
    changed = (apply_op(name, photographs[:100], strongest) != photographs[:100]).flatten(1).any(dim=1)
    assert changed.sum() > 90


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize(("height", "width"), [(48, 20), (17, 31), (3, 3), (2, 5), (1, 1)])
def test_operation_gives_pillows_pixels_at_any_size(photographs, name, height, width):
    count = len(RANGE[name])
    images = photographs[:count].repeat(1, 1, 2, 2)[..., 3 : 3 + height, 9 : 9 + width]
    theirs = by_pillow.operations(name, images, RANGE[name])
    ours = apply_op(name, images, torch.tensor(RANGE[name]).double())
    assert by_pillow.share_differing(ours, theirs) <= by_pillow.allowed(name)


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize(("height", "width"), [(32, 32), (5, 9), (1, 1)])
def test_operation_gives_pillows_pixels_on_extreme_images(name, height, width):
    for magnitude in RANGE[name]:
        images = extremes(height, width)
        theirs = by_pillow.operations(name, images, [magnitude] * len(images))
        differing = by_pillow.share_differing(apply_op(name, images, magnitude), theirs)
        assert differing <= by_pillow.allowed(name), f"{name} {magnitude}"


@pytest.mark.parametrize("degrees", [90, 180, 270, -90, 450])
def test_quarter_turns_of_square_images_lose_nothing(photographs, degrees):
    turned = apply_op("Rotate", photographs[:50], degrees)
    assert torch.equal(turned, photographs[:50].rot90(degrees // 90, dims=(2, 3)))


@pytest.mark.parametrize("name", [name for name in OPS if name not in WITHOUT_MAGNITUDE])
def test_each_image_has_its_own_magnitude(photographs, name):
    magnitudes = spread_over(name, 40)
    together = apply_op(name, photographs[:40], torch.tensor(magnitudes).double())
    alone = [apply_op(name, photographs[i : i + 1], magnitudes[i]) for i in range(40)]
    assert torch.equal(together, torch.cat(alone))


@pytest.mark.parametrize("name", sorted(WITHOUT_MAGNITUDE))
def test_operations_without_magnitude_ignore_one(photographs, name):
    assert torch.equal(apply_op(name, photographs[:20]), apply_op(name, photographs[:20], 7.0))


byte_images = arrays(np.uint8, st.tuples(st.just(3), st.integers(1, 12), st.integers(1, 12)))
point_steps = st.one_of(
    st.tuples(st.sampled_from(["Brightness", "Color", "Contrast", "Sharpness"]), st.floats(0, 3, width=32)),
    st.tuples(st.just("Solarize"), st.floats(-1, 257)),
    st.tuples(st.just("Posterize"), st.integers(1, 8)),
    st.tuples(st.sampled_from(["TranslateX", "TranslateY"]), st.floats(-15, 15)),
    st.tuples(st.sampled_from(["AutoContrast", "Equalize", "Invert"]), st.just(0)),
)


@settings(max_examples=150, deadline=None)
@given(byte_images, point_steps)
def test_random_images_and_magnitudes_give_pillows_pixels(image, step):
    name, magnitude = step
    one = torch.from_numpy(image)
    assert torch.equal(apply_op(name, one[None], magnitude)[0], by_pillow.operation(name, one, magnitude))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([*by_pillow.FREE_ANGLED]), st.floats(-1, 1))
def test_random_angles_find_pillows_pixels(seed, name, share):
    magnitude = share * (180 if name == "Rotate" else 1)
    images = torch.randint(0, 256, (1, 3, 40, 30), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    # One pixel on the edge between two neighbours is 3 of 3600 values.
    assert (
        by_pillow.share_differing(apply_op(name, images, magnitude)[0], by_pillow.operation(name, images[0], magnitude))
        <= 0.005
    )


@pytest.mark.parametrize("name", OPS)
def test_input_is_left_alone_and_an_empty_batch_stays_empty(photographs, name):
    before = photographs[:8].clone()
    given_images = before.clone()
    apply_op(name, given_images, 1.5)
    assert torch.equal(given_images, before)
    assert apply_op(name, photographs[:0], 1.5).shape == (0, 3, 32, 32)


def test_an_unknown_operation_is_answered_with_the_near_one(photographs):
    with pytest.raises(AAGError, match=r"Rotat\b.*did you mean.*Rotate"):
        apply_op("Rotat", photographs[:1], 3)


@pytest.mark.parametrize("name", [name for name in OPS if name not in WITHOUT_MAGNITUDE])
def test_a_missing_magnitude_is_named(photographs, name):
    with pytest.raises(AAGError, match=f"{name} needs a magnitude"):
        apply_op(name, photographs[:1])


@pytest.mark.parametrize(
    "images",
    [
        torch.zeros(2, 3, 8, 8),
        torch.zeros(2, 1, 8, 8).byte(),
        torch.zeros(3, 8, 8).byte(),
        torch.zeros(2, 3, 8, 8).int(),
    ],
    ids=["float", "one channel", "one image", "int32"],
)
def test_only_batches_of_colour_bytes_are_taken(images):
    with pytest.raises(AAGError, match="expected uint8 images"):
        apply_op("Invert", images)


# --- one operation for each image ------------------------------------------------------------------------------------


def mixed(count: int) -> tuple[Tensor, Tensor]:
    """An operation and a magnitude for each of `count` images, all operations among them."""
    generator = torch.Generator().manual_seed(20)
    op = torch.randint(len(OPS), (count,), generator=generator)
    place = torch.randint(1000, (count,), generator=generator).tolist()
    magnitude = [RANGE[OPS[o]][p % len(RANGE[OPS[o]])] for o, p in zip(op.tolist(), place, strict=True)]
    return op, torch.tensor(magnitude, dtype=torch.float64)


def test_mixed_operations_give_each_image_pillows_pixels(photographs):
    op, magnitude = mixed(600)
    ours = apply_each(op, photographs[:600], magnitude)
    for number, name in enumerate(OPS):
        index = (op == number).nonzero()[:, 0]
        assert len(index) > 20
        theirs = by_pillow.operations(name, photographs[index], magnitude[index].tolist())
        assert by_pillow.share_differing(ours[index], theirs) <= by_pillow.allowed(name), name


@pytest.mark.parametrize("shape", [(32, 32), (24, 40), (2, 5), (1, 1)])
def test_all_operations_at_once_select_the_same_pixels(photographs, monkeypatch, shape):
    op, magnitude = mixed(600)
    images = photographs[:600].repeat(1, 1, 1, 2)[..., : shape[0], 5 : 5 + shape[1]]
    one_kind_after_another = apply_each(op, images, magnitude)
    assert torch.equal(ops._all_at_once(op, images, magnitude), one_kind_after_another)
    monkeypatch.setattr(ops, "dense", lambda images: True)
    monkeypatch.setattr(ops, "_single", lambda *args: pytest.fail("gathered although dense"))
    assert torch.equal(apply_each(op, images, magnitude), one_kind_after_another)


def test_mixed_operations_leave_their_input_alone(photographs):
    op, magnitude = mixed(100)
    images = photographs[:100].clone()
    apply_each(op, images, magnitude)
    ops._all_at_once(op, images, magnitude)
    assert torch.equal(images, photographs[:100])


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler")
def test_compiled_operations_select_the_same_pixels(photographs):
    op, magnitude = mixed(200)
    compiled = torch.compile(ops._all_at_once, fullgraph=True)
    assert torch.equal(compiled(op, photographs[:200], magnitude), apply_each(op, photographs[:200], magnitude))
