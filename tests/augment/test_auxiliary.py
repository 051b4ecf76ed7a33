"""The auxiliary augmentation: a crop, a flip and a policy, drawn independently, and the pixels of the crop."""

from collections import Counter

import pillow_reference
import pytest
import torch
from distributions import P_VALUE, assert_distributed, blank
from scipy.stats import chi2_contingency
from torch import Tensor
from torch.nn.functional import pad
from torch.utils._python_dispatch import TorchDispatchMode

from aag.augment import OPS, Augmentation, AutoAugment, AuxiliaryAugment, RandAugment, auxiliary, keys


class Identity(Augmentation):
    """A policy that shows the crop alone."""

    def plain_views(self, images: Tensor, rng_key: Tensor) -> Tensor:
        return images


class DividesLikeCuda(TorchDispatchMode):
    """Divide a tensor by a number through its reciprocal, as CUDA does."""

    divisions = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.div.Tensor and not isinstance(args[1], Tensor):
            self.divisions += 1
            return args[0] * args[0].new_tensor(args[1]).reciprocal()
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("policy", [AutoAugment(), RandAugment()], ids=str)
def test_without_a_crop_the_view_is_the_policys(photographs, policy):
    key = keys(0, 3, torch.arange(200))
    assert torch.equal(
        AuxiliaryAugment(policy, crop="none")(photographs[:200], key=key), policy(photographs[:200], key=key)
    )


@pytest.mark.parametrize("crop", ["resized", "padded"])
def test_the_crop_does_not_change_what_the_policy_draws(photographs, record_ops, crop):
    key = keys(0, 3, torch.arange(200))
    alone, _ = record_ops(AutoAugment(), photographs[:200], key)
    after_crop, _ = record_ops(AuxiliaryAugment(crop=crop), photographs[:200], key)
    assert after_crop == alone


def test_resized_crop_comes_first_and_is_within_a_level_of_pillows(photographs, monkeypatch):
    resample, seen = auxiliary.resample, []
    monkeypatch.setattr(auxiliary, "resample", lambda *args: seen.append(args) or resample(*args))
    key = keys(0, 0, torch.arange(300))
    ours = AuxiliaryAugment(Identity())(photographs[:300], key=key)
    ((_, box, flip, size),) = seen
    assert size == (32, 32)
    assert 0.2 * 1024 * 0.9 < (box[:, 2] * box[:, 3]).min() < 300
    theirs = [pillow_reference.crop_and_resize(*one, size) for one in zip(photographs[:300], box, flip, strict=True)]
    assert pillow_reference.max_difference(ours, torch.stack(theirs)) <= 1
    policy = AutoAugment()
    assert torch.equal(AuxiliaryAugment(policy)(photographs[:300], key=key), policy(ours, key=key))


@pytest.mark.parametrize("shape", [(32, 32), (3, 2)])
def test_a_resized_crop_is_rounded_the_same_where_division_differs(photographs, shape):
    images, key = photographs[:400, :, : shape[0], : shape[1]], keys(0, 0, torch.arange(400))
    with DividesLikeCuda() as cuda:
        there = AuxiliaryAugment(Identity()).plain_views(images, key)
    assert cuda.divisions
    here = AuxiliaryAugment(Identity()).plain_views(images, key)
    assert (here == there).double().mean() > 0.999


@pytest.mark.parametrize("crop", ["resized", "padded"])
def test_crop_flip_and_policy_are_drawn_independently(record_ops, monkeypatch, crop):
    seen = {}

    def recording_resample(images, box, flip, size):
        top, left, height, width = box.T
        seen.update(small=height * width < 600, high=2 * top < 32 - height, left=2 * left < 32 - width, flip=flip)
        return images.float()

    def recording_affine(images, matrix):
        sign, _, right, _, _, down = matrix.T
        seen.update(left=right - 32 * (sign < 0) < 0, high=down < 0, flip=sign < 0)
        return images

    monkeypatch.setattr(auxiliary, "resample", recording_resample)
    monkeypatch.setattr(auxiliary, "affine", recording_affine)
    ops, _ = record_ops(AuxiliaryAugment(RandAugment(), crop=crop), blank(12_000))
    of_crop = {name: value.long() for name, value in seen.items() if name != "flip"}
    others = {"flip": seen["flip"].long()}
    for position in (0, 1):
        others[f"operation {position}"] = torch.tensor([OPS.index(sequence[position][0]) for sequence in ops])
    assert all(0.2 < value.double().mean() < 0.8 for value in of_crop.values())
    pairs = [(a, b) for a in {**of_crop, "flip": 0} for b in others if a != b]
    for a, b in pairs:
        table = torch.bincount({**of_crop, **others}[a] * len(OPS) + others[b], minlength=2 * len(OPS)).view(2, -1)
        occurring = table[:, table.sum(dim=0) > 0]
        assert chi2_contingency(occurring).pvalue > P_VALUE / len(pairs), f"{a} and {b}"


def padded_crops(images: Tensor, reach: int) -> dict[tuple[int, int, bool], Tensor]:
    """Return every crop of the images in a gray frame, and its mirror image."""
    side = images.shape[3]
    framed = pad(images, (reach,) * 4, value=128)
    crops = {}
    for down in range(2 * reach + 1):
        for right in range(2 * reach + 1):
            crop = framed[..., down : down + side, right : right + side]
            crops[down, right, False] = crop
            crops[down, right, True] = crop.flip(3)
    return crops


def test_padded_crops_are_equally_likely_shifts_of_the_framed_image(photographs):
    images = photographs[:1000]
    out = AuxiliaryAugment(Identity(), crop="padded", pad=2)(images, key=keys(0, 0, torch.arange(1000)))
    crops = padded_crops(images, 2)
    counts = Counter({which: int((out == crop).flatten(1).all(dim=1).sum()) for which, crop in crops.items()})
    assert sum(counts.values()) == 1000  # each view is one of the crops, and only one
    assert_distributed(counts, dict.fromkeys(crops, 1 / 50))


@pytest.mark.parametrize("crop", ["resized", "padded"])
@pytest.mark.parametrize(("flip", "low", "high"), [(0.0, 0, 0), (0.5, 440, 560), (1.0, 1000, 1000)])
def test_flips_occur_with_their_probability(photographs, crop, flip, low, high):
    uncropped = AuxiliaryAugment(Identity(), crop=crop, flip=flip, scale=(1, 1), ratio=(1, 1), pad=0)
    out = uncropped(photographs, seed=0)
    mirrored = (out == photographs.flip(3)).flatten(1).all(dim=1)
    straight = (out == photographs).flatten(1).all(dim=1)
    assert (mirrored ^ straight).all()
    assert low <= mirrored.sum() <= high
