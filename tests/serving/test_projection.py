"""Neighbours and the map: against slow and obvious versions."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from aag.errors import AAGError
from aag.serving import neighbours, projection
from aag.serving.neighbours import neighbour_graph
from aag.serving.projection import project


def groups(count: int, each: int, dims: int = 16, spread: float = 0.3) -> tuple[torch.Tensor, torch.Tensor]:
    """Unit rows around `count` random centres, with the number of each row's centre."""
    centres = F.normalize(torch.randn(count, dims), dim=1)
    label = torch.arange(count).repeat_interleave(each)
    return F.normalize(centres[label] + spread * torch.randn(count * each, dims) / dims**0.5, dim=1), label


def test_neighbours_are_the_nearest_others():
    rows, _ = groups(5, 40)
    index, cosine = neighbour_graph(rows, 7)
    similarity = (rows @ rows.T).fill_diagonal_(-2)
    assert torch.allclose(cosine, similarity.topk(7).values, atol=1e-6)
    assert torch.allclose(similarity.gather(1, index), cosine, atol=1e-6)


def test_equal_rows_are_not_their_own_neighbours():
    index, cosine = neighbour_graph(torch.ones(6, 4) / 2, 3)
    assert not (index == torch.arange(6)[:, None]).any()
    assert torch.allclose(cosine, torch.ones(6, 3))


def test_few_rows_have_few_neighbours():
    assert neighbour_graph(F.normalize(torch.randn(3, 4), dim=1), 15)[0].shape == (3, 2)


def test_cells_find_nearly_all_neighbours(monkeypatch):
    monkeypatch.setattr(neighbours, "CELL_ROWS", 80)
    rows = F.normalize(torch.randn(2000, 16), dim=1)  # without groups: the hardest case
    exact, _ = neighbour_graph(rows, 15)
    monkeypatch.setattr(neighbours, "EXACT_ROWS", 0)
    index, cosine = neighbour_graph(rows, 15)
    recall = (exact[:, :, None] == index[:, None, :]).any(dim=2).float().mean()
    assert recall > 0.95
    assert not (index == torch.arange(2000)[:, None]).any()
    assert torch.allclose(cosine, (rows[:, None] * rows[index]).sum(dim=2), atol=1e-5)
    assert all(len(row.unique()) == 15 for row in index)


class LargestTensor(TorchDispatchMode):
    """Notes the number of elements of the largest tensor that any operation returns."""

    numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            self.numel = max(self.numel, tensor.numel() if isinstance(tensor, torch.Tensor) else 0)
        return result


def test_a_large_cell_of_equal_images_is_compared_in_chunks(monkeypatch):
    rows = F.normalize(torch.cat([torch.randn(1000, 8), torch.ones(3000, 8)]), dim=1)
    monkeypatch.setattr(neighbours, "EXACT_ROWS", 0)
    whole = neighbour_graph(rows, 3)
    monkeypatch.setattr(neighbours, "MAX_ELEMENTS", 200_000, raising=False)
    with LargestTensor() as largest:
        index, cosine = neighbour_graph(rows, 3)
    assert largest.numel < 500_000  # the candidates: 4000 rows × 8 cells × 4; 3000² without chunks
    assert torch.equal(index, whole[0])
    assert torch.allclose(cosine, whole[1], atol=1e-6)


def test_repulsion_is_the_sum_over_all_pairs():
    y = 3 * torch.randn(60, 2)
    exact = torch.zeros_like(y)
    total = 0.0
    for i in range(len(y)):
        for j in range(len(y)):
            if i != j:
                kernel = 1 / (1 + float((y[i] - y[j]).square().sum()))
                exact[i] += (y[i] - y[j]) * kernel**2
                total += kernel
    exact /= total
    assert torch.allclose(projection._exact_repulsion(y), exact, atol=1e-5)
    found = projection._repulsion(y, *projection.FINE)
    assert (found - exact).norm() / exact.norm() < 0.05


@pytest.mark.parametrize("limit", [0, 1000])  # by the grid, and over all pairs
def test_groups_stay_together(monkeypatch, limit):
    monkeypatch.setattr(projection, "EXACT_ROWS", limit)
    rows, label = groups(6, 40)
    plane = project(rows)
    distance = torch.cdist(plane, plane).fill_diagonal_(torch.inf)
    nearest = label[distance.topk(5, largest=False).indices]
    assert (nearest == label[:, None]).float().mean() > 0.95
    assert torch.equal(plane, project(rows))


def test_a_sample_places_the_others():
    rows, label = groups(6, 60)
    plane = project(rows, landmarks=120)
    distance = torch.cdist(plane, plane).fill_diagonal_(torch.inf)
    assert (label[distance.topk(5, largest=False).indices] == label[:, None]).float().mean() > 0.95


@pytest.mark.parametrize("count", [2, 3, 5])
def test_few_or_equal_rows_have_finite_places(count):
    plane = project(torch.ones(count, 4) / 2)
    assert plane.shape == (count, 2)
    assert plane.isfinite().all()


@pytest.mark.parametrize("seed", range(20))  # in fp32, eigh failed on three of these
def test_equal_rows_whose_mean_is_rounded_have_finite_places(seed):
    row = F.normalize(torch.randn(1, 64, generator=torch.Generator().manual_seed(seed)) ** 3, dim=1)
    assert projection._initial_positions(row.repeat(40, 1), 0).isfinite().all()


def test_what_is_no_embedding_is_refused():
    with pytest.raises(AAGError, match="NaN or infinity"):
        project(torch.full((9, 4), torch.nan))
    with pytest.raises(AAGError, match=r"not torch.int64 \[9, 4\]"):
        project(torch.ones(9, 4).long())
