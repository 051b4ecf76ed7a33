"""PCA-whitening and k-means on the device, as DeepCluster uses them from faiss."""

from math import frexp, isfinite
from typing import Annotated

import torch
from torch import Tensor

from aag.errors import AAGError, describe
from aag.rng import Stream, keys, uniforms
from aag.settings import Range, check_value
from aag.vectors import check_floats, unit_rows

CHUNK = 2**24  # numbers in a block of distances: 64 MB of float32
VARIANCE_FLOOR = 1e-12  # relative to the largest variance; less is rounding of float32 features
SAFE_MAGNITUDES = (1e-12, 1e12)  # magnitudes whose squares and their sums are far from the limits of float32
MAX_EXPONENT = 100  # a power of two that is a float32, and whose inverse is one
SPLIT_SHIFT = 1 / 1024  # by which the two halves of a split centroid move, relative to its coordinates


def whiten(features: Tensor, dims: int = 256) -> Tensor:
    """Whiten features [N, F] → [N, min(dims, F, N − 1)]: uncorrelated, of equal variance, then unit rows.

    The covariance and its eigenvectors are computed in float64, because the small eigenvalues are differences of large
    numbers and the result is divided by them. Directions without variance (dead or duplicate features) become zeros.
    """
    _check_matrix(features, "whitening")
    dims = check_value("dims", dims, Annotated[int, Range(at_least=1)])
    n, size = features.shape
    if n < 2:
        raise AAGError("whitening needs at least two rows: one alone has no variance")
    dims = min(dims, size, n - 1)
    mean = features.mean(dim=0, dtype=torch.float64)
    covariance = torch.zeros(size, size, dtype=torch.float64, device=features.device)
    for rows in features.split(_rows_per_block(size)):
        centred = rows - mean  # by blocks, as float64 takes twice the memory
        covariance += centred.T @ centred / n
    variances, directions = torch.linalg.eigh(covariance)  # ascending
    variances, directions = variances[-dims:].flip(0), directions[:, -dims:].flip(1)
    nonzero = variances > VARIANCE_FLOOR * variances[0].clamp_min(torch.finfo(torch.float64).tiny)
    scale = torch.where(nonzero, variances, 1).rsqrt() * nonzero
    projection = (directions * scale).to(features.dtype)  # [F, dims]
    return unit_rows((features - mean.to(features.dtype)) @ projection)


