"""Kernels in Triton's interpreter against plain PyTorch: test_kernels.py runs this with TRITON_INTERPRET=1."""

from dataclasses import dataclass
from functools import partial

import pytest
import torch
from test_ops import RANGE, extremes
from torch import Tensor

from aag import kernels
from aag.augment import OPS, Augmentation, AutoAugment, AuxiliaryAugment, BasicAugment, RandAugment, keys
from aag.augment.autoaugment import OpPolicy
from aag.augment.colour import ORDERS
from aag.augment.geometry import crop_boxes
from aag.augment.kernels import basic, crop, policy
from aag.augment.kernels.draws import draw
from aag.augment.ops import apply_ops
from aag.rng import uniforms

MAX_DIFFERING = 1e-3  # fraction of values that a float's last bits may round to the next level


def with_and_without_kernels(work) -> tuple[Tensor, Tensor]:
    """Return `work()` by kernels and by plain PyTorch."""
    assert kernels.enabled(torch.zeros(1))
    by_kernels = work()
    with kernels.disabled():
        return by_kernels, work()


def crop_photographs(photographs: Tensor, count: int, height: int, width: int) -> Tensor:
    return photographs[:count].repeat(1, 1, 3, 3)[..., 5 : 5 + height, 9 : 9 + width].contiguous()


def assert_within_a_level(by_kernels: Tensor, plain: Tensor) -> None:
    assert by_kernels.shape == plain.shape
    assert by_kernels.dtype == plain.dtype == torch.uint8
    difference = (by_kernels.int() - plain.int()).abs()
    assert difference.max() <= 1
    assert (difference > 0).double().mean() < MAX_DIFFERING


# --- draws -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seed", "epoch", "view"), [(0, 0, 0), (2**40 + 3, 199, 2), (-1, 7, -1)])
def test_draws_keys(seed, epoch, view):
    image = torch.cat([torch.arange(-50, 100), torch.tensor([2**31, 2**32 + 5, 2**45])])
    by_kernels, plain = with_and_without_kernels(lambda: keys(seed, epoch, image, view))
    assert torch.equal(by_kernels, plain)


def test_draws_of_any_int64_keys():
    key = torch.tensor([0, 1, -1, 2**31, 2**32 + 7, 2**62 + 12345, -(2**63)])
    assert torch.equal(basic.draw_views(BasicAugment(), key, 32, 32)[:, 14:], uniforms(key, 2))


@pytest.mark.parametrize(
    ("augmentation", "height", "width"),
    [
        (BasicAugment(), 32, 32),
        (BasicAugment(scale=(0.08, 1.0), hue=0.5, brightness=1.5, blur_sigma=(0.3, 1.7)), 64, 48),
        (BasicAugment(scale=(0.9, 1.0), gray=0.0, jitter=1.0), 6, 100),  # few boxes fit
        (BasicAugment(scale=(1, 1), ratio=(1, 1)), 1, 1),
    ],
    ids=["paper", "large", "oblong", "1×1"],
)
def test_draws_of_the_basic_augmentation(augmentation, height, width):
    key = keys(3, 1, torch.arange(150))
    draws = augmentation.draws(key, height, width)
    orders = torch.tensor([sum(number * 4**i for i, number in enumerate(order)) for order in ORDERS])
    choices = torch.stack([draws.flip, draws.jitter, draws.gray, draws.blur], dim=1)
    last = torch.stack([orders[draws.order], draws.sigma], dim=1)
    expected = torch.cat([draws.box, choices, draws.strength, last, uniforms(key, 2)], dim=1)
    assert torch.equal(basic.draw_views(augmentation, key, height, width), expected)


def test_draws_from_another_slot():
    key, ratio = keys(3, 2, torch.arange(100)), (3 / 4, 4 / 3)
    draws, u = draw(key, (20, 30), (0.2, 1), ratio, (0.5, 0, 0, 0), first_slot=32), uniforms(key, 64)[:, 32:]
    assert torch.equal(draws[:, :4], crop_boxes(u[:, :22], 20, 30, (0.2, 1), ratio))
    assert torch.equal(draws[:, 4] > 0, u[:, 22] < 0.5)


