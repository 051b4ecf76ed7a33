"""Crops, resizing and affine maps, against torchvision and Pillow."""

import pillow_reference
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare, ks_2samp
from torch.nn.functional import pad
from torchvision.transforms import RandomResizedCrop

from aag.augment import keys, uniforms
from aag.augment.geometry import affine, crop_boxes, resample

RATIO = (3 / 4, 4 / 3)


def boxes(count: int, height: int, width: int, scale=(0.2, 1.0), ratio=RATIO, seed: int = 0) -> torch.Tensor:
    return crop_boxes(uniforms(keys(seed, 0, torch.arange(count)), 22), height, width, scale, ratio)


# --- boxes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("height", "width", "scale"),
    [(32, 32, (0.2, 1.0)), (32, 32, (0.08, 1.0)), (96, 64, (0.2, 1.0)), (20, 40, (0.5, 1.0))],
)
def test_boxes_are_distributed_as_torchvisions(height, width, scale):
    torch.manual_seed(0)
    blank = torch.empty(3, height, width)
    theirs = torch.tensor([RandomResizedCrop.get_params(blank, scale, RATIO) for _ in range(3000)]).double()
    ours = boxes(20_000, height, width, scale).double()
    measures = {
        **{name: lambda b, i=i: b[:, i] for i, name in enumerate(("top", "left", "height", "width"))},
        "area": lambda b: b[:, 2] * b[:, 3],
        "aspect": lambda b: b[:, 3] / b[:, 2],
        "top, as a fraction of the free space": lambda b: b[:, 0] / (height - b[:, 2]).clamp(min=1),
        "left, as a fraction of the free space": lambda b: b[:, 1] / (width - b[:, 3]).clamp(min=1),
    }
    for name, measure in measures.items():
        assert ks_2samp(measure(ours), measure(theirs)).pvalue > 1e-3, name
        spread = measure(theirs).std().item()
        assert measure(ours).mean().item() == pytest.approx(measure(theirs).mean().item(), abs=0.1 * spread), name


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 80), st.integers(1, 80), st.floats(0.01, 1), st.floats(0, 1), st.floats(0.1, 3), st.floats(1, 5),
    st.integers(0, 1000),
)  # fmt: skip
@example(height=1, width=1, low=0.5, share=0.0, ratio=0.2, stretch=2.0, seed=0)  # neither a box nor the fallback fits
@example(height=1, width=1, low=0.5, share=0.0, ratio=3.0, stretch=1.0, seed=0)
def test_boxes_are_integers_inside_the_image(height, width, low, share, ratio, stretch, seed):
    drawn = boxes(200, height, width, (low, low + (1 - low) * share), (ratio, ratio * stretch), seed)
    assert torch.equal(drawn, drawn.round())
    top, left, h, w = drawn.T
    assert ((top >= 0) & (left >= 0) & (h >= 1) & (w >= 1)).all()
    assert ((top + h <= height) & (left + w <= width)).all()


@pytest.mark.parametrize(
    ("height", "width", "ratio", "scale"),
    [
        (100, 10, RATIO, (0.9, 1.0)),
        (10, 100, RATIO, (0.9, 1.0)),
        (33, 10, (0.9, 1.1), (0.9, 1.0)),
        (10, 33, (0.9, 1.1), (0.9, 1.0)),
        (30, 32, RATIO, (1.5, 2.0)),
    ],
)
def test_without_a_fit_the_box_is_torchvisions_central_one(height, width, ratio, scale):
    theirs = RandomResizedCrop.get_params(torch.empty(3, height, width), scale, ratio)
    assert boxes(50, height, width, scale, ratio).unique(dim=0).tolist() == [list(theirs)]


def test_every_position_of_a_small_box_is_equally_likely():
    half = boxes(10_000, 32, 32, (0.25, 0.25), (1, 1))
    assert half[:, 2:].unique(dim=0).tolist() == [[16, 16]]
    places = torch.bincount((half[:, 0] * 17 + half[:, 1]).long(), minlength=17 * 17)
    assert len(places) == 17 * 17
    assert chisquare(places).pvalue > 1e-3


# --- resizing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "size"),
    [
        ((32, 32), (32, 32)),
        ((32, 32), (64, 64)),
        ((32, 32), (13, 13)),
        ((32, 32), (24, 40)),
        ((64, 48), (32, 32)),
        ((20, 60), (50, 16)),
        ((32, 32), (1, 1)),
    ],
)
def test_resampling_is_within_a_level_of_pillows(photographs, source, size):
    images = photographs[:60].repeat(1, 1, 2, 2)[..., : source[0], : source[1]]
    box = boxes(60, *source)
    flip = torch.arange(60) % 2 == 1
    ours = resample(images, box, flip, size).round().to(torch.uint8)
    theirs = torch.stack([pillow_reference.crop_and_resize(*one, size) for one in zip(images, box, flip, strict=True)])
    assert pillow_reference.max_difference(ours, theirs) <= 1
    assert pillow_reference.fraction_differing(ours, theirs) < 0.25  # Pillow rounds between the two passes


@pytest.mark.parametrize("box", [(0, 0, 1, 1), (31, 31, 1, 1), (5, 0, 1, 32), (0, 30, 32, 2), (3, 4, 2, 3)])
def test_narrow_boxes_are_within_a_level_of_pillows(photographs, box):
    box = torch.tensor([box]).float()
    for size in ((32, 32), (7, 7)):
        ours = resample(photographs[:1], box, torch.zeros(1).bool(), size).round().to(torch.uint8)[0]
        assert (
            pillow_reference.max_difference(ours, pillow_reference.crop_and_resize(photographs[0], box[0], False, size))
            <= 1
        )


def test_resampling_the_whole_image_is_the_identity_or_a_flip(photographs):
    whole = torch.tensor([[0.0, 0, 32, 32]]).expand(100, 4)
    never, always = torch.zeros(100).bool(), torch.ones(100).bool()
    images = photographs[:100]
    assert torch.equal(resample(images, whole, never, (32, 32)), images.float())
    assert torch.equal(resample(images, whole, always, (32, 32)), images.flip(3).float())


def test_pixels_outside_the_box_have_no_effect(photographs):
    box = torch.tensor([[8.0, 4, 10, 12]])
    changed = 255 - photographs[:1]
    changed[..., 8:18, 4:16] = photographs[:1, :, 8:18, 4:16]
    for size in ((32, 32), (5, 5)):
        views = [resample(images, box, torch.zeros(1).bool(), size) for images in (photographs[:1], changed)]
        assert torch.equal(*views)


# --- affine maps -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("right", "down"), [(3, 0), (0, 5), (7, 2)])
def test_affine_fills_outside_the_image(photographs, right, down):
    matrix = torch.tensor([[1.0, 0, right, 0, 1, down]]).double().expand(20, 6)
    expected = pad(photographs[:20], (0, right, 0, down), value=128)[..., down:, right:]
    assert torch.equal(affine(photographs[:20], matrix), expected)
