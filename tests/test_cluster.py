"""Whitening and k-means against slow, obvious versions."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aag import AAGError, cluster
from aag.cluster import kmeans, mutual_information, nearest_centroids, whiten


def points(seed, n, d, dtype=torch.float64):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def blobs(k, each, d=8, dtype=torch.float64):
    """k tight groups of `each` points around far corners, and the group of each."""
    group = torch.arange(k).repeat_interleave(each)
    return 10 * points(1, k, d, dtype)[group] + 0.1 * points(2, k * each, d, dtype), group


def whitened_before_normalising(x, dims):
    """By the singular value decomposition of the centred matrix, the other way to the same numbers."""
    centred = x - x.mean(dim=0)
    u, _, _ = torch.linalg.svd(centred, full_matrices=False)
    return u[:, :dims] * math.sqrt(len(x))


def test_whitening_agrees_with_the_singular_value_decomposition():
    x = points(0, 50, 7) @ points(1, 7, 7) + 3
    expected = torch.nn.functional.normalize(whitened_before_normalising(x, 5), dim=1)
    result = whiten(x, 5)
    signs = (result * expected).sum(dim=0).sign()  # of a direction: either is right
    assert torch.allclose(result * signs, expected)


def test_whitened_features_are_uncorrelated_and_of_one_variance():
    x = points(0, 400, 6) * torch.tensor([1000.0, 100, 10, 1, 0.1, 0.01]).double()
    white = whitened_before_normalising(x, 6)
    assert torch.allclose(white.T @ white / 400, torch.eye(6).double(), atol=1e-9)
    # Normalising the rows changes the correlations a little.
    result = whiten(x) * math.sqrt(6)
    assert torch.allclose(result.T @ result / 400, torch.eye(6).double(), atol=0.15)


@pytest.mark.parametrize(("n", "size", "dims", "expected"), [(50, 10, 4, 4), (50, 10, 256, 10), (6, 10, 256, 5)])
def test_the_number_of_dimensions_is_limited_by_the_data(n, size, dims, expected):
    result = whiten(points(0, n, size, torch.float32), dims)
    assert result.shape == (n, expected)
    assert torch.allclose(result.norm(dim=1), torch.ones(n))


def test_dead_and_duplicate_features_add_nothing():
    x = points(0, 60, 4, torch.float32)
    more = torch.cat([x, x[:, :2], torch.full((60, 3), 7.0)], dim=1)
    result = whiten(more)
    assert (result[:, 4:] == 0).all()
    # Duplicates rotate and stretch the space, which whitening undoes: the angles between images stay the same.
    assert torch.allclose(result @ result.T, whiten(x) @ whiten(x).T, atol=1e-4)
    assert (whiten(torch.ones(5, 3)) == 0).all()


def test_whitening_by_blocks_is_the_same(monkeypatch):
    x = points(0, 100, 6)
    whole = whiten(x)
    monkeypatch.setattr(cluster, "CHUNK", 6 * 7)
    assert torch.allclose(whiten(x).abs(), whole.abs())


def test_one_row_cannot_be_whitened():
    with pytest.raises(AAGError, match="at least two"):
        whiten(torch.ones(1, 3))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 999), n=st.integers(1, 40), d=st.integers(1, 5), k=st.integers(1, 9))
def test_nearest_is_the_closest_of_all_distances(seed, n, d, k):
    x, centroids = points(seed, n, d), points(seed + 1, k, d)
    labels = nearest_centroids(x, centroids)
    for row, label in zip(x, labels, strict=True):
        distances = [(row - centroid).norm().item() for centroid in centroids]
        assert distances[label] == pytest.approx(min(distances), abs=1e-12)


def lloyd(x, centroids, iterations):
    """k-means as the textbook has it, for starts that leave no cluster empty."""
    for _ in range(iterations):
        labels = [min(range(len(centroids)), key=lambda c: (row - centroids[c]).norm().item()) for row in x]
        groups = [[x[i] for i, label in enumerate(labels) if label == c] for c in range(len(centroids))]
        assert all(groups)
        centroids = torch.stack([torch.stack(group).mean(dim=0) for group in groups])
    return centroids


def test_kmeans_is_lloyds_loop_from_rows_of_x():
    x = points(3, 80, 3)
    start = kmeans(x, 4, iterations=0, seed=5)[1]
    assert all(any(torch.equal(row, centroid) for row in x) for centroid in start)
    assert len(start.unique(dim=0)) == 4
    labels, centroids = kmeans(x, 4, iterations=6, seed=5)
    assert torch.allclose(centroids, lloyd(x, start, 6))
    assert torch.equal(labels, nearest_centroids(x, centroids))


@pytest.mark.parametrize("power", [-60, 60])
@pytest.mark.parametrize("given", [False, True])
def test_kmeans_of_unusual_magnitudes_is_scaled_exactly(power, given):
    x = points(0, 101, 4)
    start = x[:7].clone() if given else None
    labels, centroids = kmeans(x, 7, start=start)
    found = kmeans(2.0**power * x, 7, start=None if start is None else 2.0**power * start)
    assert torch.equal(found[0], labels)
    assert torch.equal(found[1], 2.0**power * centroids)


def test_kmeans_by_blocks_is_the_same(monkeypatch):
    x = points(0, 101, 4)
    labels, centroids = kmeans(x, 7)
    monkeypatch.setattr(cluster, "CHUNK", 7 * 10)
    assert torch.equal(kmeans(x, 7)[0], labels)
    assert torch.allclose(kmeans(x, 7)[1], centroids)


def test_the_start_depends_on_seed_and_epoch():
    x = points(0, 60, 4)
    assert torch.equal(kmeans(x, 8, seed=1, epoch=2)[0], kmeans(x, 8, seed=1, epoch=2)[0])
    starts = [kmeans(x, 8, iterations=0, seed=s, epoch=e)[1] for s, e in ((1, 2), (1, 3), (2, 2))]
    assert not torch.equal(starts[0], starts[1])
    assert not torch.equal(starts[0], starts[2])


@pytest.mark.parametrize("seed", range(5))
def test_no_cluster_spans_far_groups(seed):
    """With clusters to spare; with as many as groups, Lloyd's iterations may end where two share one."""
    x, group = blobs(3, 50)
    labels, _ = kmeans(x, 15, seed=seed)
    assert len((group * 15 + labels).unique()) == len(labels.unique()) == 15