@torch.no_grad()
def kmeans(
    x: Tensor, k: int, *, iterations: int = 20, seed: int = 0, epoch: int = 0, start: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Run Lloyd's k-means on x [N, d]; return labels int64 [N] and the centroids [k, d] they are nearest to.

    Starts from the centroids `start` [k, d], or from k different rows, drawn by (seed, epoch). An empty cluster takes
    part of a large one; in the result some may still be empty.
    """
    largest = _check_matrix(x, "k-means")
    k = check_value("k", k, int)
    if not 1 <= k <= len(x):
        raise AAGError(f"k-means of {len(x)} points needs between 1 and {len(x)} clusters, not {k}")
    iterations = check_value("iterations", iterations, Annotated[int, Range(at_least=0, at_most=10_000)])
    if start is not None:
        _check_matrix(start, "k-means")
        if start.shape != (k, x.shape[1]) or start.dtype != x.dtype:
            raise AAGError(f"k-means needs start centroids {x.dtype} [{k}, {x.shape[1]}], not {describe(start)}")
    if 0 < largest < SAFE_MAGNITUDES[0] or largest > SAFE_MAGNITUDES[1]:
        power = 2.0 ** max(-MAX_EXPONENT, min(MAX_EXPONENT, frexp(largest)[1]))  # exact, so results stay the same
        scaled = None if start is None else start / power
        labels, centroids = kmeans(x / power, k, iterations=iterations, seed=seed, epoch=epoch, start=scaled)
        return labels, centroids * power
    if start is None:
        draws = keys(seed, epoch, torch.arange(len(x), device=x.device), Stream.KMEANS_INIT)
        start = x[torch.sort(draws, stable=True).indices[:k]]
    centroids = start
    clusters = torch.arange(k, device=x.device)
    signs = torch.where(uniforms(keys(seed, epoch, clusters, Stream.KMEANS_SPLIT), x.shape[1]) < 0.5, 1, -1)  # [k, d]
    for _ in range(iterations):
        sums, counts = _cluster_sums(x, nearest_centroids(x, centroids), k)
        centroids = _refill_empty(sums / counts.clamp_min(1)[:, None], counts, signs)
    return nearest_centroids(x, centroids), centroids


def _check_matrix(x: Tensor, purpose: str) -> float:
    """Return the largest magnitude in x; refuse what is not a matrix of finite floats."""
    check_floats(f"the points of {purpose}", x, "[N, d]")
    if x.ndim != 2 or not x.numel() or x.dtype in (torch.float16, torch.bfloat16):
        raise AAGError(f"{purpose} takes float32 or float64 points [N, d], not {describe(x)}")
    largest = x.abs().amax().item()
    if not isfinite(largest):
        raise AAGError(f"{purpose} takes finite numbers, but these contain NaN or infinity; lower the learning rate")
    return largest


def nearest_centroids(x: Tensor, centroids: Tensor) -> Tensor:
    """Return the index of the closest centroid [k, d] for each row of x [N, d], int64 [N]."""
    # ‖x − c‖² = ‖x‖² − 2 (x·c − ½‖c‖²), and ‖x‖² is the same for all centroids.
    offsets = centroids.square().sum(dim=1) / 2
    blocks = x.split(_rows_per_block(len(centroids)))
    return torch.cat([torch.addmm(offsets, rows, centroids.T, beta=-1).argmax(dim=1) for rows in blocks])


def _cluster_sums(x: Tensor, labels: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the sum of the rows of each cluster [k, d] and their number [k].

    By products with one-hot rows, which cost no more than the distances. `index_add_` would add in the random order of
    a GPU's threads, so that a run could not be repeated.
    """
    cluster = torch.arange(k, device=x.device)
    sums, counts = x.new_zeros(k, x.shape[1]), x.new_zeros(k)
    for rows, label in zip(x.split(_rows_per_block(k)), labels.split(_rows_per_block(k)), strict=True):
        member = (label[:, None] == cluster).to(x.dtype)  # [rows, k]
        sums.addmm_(member.T, rows)
        counts += member.sum(dim=0)
    return sums, counts


def _refill_empty(centroids: Tensor, counts: Tensor, signs: Tensor) -> Tensor:
    """Give each empty cluster a copy of a large one's centroid, and move the two apart a little.

    faiss draws the large cluster with a probability proportional to its size − 1. Here the e-th of E empty clusters
    takes the one at (e + ½) / E of the cumulative sizes − 1: the same shares, without waiting for the GPU.
    """
    empty, number = counts == 0, torch.arange(len(counts), device=counts.device)
    spare = (counts - 1).clamp_min(0).double().cumsum(dim=0)
    place = (empty.cumsum(dim=0).double() - 0.5) / empty.sum().clamp_min(1) * spare[-1]
    donor = torch.searchsorted(spare, place, right=True).clamp_max(len(counts) - 1)
    donor = torch.where(empty, donor, number)

    # A donor moves opposite to the last cluster that took its centroid; the others move by their own signs.
    taker = torch.full_like(donor, -1).scatter_reduce(0, donor, torch.where(empty, number, -1), "amax")
    away = torch.where((taker >= 0)[:, None], -signs[taker], 0)
    return centroids[donor] * (1 + SPLIT_SHIFT * torch.where(empty[:, None], signs, away))


def mutual_information(a: Tensor, b: Tensor) -> Tensor:
    """Return the normalised mutual information of two labellings int64 [N], from 0 to 1.

    I(A; B) over the mean of the two entropies; 1 if both labellings are constant.
    """
    for labels in (a, b):
        if not isinstance(labels, Tensor) or labels.dtype != torch.int64 or labels.ndim != 1 or labels.is_meta:
            raise AAGError(f"mutual information compares two labellings int64 [N], not {describe(a)} and {describe(b)}")
    if a.shape != b.shape:
        raise AAGError(f"mutual information compares labels of the same images, not of {len(a)} and {len(b)}")

    def entropy(labels: Tensor) -> Tensor:
        share = labels.unique(return_counts=True)[1].double() / len(labels)
        return -(share * share.log()).sum()

    both = entropy(a) + entropy(b)
    pairs = a * (b.max() - b.min() + 1) + b
    return torch.where(both > 0, 2 * (both - entropy(pairs)) / both, 1.0)


def _rows_per_block(width: int) -> int:
    return max(1, CHUNK // width)
