"""The basic view: its draws, their probabilities, and the pixels they lead to."""

from dataclasses import asdict
from types import SimpleNamespace

import pytest
import torch
import torchvision.transforms.functional as tvf
from scipy.stats import chisquare, kstest
from torch import Tensor

from aag.augment import BasicAugment, basic, keys
from aag.augment.colour import ORDERS
from aag.errors import AAGError

CHANCE = 1e-3  # the seeds are fixed, so a test that passes once always does
STILL = {"scale": (1, 1), "ratio": (1, 1), "jitter": 0, "gray": 0, "flip": 0, "blur": 0}  # every step left out


@pytest.fixture
def drawn(monkeypatch):
    """Calls the augmentation and gives its view and what it drew."""

    def look(augmentation: BasicAugment, images: Tensor, key: Tensor, act: bool = True) -> SimpleNamespace:
        resample, jitter, apply_where, seen = basic.resample, basic.jitter, basic.apply_where, SimpleNamespace()

        def watched_resample(images, box, flip, size):
            seen.box, seen.flip = box, flip
            return resample(images, box, flip, size) if act else images

        def watched_jitter(images, chosen, order, strength):
            seen.jittered, seen.order, seen.strength = chosen, order, strength
            return jitter(images, chosen, order, strength) if act else images

        def watched_apply_where(chosen, operation, images, *sigma):
            if operation is basic.grayscale:
                seen.gray = chosen
            else:
                seen.blurred, (seen.sigma,) = chosen, sigma
            return apply_where(chosen, operation, images, *sigma) if act else images

        with monkeypatch.context() as patch:
            patch.setattr(basic, "resample", watched_resample)
            patch.setattr(basic, "jitter", watched_jitter)
            patch.setattr(basic, "apply_where", watched_apply_where)
            seen.view = augmentation(images, key=key)
        return seen

    return look


@pytest.fixture
def many(drawn):
    """The draws of the paper's view for many images, without their pixels."""
    n = 48_000
    return drawn(BasicAugment(), torch.zeros(1, 3, 1, 1).expand(n, -1, 32, 32), keys(0, 0, torch.arange(n)), act=False)


def by_torchvision(image: Tensor, draw: SimpleNamespace, i: int) -> Tensor:
    """The steps in the paper's order, one image [3, H, W] by float arithmetic."""
    size = list(image.shape[1:])
    out = tvf.resized_crop(image, *(int(n) for n in draw.box[i]), size, antialias=True)
    if draw.jittered[i]:
        adjust = (tvf.adjust_brightness, tvf.adjust_contrast, tvf.adjust_saturation, tvf.adjust_hue)
        for number in ORDERS[draw.order[i]]:
            out = adjust[number](out, draw.strength[i, number].item())
    if draw.gray[i]:
        out = tvf.rgb_to_grayscale(out, num_output_channels=3)
    if draw.flip[i]:
        out = tvf.hflip(out)
    if draw.blurred[i]:
        out = tvf.gaussian_blur(out, [3, 3], [draw.sigma[i].item()] * 2)
    return out


# --- pixels ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(32, 32), (24, 40)])
def test_views_are_torchvisions_for_the_steps_drawn(photographs, drawn, shape):
    images = photographs[:300].repeat(1, 1, 1, 2)[..., : shape[0], : shape[1]].float() / 255
    draw = drawn(BasicAugment(), images, keys(4, 2, torch.arange(300)))
    theirs = torch.stack([by_torchvision(image, draw, i) for i, image in enumerate(images)])
    assert draw.view.shape == images.shape
    torch.testing.assert_close(draw.view, theirs, rtol=0, atol=1e-4)


def test_byte_views_are_the_rounded_float_views(photographs):
    key = keys(4, 2, torch.arange(300))
    as_float = BasicAugment()(photographs[:300].float() / 255, key=key)
    as_bytes = BasicAugment()(photographs[:300], key=key)
    assert ((as_float * 255).round().to(torch.uint8) != as_bytes).double().mean() < 1e-3
    assert (as_float * 255 - as_bytes.float()).abs().max() < 0.51


def test_a_view_with_every_step_left_out_is_the_image(photographs):
    assert torch.equal(BasicAugment(**STILL)(photographs), photographs)


@pytest.mark.parametrize("kernel", [3, 5])
def test_the_blurs_width_and_strength_can_be_set(photographs, kernel):
    images = photographs[:20].float() / 255
    view = BasicAugment(**{**STILL, "blur": 1}, blur_sigma=(1.5, 1.5), blur_kernel=kernel)(images)
    torch.testing.assert_close(view, tvf.gaussian_blur(images, [kernel, kernel], [1.5, 1.5]), rtol=0, atol=1e-5)


@pytest.mark.parametrize("size", [1, 24, 32, 64])
def test_size_is_the_views_side(photographs, size):
    assert BasicAugment(size=size, blur=0)(photographs[:5]).shape == (5, 3, size, size)


# --- probabilities, seen in the pixels -------------------------------------------------------------------------------