def test_an_empty_cluster_takes_part_of_a_large_one():
    """One centroid far from all points: its cluster is empty at first, and not at the end."""
    x = points(0, 200, 3) + 5
    signs = torch.tensor([[1, -1, 1]]).repeat(4, 1)
    centroids = torch.cat([x[:3], x.new_full((1, 3), 100.0)])
    sums, counts = cluster._cluster_sums(x, nearest_centroids(x, centroids), 4)
    assert counts[3] == 0
    means = sums / counts.clamp_min(1)[:, None]
    split = cluster._refill_empty(means, counts, signs)
    donor = counts.argmax()
    moved = (split != means).any(dim=1)
    assert moved.sum() == 2
    assert moved[3]
    assert torch.allclose((split[3] + split[moved.nonzero()[0, 0]]) / 2, means[moved.nonzero()[0, 0]])
    assert (cluster._cluster_sums(x, nearest_centroids(x, split), 4)[1] > 0).all()
    assert counts[donor] > 1


def test_only_clusters_of_several_points_are_split_and_the_larger_ones_more_often():
    counts = torch.tensor([1.0, 0, 31, 0, 0, 1, 11, 0])
    centroids = torch.arange(1.0, 9)[:, None].repeat(1, 6)
    signs = torch.where(points(0, 8, 6) > 0, 1, -1)
    split = cluster._refill_empty(centroids, counts, signs).mean(dim=1).round().long()
    assert split.tolist() == [1, 3, 3, 3, 3, 6, 7, 7]  # 30 : 10 to spare: three copy the larger one, one the other
    nothing = cluster._refill_empty(centroids, torch.ones(8), signs)
    assert torch.equal(nothing, centroids)


def test_more_clusters_than_different_points_leave_some_empty():
    x = torch.ones(20, 4)
    labels, centroids = kmeans(x, 6)
    assert torch.isfinite(centroids).all()
    assert labels.min() >= 0
    assert labels.max() < 6
    labels, _ = kmeans(points(0, 6, 3), 6)
    assert labels.sort().values.tolist() == list(range(6))


@pytest.mark.parametrize("k", [0, 11])
def test_kmeans_refuses_more_clusters_than_points(k):
    with pytest.raises(AAGError, match=f"between 1 and 10 clusters, not {k}"):
        kmeans(points(0, 10, 2), k)


def slow_mutual_information(a, b):
    """2 I(A; B) / (H(A) + H(B)), from shares counted one by one."""
    n = len(a)
    pairs = list(zip(a, b, strict=True))
    information = sum(
        joint * math.log(joint / (sum(p == x for p in a) / n * sum(q == y for q in b) / n))
        for x, y in set(pairs)
        for joint in [pairs.count((x, y)) / n]
    )
    entropies = [-sum(v.count(x) / n * math.log(v.count(x) / n) for x in set(v)) for v in (a, b)]
    return 2 * information / sum(entropies)


def test_mutual_information_equals_its_formula():
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randint(9, (200,), generator=generator) for _ in range(2))
    for x, y in ((a, b), (a, a), (a, (a + 4) % 9), (a, a // 3), (a, torch.zeros_like(a)), (a, b - 1)):
        expected = slow_mutual_information(x.tolist(), y.tolist())
        assert mutual_information(x, y).item() == pytest.approx(expected, abs=1e-12)
    assert mutual_information(a, (a + 4) % 9).item() == pytest.approx(1)
    assert mutual_information(a * 0, a * 0) == 1


@pytest.mark.gpu
def test_a_gpu_clusters_cifar_fast_and_reproducibly():
    import time

    x = whiten(points(0, 50_000, 512, torch.float32).cuda())
    kmeans(x, 1000, iterations=1)
    torch.cuda.synchronize()
    start = time.perf_counter()
    labels, centroids = kmeans(x, 1000)
    torch.cuda.synchronize()
    assert time.perf_counter() - start < 3
    again = kmeans(x, 1000)
    assert torch.equal(labels, again[0])
    assert torch.equal(centroids, again[1])
