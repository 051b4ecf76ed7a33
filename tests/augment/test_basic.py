"""The basic augmentation: its draws, their probabilities, and the pixels."""

from dataclasses import asdict

import pytest
import torch
import torchvision.transforms.functional as tvf
from distributions import P_VALUE
from scipy.stats import chisquare, kstest
from torch import Tensor

from aag.augment import BasicAugment, keys
from aag.augment.basic import BasicDraws
from aag.augment.colour import ORDERS

UNCHANGED = {"scale": (1, 1), "ratio": (1, 1), "jitter": 0, "gray": 0, "flip": 0, "blur": 0}  # every step left out


@pytest.fixture(scope="module")
def many() -> BasicDraws:
    """Return the draws of the paper's augmentation for many images."""
    return BasicAugment().draws(keys(0, 0, torch.arange(48_000)), 32, 32)


def by_torchvision(image: Tensor, draws: BasicDraws, i: int) -> Tensor:
    """Apply the i-th image's draws to a float image [3, H, W], in the paper's order."""
    size = list(image.shape[1:])
    out = tvf.resized_crop(image, *(int(n) for n in draws.box[i]), size, antialias=True)
    if draws.jitter[i]:
        adjust = (tvf.adjust_brightness, tvf.adjust_contrast, tvf.adjust_saturation, tvf.adjust_hue)
        for number in ORDERS[draws.order[i]]:
            out = adjust[number](out, draws.strength[i, number].item())
    if draws.gray[i]:
        out = tvf.rgb_to_grayscale(out, num_output_channels=3)
    if draws.flip[i]:
        out = tvf.hflip(out)
    if draws.blur[i]:
        out = tvf.gaussian_blur(out, [3, 3], [draws.sigma[i].item()] * 2)
    return out


# --- pixels ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(32, 32), (24, 40)])
def test_views_are_torchvisions_for_the_same_draws(photographs, shape):
    images = photographs[:300].repeat(1, 1, 1, 2)[..., : shape[0], : shape[1]].float() / 255
    key = keys(4, 2, torch.arange(300))
    draws = BasicAugment().draws(key, *shape)
    theirs = torch.stack([by_torchvision(image, draws, i) for i, image in enumerate(images)])
    torch.testing.assert_close(BasicAugment()(images, key=key), theirs, rtol=0, atol=1e-4)


def test_a_view_with_every_step_left_out_is_the_image(photographs):
    assert torch.equal(BasicAugment(**UNCHANGED)(photographs, seed=0), photographs)


@pytest.mark.parametrize("kernel", [3, 5])
def test_the_blurs_width_and_strength_can_be_set(photographs, kernel):
    images = photographs[:20].float() / 255
    view = BasicAugment(**{**UNCHANGED, "blur": 1}, blur_sigma=(1.5, 1.5), blur_kernel=kernel)(images, seed=0)
    torch.testing.assert_close(view, tvf.gaussian_blur(images, [kernel, kernel], [1.5, 1.5]), rtol=0, atol=1e-5)


@pytest.mark.parametrize("size", [1, 24, 32, 64])
def test_size_is_the_views_side(photographs, size):
    assert BasicAugment(size=size, blur=0)(photographs[:5], seed=0).shape == (5, 3, size, size)


# --- probabilities, seen in the pixels -------------------------------------------------------------------------------


@pytest.mark.parametrize("probability", [0.2, 0.7, 1.0])
@pytest.mark.parametrize("step", ["jitter", "gray", "flip", "blur"])
def test_a_step_changes_its_share_of_the_images(photographs, step, probability):
    # A fainter blur than 0.5 may round to nothing, and a photograph may be gray or flat already.
    augmentation = BasicAugment(**{**UNCHANGED, step: probability}, blur_sigma=(0.5, 2))
    view = augmentation(photographs, key=keys(6, 0, torch.arange(1000)))
    changed = (view != photographs).flatten(1).any(dim=1).double().mean().item()
    margin = 4 * (probability * (1 - probability) / 1000) ** 0.5
    assert 0.95 * probability - margin <= changed <= probability + margin


# --- draws -----------------------------------------------------------------------------------------------------------


def test_the_four_choices_have_the_papers_probabilities_and_are_independent(many):
    probabilities = [0.8, 0.2, 0.5, 0.5]
    choices = torch.stack([many.jitter, many.gray, many.flip, many.blur]).long()
    counts = torch.bincount((choices * torch.tensor([[8], [4], [2], [1]])).sum(dim=0), minlength=16)
    expected = torch.ones(16).double() * len(many.flip)
    for cell in range(16):
        for place, p in enumerate(probabilities):
            expected[cell] *= p if cell >> (3 - place) & 1 else 1 - p
    assert chisquare(counts, expected).pvalue > P_VALUE


def test_all_24_orders_of_the_jitter_are_equally_likely(many):
    counts = torch.bincount(many.order, minlength=24)
    assert len(counts) == 24
    assert chisquare(counts).pvalue > P_VALUE


@pytest.mark.parametrize(("place", "centre", "spread"), [(0, 1, 0.4), (1, 1, 0.4), (2, 1, 0.4), (3, 0, 0.1)])
def test_strengths_are_uniform_around_no_change(many, place, centre, spread):
    assert kstest(many.strength[:, place], "uniform", (centre - spread, 2 * spread)).pvalue > P_VALUE


def test_blur_is_uniform_in_its_sigma(many):
    assert kstest(many.sigma, "uniform", (0.1, 1.9)).pvalue > P_VALUE


def test_draws_of_one_image_are_uncorrelated(many):
    numbers = torch.stack(
        [*many.box.T, many.flip, many.jitter, many.gray, many.blur, *many.strength.T, many.order, many.sigma]
    )
    table = torch.corrcoef(numbers.double()) - torch.eye(len(numbers))
    table[:4, :4] = 0  # height, width and the room they leave belong together
    assert table.abs().max() < 4.5 / len(many.flip) ** 0.5


def test_factors_are_never_negative():
    """A range that would start below 0 starts at 0, as torchvision's does."""
    draws = BasicAugment(brightness=3, contrast=1, saturation=1.5).draws(keys(0, 0, torch.arange(5000)), 32, 32)
    for factors, highest in zip(draws.strength.T, (4, 2, 2.5), strict=False):
        assert kstest(factors, "uniform", (0, highest)).pvalue > P_VALUE
    assert draws.strength[:, 3].min() < 0


# --- presets ---------------------------------------------------------------------------------------------------------

PAPER = {
    "size": None, "scale": (0.2, 1.0), "ratio": (3 / 4, 4 / 3), "brightness": 0.4, "contrast": 0.4, "saturation": 0.4,
    "hue": 0.1, "jitter": 0.8, "gray": 0.2, "flip": 0.5, "blur": 0.5, "blur_sigma": (0.1, 2.0), "blur_kernel": 3,
}  # fmt: skip


@pytest.mark.parametrize(
    ("augmentation", "differences"),
    [
        (BasicAugment(), {}),
        (BasicAugment.preset("paper"), {}),
        (BasicAugment.preset("isif"), {"hue": 0.4, "jitter": 1.0, "blur": 0.0}),
        (BasicAugment.preset("simclr"), {"scale": (0.08, 1.0), "blur": 0.0}),
        (BasicAugment.preset("isif", flip=0.0, hue=0.2), {"hue": 0.2, "jitter": 1.0, "blur": 0.0, "flip": 0.0}),
    ],
)
def test_preset_has_its_published_settings_and_changes(augmentation, differences):
    assert asdict(augmentation) == {**PAPER, **differences}
