"""Every operation against Pillow, image by image."""

import shutil

import numpy as np
import pillow_reference
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

from aag.augment import OPS, apply_op, ops
from aag.augment.ops import WITHOUT_MAGNITUDE, apply_ops
from aag.errors import AAGError

IMAGES = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
FACTORS = [0.0, 0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.999, 1.0, 1.001, 1.1, 1.3, 1.5, 1.7, 1.9, 2.5]
SLOPES = [-1.0, -0.3, -0.2667, -0.1, -0.0333, 0.0, 0.01, 0.0667, 0.1, 0.2, 0.3, 0.75]
SHIFTS = [-40, -14.5, -14.4, -9.667, -4.0, -1.5, -0.5, -0.2, 0, 0.2, 0.5, 1.49, 1.5, 4.83, 14.5, 14.51, 31, 32]
RANGE: dict[str, list[float]] = {
    **dict.fromkeys(["ShearX", "ShearY"], SLOPES),
    **dict.fromkeys(["TranslateX", "TranslateY"], SHIFTS),
    **dict.fromkeys(["Brightness", "Color", "Contrast", "Sharpness"], FACTORS),
    "Rotate": [-360, -90, -45, -30, -26.667, -10, -3.333, -0.4, 0, 1, 6.667, 10, 13.3333, 23.7, 30, 90, 180, 270, 400],
    "Posterize": [1, 2, 3, 4, 5, 6, 7, 8],
    "Solarize": [0, 0.5, 1, 28.444, 85.333, 127, 128, 170, 170.667, 199.111, 254, 255, 256],
    **{name: [0.0] for name in sorted(WITHOUT_MAGNITUDE)},
}


def extremes(height: int, width: int) -> Tensor:
    """Return constant, two-valued, ramping and nearly constant images: the edge cases of tables and means."""
    place = torch.arange(height * width).view(height, width)
    flat = [torch.full((3, height, width), value) for value in (0, 1, 127, 128, 254, 255)]
    board = (place % 2 * 255).expand(3, height, width)
    ramp = (place % 256).expand(3, height, width)
    one_different = torch.full((3, height, width), 200)
    one_different[:, -1, -1] = 7
    by_channel = torch.stack([place % 256, torch.full_like(place, 90), 255 - place % 256])
    return torch.stack([*flat, board, ramp, one_different, by_channel]).to(torch.uint8)


def test_every_operation_has_a_range():
    assert sorted(RANGE) == sorted(OPS)
    assert len(OPS) == 15


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize(("height", "width"), [(48, 20), (17, 31), (32, 32), (5, 9), (3, 3), (2, 5), (1, 1)])
def test_operation_gives_pillows_pixels_at_any_size_and_on_extreme_images(photographs, name, height, width):
    for magnitude in RANGE[name]:
        images = torch.cat(
            [photographs[:2].repeat(1, 1, 2, 2)[..., 3 : 3 + height, 9 : 9 + width], extremes(height, width)]
        )
        theirs = pillow_reference.operations(name, images, [magnitude] * len(images))
        differing = pillow_reference.fraction_differing(apply_op(name, images, magnitude), theirs)
        assert differing <= pillow_reference.tolerated_fraction(name), f"{name} {magnitude}"


