"""What every augmentation promises: independent draws per image, the same for any batch, dtype and size."""

import numpy as np
import pytest
import torch
from torch import Tensor

from aag.augment import AutoAugment, AuxiliaryAugment, BasicAugment, RandAugment, apply_op, base, keys, ops
from aag.augment.base import apply_masked, needs_static_shapes
from aag.errors import AAGError

AUGMENTATIONS = {
    "basic": BasicAugment(),
    "autoaugment": AutoAugment(),
    "randaugment": RandAugment(),
    "auxiliary": AuxiliaryAugment(),
    "auxiliary padded": AuxiliaryAugment(AutoAugment("svhn"), crop="padded"),
}


@pytest.fixture(params=AUGMENTATIONS)
def augmentation(request):
    return AUGMENTATIONS[request.param]


def fraction_differing(one: Tensor, other: Tensor) -> float:
    """Return the fraction of images that differ at all."""
    return (one != other).flatten(1).any(dim=1).double().mean().item()


# --- draws -----------------------------------------------------------------------------------------------------------


def test_copies_of_one_photograph_get_different_views(photographs, augmentation):
    views = augmentation(photographs[:1].expand(64, -1, -1, -1), seed=0)
    distinct = views.flatten(1).unique(dim=0).shape[0]
    is_policy = isinstance(augmentation, (AutoAugment, RandAugment))  # a policy has few outcomes for an image
    assert distinct > (20 if is_policy else 58)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_a_view_depends_on_its_key_and_not_on_the_batch(photographs, augmentation, dtype):
    images = photographs[:64] if dtype == torch.uint8 else photographs[:64].float() / 255
    key = keys(11, 3, torch.arange(500, 564), view=1)
    together = augmentation(images, key=key)
    assert torch.equal(torch.stack([augmentation(images[i], key=key[i]) for i in range(64)]), together)
    in_sevens = torch.cat([augmentation(images[i : i + 7], key=key[i : i + 7]) for i in range(0, 64, 7)])
    assert torch.equal(in_sevens, together)
    assert torch.equal(augmentation(images.flip(0), key=key.flip(0)).flip(0), together)
    larger_batch = torch.cat([images.flip(3), images, images.flip(2)])
    other_keys = keys(0, 0, torch.arange(64))
    assert torch.equal(augmentation(larger_batch, key=torch.cat([other_keys, key, other_keys]))[64:128], together)


@pytest.mark.parametrize("other", [(1, 0, 0), (0, 1, 0), (0, 0, 1)], ids=["seed", "epoch", "view"])
def test_another_seed_epoch_or_view_gives_other_views(photographs, augmentation, other):
    images, index = photographs[:100], torch.arange(100)
    seed, epoch, view = other
    views = augmentation(images, key=keys(0, 0, index, 0))
    assert fraction_differing(views, augmentation(images, key=keys(seed, epoch, index, view))) > 0.85


def test_a_seed_draws_by_position_and_leaves_torchs_generator_alone(photographs, augmentation):
    before = torch.get_rng_state()
    views = augmentation(photographs[:50], seed=9)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(1000)
    assert torch.equal(augmentation(photographs[:50], seed=9), views)
    assert torch.equal(augmentation(photographs[:50], key=keys(9, 0, torch.arange(50))), views)


def test_without_seed_or_key_each_call_draws_anew_from_torchs_generator(photographs, augmentation):
    images = photographs[:50]
    first, second = augmentation(images), augmentation(images)
    assert fraction_differing(first, second) > 0.8
    torch.manual_seed(0)
    assert torch.equal(augmentation(images), first)
    assert torch.equal(augmentation(images), second)


def test_selecting_gives_the_views_of_gathering(photographs, augmentation, monkeypatch):
    """Branch as on a GPU, on the CPU."""
    gathered = augmentation(photographs[:300], seed=0)
    for module in (base, ops):
        monkeypatch.setattr(module, "needs_static_shapes", lambda images: True)
    assert torch.equal(augmentation(photographs[:300], seed=0), gathered)


# --- dtypes and shapes -----------------------------------------------------------------------------------------------


