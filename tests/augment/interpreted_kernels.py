"""The kernels by Triton's interpreter, against the torch code: run by test_kernels.py with TRITON_INTERPRET=1."""

import pytest
import torch
from test_ops import RANGE, extremes
from torch import Tensor

from aag import kernels
from aag.augment import OPS, Augmentation, AutoAugment, AuxiliaryAugment, BasicAugment, RandAugment, keys
from aag.augment.colour import ORDERS
from aag.augment.geometry import crop_boxes
from aag.augment.ops import apply_each
from aag.rng import uniforms

FEW = 1e-3  # share of bytes that a float's last bits may round to the neighbouring level


def by_both(work) -> tuple[Tensor, Tensor]:
    """`work()` by kernels and by torch."""
    assert kernels.enabled(torch.zeros(1))
    ours = work()
    with kernels.disabled():
        return ours, work()


def cut(photographs: Tensor, count: int, height: int, width: int) -> Tensor:
    return photographs[:count].repeat(1, 1, 3, 3)[..., 5 : 5 + height, 9 : 9 + width].contiguous()


def assert_within_a_level(ours: Tensor, theirs: Tensor) -> None:
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype == torch.uint8
    apart = (ours.int() - theirs.int()).abs()
    assert apart.max() <= 1
    assert (apart > 0).double().mean() < FEW


# --- draws -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seed", "epoch", "view"), [(0, 0, 0), (2**40 + 3, 199, 2), (-1, 7, -1)])
def test_draws_keys(seed, epoch, view):
    image = torch.cat([torch.arange(-50, 100), torch.tensor([2**31, 2**32 + 5, 2**45])])
    ours, theirs = by_both(lambda: keys(seed, epoch, image, view))
    assert torch.equal(ours, theirs)


def test_draws_of_keys_that_are_no_hashes():
    key = torch.tensor([0, 1, -1, 2**31, 2**32 + 7, 2**62 + 12345, -(2**63)])
    assert torch.equal(BasicAugment().kernel_draws(key, 32, 32)[:, 14:], uniforms(key, 2))


@pytest.mark.parametrize(
    ("family", "height", "width"),
    [
        (BasicAugment(), 32, 32),
        (BasicAugment(scale=(0.08, 1.0), hue=0.5, brightness=1.5, blur_sigma=(0.3, 1.7)), 64, 48),
        (BasicAugment(scale=(0.9, 1.0), gray=0.0, jitter=1.0), 6, 100),  # few boxes fit
        (BasicAugment(scale=(1, 1), ratio=(1, 1)), 1, 1),
    ],
    ids=["paper", "large", "oblong", "1×1"],
)
def test_draws_of_the_basic_view(family, height, width):
    key = keys(3, 1, torch.arange(150))
    drawn = family.draws(key, height, width)
    orders = torch.tensor([sum(number * 4**place for place, number in enumerate(order)) for order in ORDERS])
    choices = torch.stack([drawn.flip, drawn.jittered, drawn.gray, drawn.blurred], dim=1)
    last = torch.stack([orders[drawn.order], drawn.sigma], dim=1)
    expected = torch.cat([drawn.box, choices, drawn.strength, last, uniforms(key, 2)], dim=1)
    assert torch.equal(family.kernel_draws(key, height, width), expected)


def test_draws_of_another_slot():
    from aag.augment.kernels.draws import view_draws, view_settings

    key = keys(3, 2, torch.arange(100))
    chances, none, ratio = (0.5, 0, 0, 0), (0, 0, 0, 0), (3 / 4, 4 / 3)
    settings = view_settings((20, 30), (0.2, 1), ratio, chances, none, (1, 1), key.device)
    ours, u = view_draws(key, settings, (20, 30), first=32), uniforms(key, 64)[:, 32:]
    assert torch.equal(ours[:, :4], crop_boxes(u[:, :22], 20, 30, (0.2, 1), ratio))
    assert torch.equal(ours[:, 4] > 0, u[:, 22] < 0.5)