@pytest.mark.parametrize("degrees", [90, 180, 270, -90, 450])
def test_quarter_turns_of_square_images_lose_nothing(photographs, degrees):
    turned = apply_op("Rotate", photographs[:50], degrees)
    assert torch.equal(turned, photographs[:50].rot90(degrees // 90, dims=(2, 3)))


@pytest.mark.parametrize("name", [name for name in OPS if name not in WITHOUT_MAGNITUDE])
def test_each_image_has_its_own_magnitude(photographs, name):
    magnitudes = [RANGE[name][i % len(RANGE[name])] for i in range(40)]
    together = apply_op(name, photographs[:40], torch.tensor(magnitudes).double())
    alone = [apply_op(name, photographs[i : i + 1], magnitudes[i]) for i in range(40)]
    assert torch.equal(together, torch.cat(alone))


@pytest.mark.parametrize("name", sorted(WITHOUT_MAGNITUDE))
def test_operations_without_magnitude_ignore_one(photographs, name):
    assert torch.equal(apply_op(name, photographs[:20]), apply_op(name, photographs[:20], 7.0))


byte_images = arrays(np.uint8, st.tuples(st.just(3), st.integers(1, 12), st.integers(1, 12)))
exact_ops = st.one_of(
    st.tuples(st.sampled_from(["Brightness", "Color", "Contrast", "Sharpness"]), st.floats(0, 3, width=32)),
    st.tuples(st.just("Solarize"), st.floats(-1, 257)),
    st.tuples(st.just("Posterize"), st.integers(1, 8)),
    st.tuples(st.sampled_from(["TranslateX", "TranslateY"]), st.floats(-15, 15)),
    st.tuples(st.sampled_from(["AutoContrast", "Equalize", "Invert"]), st.just(0)),
)


@settings(max_examples=150, deadline=None)
@given(byte_images, exact_ops)
def test_random_images_and_magnitudes_give_pillows_pixels(image, op):
    name, magnitude = op
    one = torch.from_numpy(image)
    assert torch.equal(apply_op(name, one[None], magnitude)[0], pillow_reference.operation(name, one, magnitude))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([*pillow_reference.INEXACT]), st.floats(-1, 1))
def test_random_angles_give_pillows_pixels(seed, name, share):
    magnitude = share * (180 if name == "Rotate" else 1)
    images = torch.randint(0, 256, (1, 3, 40, 30), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    # One pixel on the edge between two neighbours is 3 of 3600 values.
    assert (
        pillow_reference.fraction_differing(
            apply_op(name, images, magnitude)[0], pillow_reference.operation(name, images[0], magnitude)
        )
        <= 0.005
    )


@pytest.mark.parametrize("name", OPS)
def test_input_is_unchanged_and_an_empty_batch_stays_empty(photographs, name):
    before = photographs[:8].clone()
    given_images = before.clone()
    apply_op(name, given_images, 1.5)
    assert torch.equal(given_images, before)
    assert apply_op(name, photographs[:0], 1.5).shape == (0, 3, 32, 32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("Rotat", IMAGES, 3), r"Rotat\b.*did you mean.*Rotate"),
        ((None, IMAGES, 3), "unknown operation None"),
        (("Rotate", IMAGES, float("nan")), "Rotate needs finite magnitudes, not nan"),
        (("Solarize", IMAGES, torch.tensor([1, float("inf")])), "Solarize needs finite magnitudes, not inf"),
        (("Color", IMAGES, "strong"), "Color takes a number or a tensor as its magnitude, not 'strong'"),
        (("Color", IMAGES, [1.0, 2.0, 3.0]), r"one for each of 2 images; got \[3\]"),
        (("Invert", IMAGES.float()), r"expected RGB images .* uint8; got torch.float32 \[2, 3, 8, 8\]"),
        (("Invert", IMAGES[:, :1]), r"got torch.uint8 \[2, 1, 8, 8\]; repeat the grey channel"),
        (("Invert", IMAGES.int()), "got torch.int32"),
        (("Invert", IMAGES.numpy()), "got ndarray"),
        *(((name, IMAGES), f"{name} needs a magnitude") for name in OPS if name not in WITHOUT_MAGNITUDE),
    ],
)
def test_a_mistake_is_answered_in_one_line(arguments, message):
    with pytest.raises(AAGError, match=message):
        apply_op(*arguments)


# --- a different operation per image ---------------------------------------------------------------------------------


def mixed(count: int) -> tuple[Tensor, Tensor]:
    """Return an operation and a magnitude for each of `count` images, with all operations among them."""
    generator = torch.Generator().manual_seed(20)
    op = torch.randint(len(OPS), (count,), generator=generator)
    place = torch.randint(1000, (count,), generator=generator).tolist()
    magnitude = [RANGE[OPS[o]][p % len(RANGE[OPS[o]])] for o, p in zip(op.tolist(), place, strict=True)]
    return op, torch.tensor(magnitude, dtype=torch.float64)


def test_mixed_operations_give_each_image_pillows_pixels(photographs):
    op, magnitude = mixed(600)
    ours = apply_ops(op, photographs[:600], magnitude)
    for number, name in enumerate(OPS):
        index = (op == number).nonzero()[:, 0]
        assert len(index) > 20
        theirs = pillow_reference.operations(name, photographs[index], magnitude[index].tolist())
        assert pillow_reference.fraction_differing(ours[index], theirs) <= pillow_reference.tolerated_fraction(name), (
            name
        )


@pytest.mark.parametrize("shape", [(32, 32), (24, 40), (2, 5), (1, 1)])
def test_static_shapes_give_the_same_pixels(photographs, monkeypatch, shape):
    op, magnitude = mixed(600)
    images = photographs[:600].repeat(1, 1, 1, 2)[..., : shape[0], 5 : 5 + shape[1]]
    one_op_at_a_time = apply_ops(op, images, magnitude)
    assert torch.equal(ops._apply_ops_statically(op, images, magnitude), one_op_at_a_time)
    monkeypatch.setattr(ops, "needs_static_shapes", lambda images: True)
    monkeypatch.setattr(ops, "_apply_op", lambda *args: pytest.fail("gathered although shapes are static"))
    before = images.clone()
    assert torch.equal(apply_ops(op, images, magnitude), one_op_at_a_time)
    assert torch.equal(images, before)


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler")
def test_compiled_operations_give_the_same_pixels(photographs):
    op, magnitude = mixed(200)
    compiled = torch.compile(ops._apply_ops_statically, fullgraph=True)
    assert torch.equal(compiled(op, photographs[:200], magnitude), apply_ops(op, photographs[:200], magnitude))