def test_uint8_stays_uint8_and_float_stays_float(photographs, augmentation):
    as_uint8 = augmentation(photographs[:100], seed=0)
    as_float = augmentation(photographs[:100].float() / 255, seed=0)
    assert as_uint8.dtype == torch.uint8
    assert as_float.dtype == torch.float32
    assert as_float.min() >= 0
    assert as_float.max() <= 1 + 1e-6
    assert (as_float * 255 - as_uint8.float()).abs().max() < 0.51


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_floats_keep_their_dtype(photographs, augmentation, dtype):
    exact = (photographs[:50] // 64 * 64).double() / 256  # few bits: the same image in every dtype
    out = augmentation(exact.to(dtype), seed=0)
    assert out.dtype == dtype
    torch.testing.assert_close(out.float(), augmentation(exact.float(), seed=0), rtol=0, atol=2**-8)


@pytest.mark.parametrize("shape", [(20, 20), (64, 48), (224, 224), (3, 2)])
def test_views_have_the_images_size_and_leave_them_unchanged(photographs, augmentation, shape):
    images = photographs[:4].repeat(1, 1, 7, 7)[..., : shape[0], : shape[1]]
    for given in (images, images.float() / 255):
        before = given.clone()
        out = augmentation(given, seed=0)
        assert torch.equal(given, before)
        assert out.shape == images.shape
        assert fraction_differing(out, given) > 0 or shape == (3, 2)


def test_memory_layout_and_autocast_change_no_pixel(photographs, augmentation):
    expected = augmentation(photographs[:20], seed=3)
    strided = photographs[:20].permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    assert not strided.is_contiguous()
    assert torch.equal(augmentation(strided, seed=3), expected)
    with torch.autocast("cpu", dtype=torch.float16):
        assert torch.equal(augmentation(photographs[:20], seed=3), expected)


def test_an_empty_batch_stays_empty(photographs, augmentation):
    for images in (photographs[:0], photographs[:0].float()):
        out = augmentation(images)
        assert out.shape == (0, 3, 32, 32)
        assert out.dtype == images.dtype


def test_a_single_image_is_a_batch_of_one(photographs, augmentation):
    for image in (photographs[0], photographs[0].float() / 255):
        assert torch.equal(augmentation(image, seed=4), augmentation(image[None], seed=4)[0])
        assert torch.equal(augmentation(image, key=keys(4, 0, torch.arange(1))), augmentation(image, seed=4))
    assert torch.equal(apply_op("Rotate", photographs[0], 30), apply_op("Rotate", photographs[:1], 30)[0])


# --- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(2, 32, 32, 3, dtype=torch.uint8), r"got torch.uint8 \[2, 32, 32, 3\].*movedim\(-1, -3\)"),
        (torch.zeros(2, 1, 32, 32), r"got torch.float32 \[2, 1, 32, 32\]; repeat the grey channel"),
        (torch.zeros(4, 32, 32), r"got torch.float32 \[4, 32, 32\]"),
        (torch.zeros(32, 32), r"got torch.float32 \[32, 32\]"),
        (torch.zeros(2, 3, 32, 32, dtype=torch.int64), r"got torch.int64 \[2, 3, 32, 32\]"),
        (np.zeros((2, 3, 32, 32), np.uint8), "got ndarray"),
        (torch.zeros(2, 3, 0, 32), "at least one pixel"),
        (torch.full((2, 3, 8, 8), 200.0), r"float images must lie in \[0, 1\]; these span"),
    ],
)
def test_what_is_not_an_rgb_image_is_refused(augmentation, images, message):
    with pytest.raises(AAGError, match=message):
        augmentation(images)