# --- operations ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPS)
def test_operation_has_the_same_pixels(photographs, name):
    magnitudes = RANGE[name]
    noise = torch.randint(0, 256, (6, 3, 35, 30), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
    batches = [
        cut(photographs, len(magnitudes), 32, 32),
        noise,  # more pixels than a tile
        extremes(5, 9),
        extremes(35, 31)[-4:],
        cut(photographs, 2, 2, 5),
        cut(photographs, 2, 1, 1),
    ]
    for images in batches:
        start = torch.arange(len(images)) * (1 if len(images) == len(magnitudes) else 5)
        magnitude = torch.tensor(magnitudes, dtype=torch.float64)[start % len(magnitudes)]
        op, before = torch.full((len(images),), OPS.index(name)), images.clone()
        ours, theirs = by_both(lambda: apply_each(op, images, magnitude))  # noqa: B023
        assert torch.equal(ours, theirs), (tuple(images.shape), magnitude)
        assert torch.equal(images, before)


def test_operations_on_no_images(photographs):
    none = torch.zeros(0, dtype=torch.int64)
    assert apply_each(none, photographs[:0], none.double()).shape == (0, 3, 32, 32)


# --- views -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "family",
    [
        AutoAugment(),
        AutoAugment("svhn"),
        AutoAugment("imagenet"),
        RandAugment(),
        RandAugment(3, 9, bins=11),
        AuxiliaryAugment(crop="none"),
        AuxiliaryAugment(RandAugment(1), crop="padded"),
    ],
    ids=str,
)
def test_view_of_a_policy_is_the_same(photographs, family):
    images = cut(photographs, 15, 20, 30)
    ours, theirs = by_both(lambda: family(images, seed=5))
    assert ours.dtype == torch.uint8
    assert torch.equal(ours, theirs)
    ours, theirs = by_both(lambda: family(images[:2].float() / 255, seed=5))
    assert ours.dtype == torch.float32
    assert torch.equal(ours, theirs)


class Nothing(Augmentation):
    def draw(self, images: Tensor, key: Tensor) -> Tensor:
        return images


@pytest.mark.parametrize(("height", "width", "count"), [(32, 32, 20), (33, 40, 4), (3, 2, 4), (1, 1, 2)])
@pytest.mark.parametrize("crop", ["resized", "padded"])
def test_view_cropped_is_within_a_level(photographs, crop, height, width, count):
    ours, theirs = by_both(lambda: AuxiliaryAugment(Nothing(), crop=crop)(cut(photographs, count, height, width)))
    assert_within_a_level(ours, theirs)
    assert crop == "resized" or torch.equal(ours, theirs)


SETTINGS = {
    "paper": {},
    "isif": {"hue": 0.4, "jitter": 1.0, "blur": 0.0},
    "strong": {"jitter": 1.0, "brightness": 1.5, "contrast": 1.5, "saturation": 3.0, "hue": 0.5},
    "wide blur": {"blur": 1.0, "blur_kernel": 9, "jitter": 0.3},
    "larger": {"size": 40},
    "smaller": {"size": 13},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_view_is_within_a_level(photographs, name):
    family = BasicAugment(**SETTINGS[name])
    images = cut(photographs, 20 if name == "paper" else 4, 32, 32)
    ours, theirs = by_both(lambda: family(images, seed=7))
    assert_within_a_level(ours, theirs)


@pytest.mark.parametrize(
    ("height", "width", "changes"),
    [
        (36, 48, {}),
        (24, 17, {}),
        (48, 40, {"size": 36, "blur_kernel": 5}),
        (20, 70, {"size": 24}),  # one side shrinks, one grows
        (3, 2, {"blur": 1.0, "blur_kernel": 9}),  # too few pixels for a mirror image
        (1, 1, {"blur": 1.0}),
    ],
)
def test_view_of_other_sizes_is_within_a_level(photographs, height, width, changes):
    ours, theirs = by_both(lambda: BasicAugment(**changes)(cut(photographs, 3, height, width), seed=1))
    assert_within_a_level(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_view_of_floats_is_near(photographs, dtype):
    images = (cut(photographs, 4, 32, 32).float() / 255).to(dtype)
    ours, theirs = by_both(lambda: BasicAugment()(images, seed=2))
    assert ours.dtype == dtype
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-6 if dtype != torch.float16 else 1e-3)


def test_view_of_strided_images_and_of_none(photographs):
    images = photographs[:3].permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    for family in (BasicAugment(), AuxiliaryAugment(), AuxiliaryAugment(crop="padded")):
        assert torch.equal(family(images), family(photographs[:3]))
        assert family(photographs[:0]).shape == (0, 3, 32, 32)


def test_view_left_alone_is_the_image(photographs):
    still = BasicAugment(scale=(1, 1), ratio=(1, 1), jitter=0, gray=0, flip=0, blur=0)
    assert torch.equal(still(photographs[:5]), photographs[:5])
    mirrored = BasicAugment(scale=(1, 1), ratio=(1, 1), jitter=0, gray=0, flip=1, blur=0)
    assert torch.equal(mirrored(photographs[:5]), photographs[:5].flip(3))