@pytest.mark.parametrize("probability", [0.2, 0.7, 1.0])
@pytest.mark.parametrize("step", ["jitter", "gray", "flip", "blur"])
def test_a_step_changes_its_share_of_the_images(photographs, step, probability):
    # A fainter blur than 0.5 may round to nothing, and a photograph may be gray or flat already.
    augmentation = BasicAugment(**{**STILL, step: probability}, blur_sigma=(0.5, 2))
    view = augmentation(photographs, key=keys(6, 0, torch.arange(1000)))
    changed = (view != photographs).flatten(1).any(dim=1).double().mean().item()
    margin = 4 * (probability * (1 - probability) / 1000) ** 0.5
    assert 0.95 * probability - margin <= changed <= probability + margin


def test_gray_views_have_three_equal_channels(photographs):
    view = BasicAugment(**{**STILL, "gray": 0.2})(photographs)
    changed = (view != photographs).flatten(1).any(dim=1)
    red, green, blue = view[changed].unbind(1)
    assert torch.equal(red, green)
    assert torch.equal(green, blue)
    assert 150 < changed.sum() < 250


def test_flipped_views_are_mirror_images(photographs):
    view = BasicAugment(**{**STILL, "flip": 0.5})(photographs)
    changed = (view != photographs).flatten(1).any(dim=1)
    assert torch.equal(view[changed], photographs[changed].flip(3))


# --- draws -----------------------------------------------------------------------------------------------------------


def test_the_four_choices_have_the_papers_probabilities_and_are_independent(many):
    probabilities = [0.8, 0.2, 0.5, 0.5]
    choices = torch.stack([many.jittered, many.gray, many.flip, many.blurred]).long()
    counts = torch.bincount((choices * torch.tensor([[8], [4], [2], [1]])).sum(dim=0), minlength=16)
    expected = torch.ones(16).double() * len(many.flip)
    for cell in range(16):
        for place, p in enumerate(probabilities):
            expected[cell] *= p if cell >> (3 - place) & 1 else 1 - p
    assert chisquare(counts, expected).pvalue > CHANCE


def test_all_24_orders_of_the_jitter_are_equally_likely(many):
    counts = torch.bincount(many.order, minlength=24)
    assert len(counts) == 24
    assert chisquare(counts).pvalue > CHANCE


@pytest.mark.parametrize(("place", "centre", "spread"), [(0, 1, 0.4), (1, 1, 0.4), (2, 1, 0.4), (3, 0, 0.1)])
def test_strengths_are_uniform_around_no_change(many, place, centre, spread):
    assert kstest(many.strength[:, place], "uniform", (centre - spread, 2 * spread)).pvalue > CHANCE


def test_blur_is_uniform_in_its_sigma(many):
    assert kstest(many.sigma, "uniform", (0.1, 1.9)).pvalue > CHANCE


def test_crop_sizes_follow_the_scale(many):
    share = many.box[:, 2] * many.box[:, 3] / 1024
    assert 0.17 < share.min() < 0.23
    assert share.max() == 1


def test_draws_of_one_image_are_uncorrelated(many):
    numbers = torch.stack(
        [*many.box.T, many.flip, many.jittered, many.gray, many.blurred, *many.strength.T, many.order, many.sigma]
    )
    table = torch.corrcoef(numbers.double()) - torch.eye(len(numbers))
    table[:4, :4] = 0  # height, width and the room they leave belong together
    assert table.abs().max() < 4.5 / len(many.flip) ** 0.5


def test_factors_never_turn_negative(drawn, photographs):
    draw = drawn(BasicAugment(brightness=3, contrast=3, saturation=3), photographs[:200], keys(0, 0, torch.arange(200)))
    assert draw.strength[:, :3].min() == 0
    assert draw.strength[:, :3].max() > 3
    assert draw.strength[:, 3].min() < 0


# --- presets and mistakes --------------------------------------------------------------------------------------------

PAPER = {
    "size": None,
    "scale": (0.2, 1.0),
    "ratio": (3 / 4, 4 / 3),
    "brightness": 0.4,
    "contrast": 0.4,
    "saturation": 0.4,
    "hue": 0.1,
    "jitter": 0.8,
    "gray": 0.2,
    "flip": 0.5,
    "blur": 0.5,
    "blur_sigma": (0.1, 2.0),
    "blur_kernel": 3,
}


@pytest.mark.parametrize(
    ("name", "differences"),
    [
        ("paper", {}),
        ("isif", {"hue": 0.4, "jitter": 1.0, "blur": 0.0}),
        ("simclr", {"scale": (0.08, 1.0), "blur": 0.0}),
    ],
)
def test_preset_has_its_published_settings(name, differences):
    assert asdict(BasicAugment.preset(name)) == {**PAPER, **differences}


def test_the_paper_is_the_default():
    assert BasicAugment() == BasicAugment.preset("paper")


def test_a_presets_field_can_be_changed():
    assert asdict(BasicAugment.preset("isif", flip=0.0, hue=0.2)) == {
        **PAPER,
        "hue": 0.2,
        "jitter": 1.0,
        "blur": 0.0,
        "flip": 0.0,
    }


def test_an_unknown_preset_is_answered_with_the_near_one():
    with pytest.raises(AAGError, match="did you mean simclr"):
        BasicAugment.preset("simclrv2")


@pytest.mark.parametrize("kernel", [0, 2, 4, -3])
def test_a_blur_without_a_middle_is_refused(kernel):
    with pytest.raises(AAGError, match=f"odd number of pixels, not {kernel}"):
        BasicAugment(blur_kernel=kernel)
