"""Label-free health against slow, obvious versions and on known cases."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from aag import AAGError
from aag.augment import BasicAugment
from aag.evaluate.health import (
    alignment,
    effective_rank,
    health,
    is_collapsed,
    subset_indices,
    uniformity,
    view_agreement,
)


def unit_rows(n: int, width: int, seed: int = 0) -> torch.Tensor:
    return F.normalize(torch.randn(n, width, generator=torch.Generator().manual_seed(seed)), dim=1)


@settings(max_examples=25, deadline=None)
@given(n=st.integers(3, 30), width=st.integers(2, 12), k=st.integers(1, 5), seed=st.integers(0, 1000))
def test_against_slow_loops(n, width, k, seed):
    x = unit_rows(n, width, seed)
    y = F.normalize(x + 0.3 * unit_rows(n, width, seed + 1), dim=1)

    singular = torch.linalg.svdvals(x.double())
    shares = [float(value / singular.sum()) for value in singular]
    slow_rank = math.exp(-sum(share * math.log(share) for share in shares if share > 0))
    assert effective_rank(x) == pytest.approx(slow_rank, rel=1e-4)

    slow_alignment = sum(float((a - b).norm() ** 2) for a, b in zip(x, y, strict=True)) / n
    assert alignment(x, y) == pytest.approx(slow_alignment, rel=1e-4)

    pairs = [math.exp(-2 * float((x[i] - x[j]).norm() ** 2)) for i in range(n) for j in range(n) if i != j]
    assert uniformity(x) == pytest.approx(math.log(sum(pairs) / len(pairs)), rel=1e-4, abs=1e-5)

    found = 0
    for i in range(n):
        distances = [float((x[i] - other).norm()) for other in y]
        found += sorted(range(n), key=distances.__getitem__).index(i) < k
    assert view_agreement(x, y, k) == pytest.approx(found / n, abs=0.5 / n)


def test_known_cases():
    same = unit_rows(1, 16).expand(400, 16)
    assert effective_rank(same) == pytest.approx(1, abs=1e-3)
    assert effective_rank(torch.zeros(5, 4)) == 1
    assert effective_rank(torch.eye(16).repeat(9, 1)) == pytest.approx(16)
    assert effective_rank(unit_rows(4000, 16)) > 15.9  # isotropic: nearly all of 16
    assert uniformity(same) == pytest.approx(0, abs=1e-5)
    assert alignment(same, same) == 0
    assert alignment(same, -same) == pytest.approx(4)
    assert view_agreement(same, same) == 0  # equal embeddings tell no image from another
    x = unit_rows(50, 16)
    assert view_agreement(x, x) == 1
    assert view_agreement(x, x.roll(1, 0), k=50) == 1
    assert view_agreement(x, x.roll(1, 0)) == 0


def test_two_views_of_other_images_are_refused():
    with pytest.raises(AAGError, match="got 4 and 5 embeddings"):
        alignment(unit_rows(4, 3), unit_rows(5, 3))
    with pytest.raises(AAGError, match="3 dimensions, test features 2"):
        view_agreement(unit_rows(4, 3), unit_rows(4, 2))
    with pytest.raises(AAGError, match="at least two"):
        uniformity(unit_rows(1, 3))


@pytest.mark.parametrize(("count", "size"), [(3, 3), (256, 256), (300, 256), (4000, 960), (100_000, 2048)])
def test_the_subset_is_fixed_and_bounded(count, size):
    index = subset_indices(count)
    assert len(index) == size == len(index.unique())
    assert int(index.min()) >= 0 and int(index.max()) < count  # noqa: PT018
    assert torch.equal(index, subset_indices(count))


def test_health_sees_two_different_fixed_views(photographs):
    seen = []

    def encode(views: torch.Tensor) -> torch.Tensor:
        seen.append(views.clone())
        return F.normalize(views.float().flatten(1), dim=1)

    found = health(encode, photographs[:64], BasicAugment.preset("paper"))
    first, second = seen[:2]
    assert first.shape == second.shape == (64, 3, 32, 32)
    assert not torch.equal(first, second)
    assert found == health(encode, photographs[:64], BasicAugment.preset("paper"))
    assert found.dimensions == 3 * 32 * 32
    assert 1 < found.rank <= 64
    assert 0 < found.agreement <= 1
    blind = health(lambda views: unit_rows(1, 8).expand(len(views), 8), photographs[:64], BasicAugment.preset("paper"))
    assert is_collapsed({**vars(blind), "step": 100})
    assert not is_collapsed({**vars(blind), "step": 99})
    assert not is_collapsed({**vars(found), "step": 100})
