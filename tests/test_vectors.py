"""Unit rows of any magnitude: exact where the plain norm is, and right where it overflows."""

import pytest
import torch
from torch.nn.functional import normalize

from aag import losses
from aag.cluster import kmeans
from aag.evaluate import knn_predict
from aag.vectors import unit_rows

NORMAL = torch.randn(64, 24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 7e3])
def test_usual_rows_and_gradients_keep_every_bit(dtype, scale):
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    ours, plain = ((NORMAL * scale).to(dtype).requires_grad_() for _ in range(2))
    found, expected = unit_rows(ours), normalize(plain.to(wide), dim=1)
    assert torch.equal(found, expected)
    found.backward(NORMAL.to(wide))
    expected.backward(NORMAL.to(wide))
    assert torch.equal(ours.grad, plain.grad)


@pytest.mark.parametrize("scale", [1e-37, 1e-19, 1e-13, 1e19, 1e37])
def test_rows_of_any_size_have_length_one(scale):
    torch.testing.assert_close(
        unit_rows((NORMAL * scale).float()).double(), normalize(NORMAL, dim=1), atol=1e-6, rtol=0
    )
    torch.testing.assert_close(unit_rows(NORMAL * scale**8), normalize(NORMAL, dim=1))


def test_zeros_stay_zeros_and_nan_stays_nan():
    x = torch.tensor([[0.0, 0.0], [1.0, torch.nan], [1e-45, 0.0]], requires_grad=True)
    found = unit_rows(x)
    assert found[0].tolist() == [0, 0]
    assert found[1].isnan().any()
    assert found[2].isfinite().all()
    found[0].sum().backward()
    assert x.grad[0].isfinite().all()
    assert unit_rows(torch.zeros(0, 3)).shape == (0, 3)
    assert unit_rows(torch.zeros(3, 0)).shape == (3, 0)


@pytest.mark.parametrize("exponent", [-60, 100])
def test_losses_neighbours_and_clusters_do_not_depend_on_it(exponent):
    x, y = NORMAL[:32].float(), NORMAL[32:].float()
    large_x, large_y = x * 2.0**exponent, y * 2.0**exponent
    for loss in (losses.gnt_xent, losses.simclr, losses.isif):
        assert loss(x, y) == loss(large_x, large_y)
    labels = torch.arange(32) % 4
    expected, found = knn_predict(x, labels, y, k=5), knn_predict(large_x, labels, large_y, k=5)
    assert torch.equal(found.scores, expected.scores)
    (expected_labels, centres), (found_labels, large_centres) = kmeans(x, 4), kmeans(large_x, 4)
    assert torch.equal(found_labels, expected_labels)
    assert torch.equal(large_centres, centres * 2.0**exponent)
