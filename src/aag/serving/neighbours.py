"""Nearest neighbours of every row: exact for small sets, by k-means cells for large ones, in linear memory."""

import torch
from torch import Tensor

from aag.cluster import kmeans, nearest_centroids
from aag.evaluate.knn import find_neighbours

EXACT_ROWS = 30_000  # up to here the N² similarities take seconds
CELL_ROWS = 500  # rows per cell, on average
CELLS_PROBED = 8
REFINEMENTS = 1
CHUNK = 256  # rows whose candidates are gathered at once
SAMPLES_PER_CELL = 50  # rows that k-means sees


def neighbour_graph(embeddings: Tensor, k: int = 15, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return the k nearest other rows of each unit row [N, D] by cosine: index int64 [N, k] and cosine [N, k], sorted.

    Above 30,000 rows the search is approximate: rows are divided into k-means cells, and each row is compared with
    those of the nearest cells. Time grows with N, not N².
    """
    k = max(1, min(k, len(embeddings) - 1))
    if len(embeddings) <= EXACT_ROWS:
        chunks = [
            _sort_others(cosine, index, torch.arange(rows.start, rows.stop, device=index.device), k)
            for rows, cosine, index in find_neighbours(embeddings, embeddings, min(k + 1, len(embeddings)))
        ]
        return torch.cat([index for index, _ in chunks]), torch.cat([cosine for _, cosine in chunks])
    return _search_cells(embeddings, k, seed)


def _sort_others(cosine: Tensor, index: Tensor, own: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Sort neighbours, nearest first, without the row itself; `own` [m] are the rows' numbers."""
    cosine = cosine.masked_fill(index == own[:, None], -2.0)  # less than any cosine
    cosine, order = cosine.sort(dim=1, descending=True, stable=True)
    return index.gather(1, order)[:, :k], cosine[:, :k]


def _search_cells(rows: Tensor, k: int, seed: int) -> tuple[Tensor, Tensor]:
    count = len(rows) // CELL_ROWS
    step = max(1, len(rows) // (count * SAMPLES_PER_CELL))
    _, centroids = kmeans(rows[::step], count, iterations=8, seed=seed)
    cell_of = nearest_centroids(rows, centroids)
    order = torch.sort(cell_of, stable=True).indices
    members = order.split(torch.bincount(cell_of, minlength=count).tolist())
    # The cells around a centroid. Squared distance without the centroid's own norm, which is the same for its row.
    near = (2 * centroids @ centroids.T - centroids.square().sum(dim=1)).topk(min(CELLS_PROBED, count)).indices
    index = torch.empty(len(rows), k, dtype=torch.int64, device=rows.device)
    cosines = torch.empty(len(rows), k, device=rows.device)
    for cell, own in enumerate(members):
        if not len(own):
            continue
        candidates = torch.cat([members[other] for other in near[cell].tolist()])
        if len(candidates) <= k:  # far from everything: compare with all
            candidates = torch.arange(len(rows), device=rows.device)
        cosine, place = (rows[own] @ rows[candidates].T).topk(k + 1, dim=1)
        index[own], cosines[own] = _sort_others(cosine, candidates[place], own, k)
    for _ in range(REFINEMENTS):
        index, cosines = _refine(rows, index)
    return index, cosines


def _refine(rows: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nearest among the neighbours and their neighbours: who is near is often near in the next cell, too."""
    k = index.shape[1]
    found, cosines = torch.empty_like(index), torch.empty(index.shape, device=rows.device)
    for start in range(0, len(rows), CHUNK):
        chunk = slice(start, start + CHUNK)
        own = torch.arange(start, min(start + CHUNK, len(rows)), device=rows.device)
        candidates = torch.cat([index[chunk], index[index[chunk]].flatten(1)], dim=1).sort(dim=1).values  # [m, k + k²]
        cosine = torch.bmm(rows[candidates], rows[chunk, :, None])[:, :, 0]
        cosine[:, 1:][candidates[:, 1:] == candidates[:, :-1]] = -2.0  # each once
        found[chunk], cosines[chunk] = _sort_others(cosine, candidates, own, k)
    return found, cosines