@pytest.mark.parametrize(
    ("randomness", "message"),
    [
        ({"seed": 1, "key": keys(0, 0, torch.arange(8))}, "either seed= or key=, not both"),
        ({"seed": 1.5}, "seed must be an integer, not 1.5"),
        ({"seed": "7"}, "seed must be an integer, not '7'"),
        ({"key": 7}, "int64 tensor from aag.augment.keys, not int"),
        ({"key": keys(0, 0, torch.arange(7))}, r"expected one key per image, on cpu, int64 \[8\]; got .* \[7\]"),
        ({"key": keys(0, 0, torch.arange(1))}, r"int64 \[1\]"),
        ({"key": keys(0, 0, torch.arange(8)).int()}, r"int32 \[8\]"),
        ({"key": torch.empty(8, dtype=torch.int64, device="meta")}, "got meta"),
    ],
)
def test_a_wrong_seed_or_key_is_refused(photographs, augmentation, randomness, message):
    with pytest.raises(AAGError, match=message):
        augmentation(photographs[:8], **randomness)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: BasicAugment(flip=2), "flip must be at least 0 and at most 1, not 2"),
        (lambda: BasicAugment(gray=float("nan")), "gray.* not nan"),
        (lambda: BasicAugment(brightness=-1), "brightness must be at least 0, not -1"),
        (lambda: BasicAugment(contrast=float("inf")), "contrast .* not inf"),
        (lambda: BasicAugment(hue=0.6), "hue must be at least 0 and at most 0.5, not 0.6"),
        (lambda: BasicAugment(size=0), "size must be at least 1 and at most 65536, not 0"),
        (lambda: BasicAugment(size=np.int64(8)), r"size must be a whole number, not np.int64\(8\)"),  # breaks kernels
        (lambda: BasicAugment(size=32.0), "size must be a whole number, not 32.0"),
        (lambda: BasicAugment(scale=0.2), r"scale must be two positive numbers \(low, high\), not 0.2"),
        (lambda: BasicAugment(ratio=(2, 1)), r"ratio must be two positive numbers \(low, high\), not \(2, 1\)"),
        (lambda: BasicAugment(blur_sigma=(0, "1")), "blur_sigma must be two positive numbers"),
        (lambda: BasicAugment(blur_kernel=4), "blur_kernel must be odd, not 4"),
        (lambda: BasicAugment(blur_kernel=-3), "blur_kernel must be at least 1, not -3"),
        (lambda: BasicAugment.preset("simclrv2"), "did you mean simclr"),
        (lambda: BasicAugment.preset("paper", flop=1), "unknown field of BasicAugment 'flop'; did you mean flip"),
        (lambda: AutoAugment("cifar"), "did you mean cifar10"),
        (lambda: AutoAugment(None), "unknown AutoAugment policy None; known: cifar10, imagenet, svhn"),
        (lambda: RandAugment(n=0), "n must be at least 1 and at most 16, not 0"),
        (lambda: RandAugment(n=1.5), "n must be a whole number, not 1.5"),
        (lambda: RandAugment(magnitude=31), "magnitude must be below 31, the number of bins, not 31"),
        (lambda: RandAugment(magnitude="9"), "magnitude must be a whole number, not '9'"),
        (lambda: RandAugment(bins=0), "bins must be at least 1, not 0"),
        (lambda: AuxiliaryAugment("cifar10"), "policy must be an augmentation such as .*, not 'cifar10'"),
        (lambda: AuxiliaryAugment(crop="resize"), "did you mean resized"),
        (lambda: AuxiliaryAugment(crop=None), "crop must be one of resized, padded, none, not None"),
        (lambda: AuxiliaryAugment(flip=-0.1), "flip.* not -0.1"),
        (lambda: AuxiliaryAugment(scale=(0, 1)), r"scale.* not \(0, 1\)"),
        (lambda: AuxiliaryAugment(pad=-1), "pad must be at least 0, not -1"),
    ],
)
def test_a_wrong_setting_is_refused_in_one_line(build, message):
    with pytest.raises(AAGError, match=message) as caught:
        build()
    assert "\n" not in str(caught.value)


def test_what_training_would_ignore_is_refused():
    with pytest.raises(AAGError, match="Noisy overrides __call__, which training does not use; override plain_views"):
        type("Noisy", (BasicAugment,), {"__call__": lambda self, images, **_: images})
    for operations in (ops.TABLES, ops.BLENDS, ops.MATRICES):
        with pytest.raises(TypeError, match="does not support item assignment"):
            operations["Invert"] = None


def test_a_range_may_be_a_list():
    assert BasicAugment(scale=[0.2, 1.0]) == BasicAugment()
    assert AuxiliaryAugment(ratio=[3 / 4, 4 / 3]) == AuxiliaryAugment()


# --- operations on some images ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("static", "chosen"), [(s, c) for s in (False, True) for c in (0, 4, 30)])
def test_the_chosen_images_change_and_the_others_stay(photographs, monkeypatch, static, chosen):
    monkeypatch.setattr(base, "needs_static_shapes", lambda images: static)
    images, mask, factor, sizes = photographs[:30].float(), torch.arange(30) < chosen, torch.arange(30) + 2.0, []

    def scale(images: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        sizes.append(len(images))
        return images * factor[:, None, None, None]

    before = images.clone()
    out = apply_masked(mask.flip(0), scale, images, factor)
    expected = [image * (i + 2) if i >= 30 - chosen else image for i, image in enumerate(before)]
    assert torch.equal(out, torch.stack(expected))
    assert torch.equal(images, before)
    assert sizes == ([30] if static else [chosen][: chosen > 0])  # gathering computes only the chosen images


def test_a_cpu_gathers_and_other_devices_select():
    assert not needs_static_shapes(torch.empty(1, 3, 4, 4))
    assert needs_static_shapes(torch.empty(1, 3, 4, 4, device="meta"))
