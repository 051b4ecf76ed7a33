"""What every family promises: its own draw for each image, alike for any batch, dtype and size."""

import numpy as np
import pytest
import torch
from torch import Tensor

from aag.augment import AutoAugment, AuxiliaryAugment, BasicAugment, RandAugment, keys, ops, select
from aag.errors import AAGError

FAMILIES = {
    "basic": BasicAugment(),
    "autoaugment": AutoAugment(),
    "randaugment": RandAugment(),
    "auxiliary": AuxiliaryAugment(),
    "auxiliary padded": AuxiliaryAugment(AutoAugment("svhn"), crop="padded"),
}


@pytest.fixture(params=FAMILIES)
def family(request):
    return FAMILIES[request.param]


def differing(one: Tensor, other: Tensor) -> float:
    """The share of images that differ at all."""
    return (one != other).flatten(1).any(dim=1).double().mean().item()


# --- draws -----------------------------------------------------------------------------------------------------------


def test_copies_of_one_photograph_get_different_views(photographs, family):
    views = family(photographs[:1].expand(64, -1, -1, -1))
    distinct = views.flatten(1).unique(dim=0).shape[0]
    policy_alone = isinstance(family, (AutoAugment, RandAugment))  # a policy has few outcomes for an image
    assert distinct > (20 if policy_alone else 58)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_a_view_depends_on_its_key_and_not_on_the_batch(photographs, family, dtype):
    images = photographs[:64] if dtype == torch.uint8 else photographs[:64].float() / 255
    key = keys(11, 3, torch.arange(500, 564), view=1)
    together = family(images, key=key)
    one_by_one = torch.cat([family(images[i : i + 1], key=key[i : i + 1]) for i in range(64)])
    in_sevens = torch.cat([family(images[i : i + 7], key=key[i : i + 7]) for i in range(0, 64, 7)])
    reversed_order = family(images.flip(0), key=key.flip(0)).flip(0)
    company = torch.cat([images.flip(3), images, images.flip(2)])
    strangers = keys(0, 0, torch.arange(64))
    among_others = family(company, key=torch.cat([strangers, key, strangers]))[64:128]
    assert torch.equal(one_by_one, together)
    assert torch.equal(in_sevens, together)
    assert torch.equal(reversed_order, together)
    assert torch.equal(among_others, together)


@pytest.mark.parametrize("other", [(1, 0, 0), (0, 1, 0), (0, 0, 1)], ids=["seed", "epoch", "view"])
def test_another_seed_epoch_or_view_gives_other_views(photographs, family, other):
    images, index = photographs[:100], torch.arange(100)
    here = family(images, key=keys(0, 0, index, 0))
    seed, epoch, view = other
    there = family(images, key=keys(seed, epoch, index, view))
    assert differing(here, there) > 0.85


def test_the_same_coordinates_give_the_same_views(photographs, family):
    key = keys(5, 17, torch.arange(100), view=2)
    first = family(photographs[:100], key=key)
    torch.rand(1000)  # nothing is taken from torch's own stream, nor given to it
    assert torch.equal(family(photographs[:100], key=key), first)


def test_drawing_leaves_torchs_own_stream_alone(photographs, family):
    before = torch.get_rng_state()
    family(photographs[:20])
    assert torch.equal(torch.get_rng_state(), before)


def test_without_keys_the_seed_and_the_place_decide(photographs, family):
    images = photographs[:50]
    assert torch.equal(family(images, seed=9), family(images, key=keys(9, 0, torch.arange(50))))
    assert torch.equal(family(images), family(images, seed=0))
    assert differing(family(images, seed=9), family(images)) > 0.8


def test_selecting_among_all_gives_the_views_of_gathering(photographs, family, monkeypatch):
    """The GPU's way of branching, on the CPU."""
    gathered = family(photographs[:300])
    monkeypatch.setattr(select, "dense", lambda images: True)
    monkeypatch.setattr(ops, "dense", lambda images: True)
    assert torch.equal(family(photographs[:300]), gathered)


# --- dtypes, sizes ---------------------------------------------------------------------------------------------------


def test_bytes_stay_bytes_and_floats_stay_floats(photographs, family):
    images = photographs[:100]
    as_bytes = family(images)
    as_floats = family(images.float() / 255)
    assert as_bytes.dtype == torch.uint8
    assert as_floats.dtype == torch.float32
    assert as_floats.min() >= 0
    assert as_floats.max() <= 1 + 1e-6
    assert (as_floats * 255 - as_bytes.float()).abs().max() < 0.51


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_floats_keep_their_dtype(photographs, family, dtype):
    exact = (photographs[:50] // 64 * 64).double() / 256  # few bits: the same image in every dtype
    out = family(exact.to(dtype))
    assert out.dtype == dtype
    torch.testing.assert_close(out.float(), family(exact.float()), rtol=0, atol=2**-8)


@pytest.mark.parametrize("shape", [(20, 20), (64, 48), (224, 224), (3, 2)])
def test_any_size_comes_back_at_its_size(photographs, family, shape):
    images = photographs[:4].repeat(1, 1, 7, 7)[..., : shape[0], : shape[1]]
    out = family(images)
    assert out.shape == images.shape
    assert out.dtype == torch.uint8
    assert differing(out, images) > 0 or shape == (3, 2)


def test_the_input_is_left_alone(photographs, family):
    for images in (photographs[:50].clone(), photographs[:50].float() / 255):
        before = images.clone()
        family(images)
        assert torch.equal(images, before)


def test_strided_images_are_taken_as_they_are(photographs, family):
    images = photographs[:20].permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    assert not images.is_contiguous()
    assert torch.equal(family(images), family(photographs[:20]))


def test_an_empty_batch_stays_empty(photographs, family):
    for images in (photographs[:0], photographs[:0].float()):
        out = family(images)
        assert out.shape == (0, 3, 32, 32)
        assert out.dtype == images.dtype


def test_a_callers_autocast_changes_no_pixel(photographs, family):
    alone = family(photographs[:16], seed=3)
    with torch.autocast("cpu", dtype=torch.float16):
        assert torch.equal(family(photographs[:16], seed=3), alone)


# --- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "images",
    [
        torch.zeros(3, 32, 32, dtype=torch.uint8),
        torch.zeros(2, 32, 32, 3, dtype=torch.uint8),
        torch.zeros(2, 1, 32, 32),
        torch.zeros(2, 3, 32, 32, dtype=torch.int64),
        np.zeros((2, 3, 32, 32), np.uint8),
    ],
    ids=["one image", "channels last", "gray", "int64", "numpy"],
)
def test_what_is_no_batch_of_images_is_refused(family, images):
    with pytest.raises(AAGError, match=r"expected images \[B, 3, H, W\], uint8 or float"):
        family(images)


@pytest.mark.parametrize("count", [1, 7, 9])
def test_each_image_needs_its_key(photographs, family, count):
    with pytest.raises(AAGError, match=rf"one int64 key for each of 8 images, got torch.int64 \({count},\)"):
        family(photographs[:8], key=keys(0, 0, torch.arange(count)))


def test_keys_of_another_kind_would_be_other_draws(photographs, family):
    with pytest.raises(AAGError, match=r"got torch.int32 \(8,\)"):
        family(photographs[:8], key=keys(0, 0, torch.arange(8)).int())


def test_floats_up_to_255_are_refused_and_not_clipped(photographs, family):
    with pytest.raises(AAGError, match=r"float images must lie in \[0, 1\]; these span"):
        family(photographs[:8].float())
