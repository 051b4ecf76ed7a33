"""Nearest neighbours of every row: exact for small sets, by k-means cells for large ones, in linear memory."""

import torch
from torch import Tensor

from aag.cluster import kmeans, nearest_centroids
from aag.evaluate.knn import find_neighbours

EXACT_ROWS = 30_000  # up to here the N² similarities take seconds
CELL_ROWS = 500  # rows per cell, on average
CELLS_PROBED = 16  # by each row
BLOCK = 50_000  # rows whose candidates are in memory at once
MAX_ELEMENTS = 2**24  # of a matrix of similarities: 64 MB of float32; equal rows make a large cell
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


def _sort_others(cosine: Tensor, index: Tensor, rows: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the neighbours of `rows` [m], an index each, nearest first and without the row itself."""
    cosine = cosine.masked_fill(index == rows[:, None], -2.0)  # less than any cosine
    cosine, order = cosine.sort(dim=1, descending=True, stable=True)
    return index.gather(1, order)[:, :k], cosine[:, :k]


def _search_cells(rows: Tensor, k: int, seed: int) -> tuple[Tensor, Tensor]:
    """Compare each row with the rows of its nearest cells. Looping over cells gives a few large matrix products."""
    count = max(1, len(rows) // CELL_ROWS)
    step = max(1, len(rows) // (count * SAMPLES_PER_CELL))
    _, centroids = kmeans(rows[::step], count, iterations=8, seed=seed)
    cell_of = nearest_centroids(rows, centroids)
    order = torch.sort(cell_of, stable=True).indices
    members = order.split(torch.bincount(cell_of, minlength=count).tolist())
    index = torch.empty(len(rows), k, dtype=torch.int64, device=rows.device)
    cosines = torch.empty(len(rows), k, device=rows.device)
    offsets, probed = centroids.square().sum(dim=1) / 2, min(CELLS_PROBED, count)
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK]
        near = torch.addmm(offsets, block, centroids.T, beta=-1).topk(probed, dim=1).indices  # [m, p]
        best_cosines = torch.full((len(block), probed, k + 1), -2.0, device=rows.device)
        best_rows = torch.zeros(len(block), probed, k + 1, dtype=torch.int64, device=rows.device)
        pairs = torch.sort(near.flatten(), stable=True).indices  # (row, probe) by cell
        sizes = torch.bincount(near.flatten(), minlength=count).tolist()
        for cell, cell_pairs in zip(members, pairs.split(sizes), strict=True):
            if not (len(cell) and len(cell_pairs)):
                continue
            for chunk in cell_pairs.split(max(1, MAX_ELEMENTS // len(cell))):
                row, probe = chunk // probed, chunk % probed
                cosine, position = (block[row] @ rows[cell].T).topk(min(k + 1, len(cell)), dim=1)
                best_cosines[row, probe, : cosine.shape[1]] = cosine
                best_rows[row, probe, : cosine.shape[1]] = cell[position]
        number = torch.arange(start, start + len(block), device=rows.device)
        part = slice(start, start + len(block))
        index[part], cosines[part] = _sort_others(best_cosines.flatten(1), best_rows.flatten(1), number, k)
    return index, cosines