# --- operations ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPS)
def test_operation_gives_the_same_pixels(photographs, name):
    magnitudes = RANGE[name]
    noise = torch.randint(0, 256, (6, 3, 35, 30), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
    batches = [
        crop_photographs(photographs, len(magnitudes), 32, 32),
        noise,  # more pixels than a tile
        extremes(5, 9),
        extremes(35, 31)[-4:],
        crop_photographs(photographs, 2, 2, 5),
        crop_photographs(photographs, 2, 1, 1),
    ]
    for images in batches:
        start = torch.arange(len(images)) * (1 if len(images) == len(magnitudes) else 5)
        magnitude = torch.tensor(magnitudes, dtype=torch.float64)[start % len(magnitudes)]
        op, before = torch.full((len(images),), OPS.index(name)), images.clone()
        by_kernels, plain = with_and_without_kernels(lambda: apply_ops(op, images, magnitude))  # noqa: B023
        assert torch.equal(by_kernels, plain), (tuple(images.shape), magnitude)
        assert torch.equal(images, before)


def test_operations_on_no_images(photographs):
    none = torch.zeros(0, dtype=torch.int64)
    assert apply_ops(none, photographs[:0], none.double()).shape == (0, 3, 32, 32)


# --- views -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "augmentation",
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
def test_view_of_a_policy_is_the_same(photographs, augmentation):
    images = crop_photographs(photographs, 15, 20, 30)
    by_kernels, plain = with_and_without_kernels(lambda: augmentation(images, seed=5))
    assert by_kernels.dtype == torch.uint8
    assert torch.equal(by_kernels, plain)
    by_kernels, plain = with_and_without_kernels(lambda: augmentation(images[:2].float() / 255, seed=5))
    assert by_kernels.dtype == torch.float32
    assert torch.equal(by_kernels, plain)


class Identity(Augmentation):
    def plain_views(self, images: Tensor, rng_key: Tensor) -> Tensor:
        return images


@pytest.mark.parametrize(("height", "width", "count"), [(32, 32, 20), (33, 40, 4), (3, 2, 4), (1, 1, 2)])
@pytest.mark.parametrize("crop", ["resized", "padded"])
def test_view_cropped_is_within_a_level(photographs, crop, height, width, count):
    images = crop_photographs(photographs, count, height, width)
    by_kernels, plain = with_and_without_kernels(lambda: AuxiliaryAugment(Identity(), crop=crop)(images, seed=0))
    assert_within_a_level(by_kernels, plain)
    assert crop == "resized" or torch.equal(by_kernels, plain)


@pytest.mark.parametrize(("side", "size"), [(40, 35), (36, 12), (20, 31)])
@pytest.mark.parametrize("crop", ["resized", "padded", "none"])
def test_view_of_another_size_is_within_a_level(photographs, crop, side, size):
    if size > side and crop != "resized":
        pytest.skip("only a resized crop enlarges")
    images = crop_photographs(photographs, 6, side, side)
    augmentation = AuxiliaryAugment(Identity(), crop=crop).at_size(size)
    by_kernels, plain = with_and_without_kernels(lambda: augmentation(images, seed=0))
    assert by_kernels.shape == (6, 3, size, size)
    assert_within_a_level(by_kernels, plain)


@pytest.mark.parametrize(
    ("count", "height", "width", "settings"),
    [
        (20, 32, 32, {}),
        (4, 32, 32, {"hue": 0.4, "jitter": 1.0, "blur": 0.0}),
        (4, 32, 32, {"jitter": 1.0, "brightness": 1.5, "contrast": 1.5, "saturation": 3.0, "hue": 0.5}),
        (4, 32, 32, {"blur": 1.0, "blur_kernel": 9, "jitter": 0.3}),
        (4, 32, 32, {"size": 40}),
        (4, 32, 32, {"size": 13}),
        (3, 36, 48, {}),
        (3, 24, 17, {}),
        (3, 48, 40, {"size": 36, "blur_kernel": 5}),
        (12, 20, 70, {"size": 24}),  # one side shrinks, one grows
        (3, 3, 2, {"blur": 1.0, "blur_kernel": 9}),  # too few pixels to reflect
        (3, 1, 1, {"blur": 1.0}),
    ],
)
def test_view_is_within_a_level(photographs, count, height, width, settings):
    images = crop_photographs(photographs, count, height, width)
    assert_within_a_level(*with_and_without_kernels(lambda: BasicAugment(**settings)(images, seed=7)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_view_of_floats_is_near(photographs, dtype):
    images = (crop_photographs(photographs, 4, 32, 32).float() / 255).to(dtype)
    by_kernels, plain = with_and_without_kernels(lambda: BasicAugment()(images, seed=2))
    assert by_kernels.dtype == dtype
    torch.testing.assert_close(by_kernels, plain, rtol=0, atol=2e-6 if dtype != torch.float16 else 1e-3)


def test_view_of_strided_images_and_of_none(photographs):
    images = photographs[:3].permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    for augmentation in (BasicAugment(), AuxiliaryAugment(), AuxiliaryAugment(crop="padded")):
        assert torch.equal(augmentation(images, seed=0), augmentation(photographs[:3], seed=0))
        assert augmentation(photographs[:0]).shape == (0, 3, 32, 32)


def test_view_without_changes_is_the_image_or_its_mirror_image(photographs):
    for flip, expected in ((0, photographs[:5]), (1, photographs[:5].flip(3))):
        augmentation = BasicAugment(scale=(1, 1), ratio=(1, 1), jitter=0, gray=0, flip=flip, blur=0)
        assert torch.equal(augmentation(photographs[:5]), expected)


# --- overrides: a changed augmentation runs its plain version ---------------------------------------------------------


class AlwaysFlipped(BasicAugment):
    def draws(self, rng_key, height, width):
        return super().draws(rng_key, height, width)._replace(flip=torch.ones(len(rng_key), dtype=torch.bool))


@dataclass(frozen=True)
class WithField(BasicAugment):
    darkening: float = 0.5

    def plain_views(self, images, rng_key):
        return (super().plain_views(images, rng_key) * self.darkening).to(images.dtype)


class InvertingAuto(AutoAugment):
    def op_table(self, height, width):
        return (((OPS.index("Invert"), 1.0, 0, 0),),)


class InvertingRand(RandAugment):
    op_table = InvertingAuto.op_table


class Uncropped(AuxiliaryAugment):
    def plain_crop(self, images, rng_key):
        return images


OVERRIDES = {  # changed and original
    "draws": (AlwaysFlipped(), BasicAugment()),
    "new field": (WithField(), BasicAugment()),
    "autoaugment": (InvertingAuto(), AutoAugment()),
    "randaugment": (InvertingRand(), RandAugment()),
    "crop": (Uncropped(Identity()), AuxiliaryAugment(Identity())),
}


@pytest.fixture
def kernel_calls(monkeypatch) -> list[str]:
    """Record which classes a kernel runs for."""
    calls: list[str] = []

    def record(kernel, augmentation, *arguments):
        calls.append(type(augmentation).__name__)
        return kernel(augmentation, *arguments)

    for module, name in ((basic, "views"), (policy, "views"), (crop, "crop_batch")):
        monkeypatch.setattr(module, name, partial(record, getattr(module, name)))
    return calls


@pytest.mark.parametrize("name", OVERRIDES)
def test_override_takes_effect_and_is_logged_once(photographs, kernel_calls, caplog, name):
    changed, original = OVERRIDES[name]
    by_kernels, plain = with_and_without_kernels(lambda: changed(photographs[:8], seed=3))
    assert torch.equal(by_kernels, plain)
    assert kernel_calls == []
    reason = f"{type(changed).__name__} runs without its Triton kernel: the kernel knows {type(original).__name__}, not"
    assert [record.getMessage()[: len(reason)] for record in caplog.records] == [reason]
    assert caplog.records[0].name == "aag.augment"
    assert (original(photographs[:8], seed=3) != plain).any()
    assert kernel_calls == [type(original).__name__]
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("parent", "method", "augmentation"),
    [
        (BasicAugment, "draws", BasicAugment()),
        (OpPolicy, "plain_views", AutoAugment()),
        (RandAugment, "op_slots", RandAugment()),
        (AuxiliaryAugment, "plain_crop", AuxiliaryAugment(Identity())),
    ],
)
def test_override_of_a_class_is_noticed(photographs, kernel_calls, monkeypatch, parent, method, augmentation):
    original = getattr(parent, method)
    monkeypatch.setattr(parent, method, lambda *arguments: original(*arguments))
    with_override, plain = with_and_without_kernels(lambda: augmentation(photographs[:4], seed=3))
    assert torch.equal(with_override, plain)
    assert kernel_calls == []
    monkeypatch.setattr(parent, method, original)
    augmentation(photographs[:4], seed=3)
    assert kernel_calls == [type(augmentation).__name__]


def test_override_of_an_instance_is_noticed():
    augmentation = BasicAugment()
    assert basic.supports(augmentation)
    object.__setattr__(augmentation, "draws", lambda *arguments: None)
    assert not basic.supports(augmentation)


def test_override_of_the_policy_leaves_the_crop_to_its_kernel(photographs, kernel_calls):
    augmentation = AuxiliaryAugment(InvertingAuto(), crop="padded")
    expected = AuxiliaryAugment(Identity(), crop="padded")(photographs[:4], seed=3)
    assert torch.equal(augmentation(photographs[:4], seed=3), expected)  # inverted twice
    assert kernel_calls == ["AuxiliaryAugment", "AuxiliaryAugment"]
