"""Clustering on the device: PCA-whitening and k-means, as DeepCluster has them from faiss."""

import torch
import torch.nn.functional as F
from torch import Tensor

from aag.errors import AAGError
from aag.rng import Stream, keys, uniforms

CHUNK = 2**24  # numbers in a block of distances: 64 MB of float32
FLOOR = 1e-12  # of the largest variance; what lies below is the rounding of float32 features
NUDGE = 1 / 1024  # how far apart the halves of a split centroid are put, as a share of its coordinates


def whiten(features: Tensor, dims: int = 256) -> Tensor:
    """Features [N, F] → [N, min(dims, F, N − 1)]: uncorrelated, of one variance, then rows of unit length.

    The covariance and its eigenvectors are computed in float64: the small eigenvalues, which are divided by, are
    differences of large numbers. Directions without variance (dead or doubled features) become zeros, not noise.
    """
    n, size = features.shape
    if n < 2:
        raise AAGError("whitening needs at least two rows: one alone has no variance")
    dims = min(dims, size, n - 1)
    mean = features.mean(dim=0, dtype=torch.float64)
    covariance = torch.zeros(size, size, dtype=torch.float64, device=features.device)
    for rows in features.split(_rows(size)):
        centred = rows - mean  # in float64, which takes twice the memory: so by blocks
        covariance += centred.T @ centred / n
    variances, directions = torch.linalg.eigh(covariance)  # ascending
    variances, directions = variances[-dims:].flip(0), directions[:, -dims:].flip(1)
    kept = variances > FLOOR * variances[0].clamp_min(torch.finfo(torch.float64).tiny)
    scale = torch.where(kept, variances, 1).rsqrt() * kept
    projection = (directions * scale).to(features.dtype)  # [F, dims]
    return F.normalize((features - mean.to(features.dtype)) @ projection, dim=1)


@torch.no_grad()
def kmeans(x: Tensor, k: int, *, iterations: int = 20, seed: int = 0, epoch: int = 0) -> tuple[Tensor, Tensor]:
    """Lloyd's k-means of x [N, d] → labels int64 [N] and the centroids [k, d] that they are nearest to.

    Starts from k different rows, drawn by (seed, epoch). A cluster that runs empty gets a share of a large one; in the
    result some may be empty still.
    """
    if not 1 <= k <= len(x):
        raise AAGError(f"k-means of {len(x)} points needs between 1 and {len(x)} clusters, not {k}")
    draws = keys(seed, epoch, torch.arange(len(x), device=x.device), Stream.KMEANS_INIT)
    centroids = x[torch.sort(draws, stable=True).indices[:k]]
    clusters = torch.arange(k, device=x.device)
    signs = torch.where(uniforms(keys(seed, epoch, clusters, Stream.KMEANS_SPLIT), x.shape[1]) < 0.5, 1, -1)  # [k, d]
    for _ in range(iterations):
        sums, counts = _sums(x, nearest(x, centroids), k)
        centroids = _split(sums / counts.clamp_min(1)[:, None], counts, signs)
    return nearest(x, centroids), centroids


def nearest(x: Tensor, centroids: Tensor) -> Tensor:
    """The centroid [k, d] that each row of x [N, d] is closest to, int64 [N]."""
    # ‖x − c‖² = ‖x‖² − 2 (x·c − ½‖c‖²), and ‖x‖² is the same for all centroids.
    offsets = centroids.square().sum(dim=1) / 2
    blocks = x.split(_rows(len(centroids)))
    return torch.cat([torch.addmm(offsets, rows, centroids.T, beta=-1).argmax(dim=1) for rows in blocks])


def _sums(x: Tensor, labels: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Sums [k, d] of the rows of each cluster, and how many those are, [k].

    By products with one-hot rows, as dear as the distances and no dearer: `index_add_` adds in whatever order a GPU's
    threads come, so that a run could not be repeated.
    """
    cluster = torch.arange(k, device=x.device)
    sums, counts = x.new_zeros(k, x.shape[1]), x.new_zeros(k)
    for rows, label in zip(x.split(_rows(k)), labels.split(_rows(k)), strict=True):
        member = (label[:, None] == cluster).to(x.dtype)  # [rows, k]
        sums.addmm_(member.T, rows)
        counts += member.sum(dim=0)
    return sums, counts


def _split(centroids: Tensor, counts: Tensor, signs: Tensor) -> Tensor:
    """Empty clusters take over a copy of a large one's centroid; copy and original are moved apart a little.

    faiss draws the large cluster with a chance that grows with its size − 1. Here the e-th of E empty clusters takes
    the one at (e + ½) / E of the cumulated sizes − 1: the same shares, without a wait for the GPU.
    """
    empty, number = counts == 0, torch.arange(len(counts), device=counts.device)
    spare = (counts - 1).clamp_min(0).double().cumsum(dim=0)
    place = (empty.cumsum(dim=0).double() - 0.5) / empty.sum().clamp_min(1) * spare[-1]
    donor = torch.searchsorted(spare, place, right=True).clamp_max(len(counts) - 1)
    donor = torch.where(empty, donor, number)

    # A donor moves opposite to the last of its takers; any others go ways of their own.
    taker = torch.full_like(donor, -1).scatter_reduce(0, donor, torch.where(empty, number, -1), "amax")
    away = torch.where((taker >= 0)[:, None], -signs[taker], 0)
    return centroids[donor] * (1 + NUDGE * torch.where(empty[:, None], signs, away))


def mutual_information(a: Tensor, b: Tensor) -> Tensor:
    """Normalised mutual information of two labellings int64 [N], from 0 up: 1 where each tells the other.

    I(A; B) over the mean of the two entropies; two labellings that are both constant agree, and give 1.
    """

    def entropy(labels: Tensor) -> Tensor:
        share = labels.unique(return_counts=True)[1].double() / len(labels)
        return -(share * share.log()).sum()

    both = entropy(a) + entropy(b)
    pairs = a * (b.max() + 1) + b
    return torch.where(both > 0, 2 * (both - entropy(pairs)) / both, 1.0)


def _rows(width: int) -> int:
    return max(1, CHUNK // width)
