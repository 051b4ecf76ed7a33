"""Counter-based random numbers: fixed values, uniform, independent, the same in any order."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from aag.augment import keys, permutation, uniforms

N = 20_000
IMAGES = torch.arange(N)
P_VALUE = 1e-3  # seeds are fixed, so a test that passes once always passes


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    return torch.corrcoef(torch.stack([a.double(), b.double()]))[0, 1].item()


# --- fixed values: changing them changes every recorded run ----------------------------------------------------------


def test_keys_keep_their_values():
    assert keys(0, 0, torch.arange(4)).tolist() == [3861855175, 4110042313, 240349068, 825116061]
    assert keys(2**40 + 17, 123, torch.tensor([0, 49_999]), view=2).tolist() == [2541718022, 524058566]


def test_uniforms_keep_their_values():
    drawn = uniforms(torch.tensor([0, 1, 0xFFFFFFFF]), 3)
    assert (drawn * 2**24).long().tolist() == [
        [954326, 14172951, 4085769],
        [5126845, 16465182, 5250396],
        [9622505, 12808578, 12167167],
    ]


def test_permutation_keeps_its_values():
    assert permutation(0, 0, 10).tolist() == [4, 2, 1, 0, 3, 7, 8, 9, 5, 6]
    assert permutation(7, 3, 10).tolist() == [8, 4, 0, 3, 1, 5, 9, 7, 2, 6]
    assert permutation(0, 0, 10, block=4).tolist() == [2, 1, 0, 3, 4, 7, 5, 6, 8, 9]  # the same order within a block


def _mix(h: int) -> int:
    h ^= h >> 16
    h = h * 0x7FEB352D % 2**32
    h ^= h >> 15
    h = h * 0x2C1B3C6D % 2**32
    h ^= h >> 14
    h = h * 0x297A2D39 % 2**32
    return h ^ h >> 16


def _hash(*words: int, key: int = 0) -> int:
    for word in words:
        key = _mix(key ^ _mix((word + 0x3C6EF372) % 2**32))
    return key


@settings(max_examples=200, deadline=None)
@given(
    st.integers(-(2**63), 2**64), st.integers(0, 2**33), st.integers(0, 2**40), st.integers(-1, 9), st.integers(0, 63)
)
def test_tensors_agree_with_integers_of_any_length(seed, epoch, image, view, slot):
    expected = _hash(seed, seed >> 32, epoch, image, view)
    key = keys(seed, epoch, torch.tensor([image]), view)
    assert key.tolist() == [expected]
    assert uniforms(key, slot + 1)[0, slot].item() == (_hash(slot, key=expected) >> 8) / 2**24


# --- uniform and independent -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("epoch", [0, 1, 199])
def test_uniforms_are_uniform(epoch):
    u = uniforms(keys(0, epoch, IMAGES), 40)
    assert u.dtype == torch.float32
    assert u.shape == (N, 40)
    assert u.min() >= 0
    assert u.max() < 1
    assert chisquare(torch.bincount((u.flatten() * 256).long(), minlength=256)).pvalue > P_VALUE
    last_bits = (u.flatten() * 2**24).long() % 256
    assert chisquare(torch.bincount(last_bits, minlength=256)).pvalue > P_VALUE
    worst = min(chisquare(torch.bincount((column * 20).long(), minlength=20)).pvalue for column in u.T)
    assert worst > P_VALUE / 40


def test_slots_of_an_image_are_uncorrelated():
    table = torch.corrcoef(uniforms(keys(0, 0, IMAGES), 64).T.double())
    assert (table - torch.eye(64)).abs().max() < 4.5 / N**0.5


@pytest.mark.parametrize("slots", [(0, 1), (1, 2), (20, 21), (0, 32)])
def test_pairs_of_slots_are_uniform(slots):
    u = (uniforms(keys(5, 2, IMAGES), 33)[:, list(slots)] * 16).long()
    assert chisquare(torch.bincount(u[:, 0] * 16 + u[:, 1], minlength=256)).pvalue > P_VALUE


@pytest.mark.parametrize(
    "other",
    [
        keys(0, 1, IMAGES),
        keys(0, 0, IMAGES, view=1),
        keys(1, 0, IMAGES),
        keys(2**32, 0, IMAGES),
        keys(0, 0, IMAGES + 1),
        keys(0, 0, IMAGES + 2**16),
    ],
    ids=["epoch", "view", "seed", "seed's upper half", "next image", "far image"],
)
def test_draws_of_another_epoch_view_seed_or_image_are_unrelated(other):
    here, there = uniforms(keys(0, 0, IMAGES), 8), uniforms(other, 8)
    assert (here == there).sum() < 5
    assert max(abs(correlation(here[:, i], there[:, j])) for i in range(8) for j in range(8)) < 4.5 / N**0.5


def test_seed_and_epoch_and_view_are_not_interchangeable():
    inputs = [(seed, epoch, view) for seed in range(4) for epoch in range(4) for view in range(4)]
    first = {keys(seed, epoch, torch.arange(1), view).item() for seed, epoch, view in inputs}
    assert len(first) == 64


def test_no_two_images_of_an_epoch_share_a_key():
    assert keys(3, 7, torch.arange(300_000)).unique().numel() == 300_000


def test_keys_depend_on_the_index_and_not_on_its_position_or_dtype():
    index = torch.tensor([900, 3, 3, 47_000])
    assert torch.equal(keys(1, 2, index), keys(1, 2, torch.arange(50_000))[index])
    assert torch.equal(keys(1, 2, index.int()), keys(1, 2, index))


# --- shuffles --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 2, 1000, 50_000])
def test_permutation_has_each_image_once(n):
    assert torch.equal(permutation(0, 4, n).sort().values, torch.arange(n))


def test_epochs_and_seeds_shuffle_differently():
    orders = [permutation(seed, epoch, N) for seed in (0, 1) for epoch in (0, 1, 2)]
    for i, first in enumerate([IMAGES, *orders]):
        for second in orders[i:]:
            assert (first == second).sum() < 8  # about one agrees by chance
            assert abs(correlation(first, second)) < 4 / N**0.5


def test_every_position_of_an_image_is_equally_likely():
    position = torch.stack([permutation(0, epoch, 8) for epoch in range(1000)])
    for image in range(8):
        assert chisquare((position == image).sum(dim=0)).pvalue > P_VALUE / 8
