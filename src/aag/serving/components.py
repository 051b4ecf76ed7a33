"""Connect rows with a cosine of at least a threshold, exactly and without an N × N matrix.

A cheap upper bound skips most comparisons. Rotate the unit rows x to their principal axes. With Px the first 31
coordinates and Rx the others, z = (Px, ‖Rx‖) is a unit row, too. As ‖z − z'‖ ≤ ‖x − x'‖, z·z' ≥ x·x'. Only rows and
columns of a block in which z·z' reaches the threshold are compared in full.
"""

import numpy as np
import torch
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from torch import Tensor

BOUND_DIMS = 32  # of z
ROUNDING = 1e-5  # of products of float32 unit rows
CPU_BLOCK, GPU_BLOCK = (512, 2048), (8192, 32768)  # rows and columns of a block; a CPU's stays in its cache


class Components:
    """Connected components that grow by batches of edges (union-find on arrays)."""

    def __init__(self, count: int) -> None:
        self.parent = np.arange(count)

    def roots(self, index: np.ndarray) -> np.ndarray:
        """Return the representative of each index [n]."""
        root = self.parent[index]
        while True:
            above = self.parent[root]
            if (above == root).all():
                self.parent[index] = root
                return root
            root = above

    def connect(self, a: np.ndarray, b: np.ndarray) -> None:
        """Join the components of each pair of indices a[i], b[i]."""
        roots, flat = np.unique(np.concatenate([self.roots(a), self.roots(b)]), return_inverse=True)
        left, right = flat[: len(a)], flat[len(a) :]
        graph = coo_matrix((np.ones(len(a), np.int8), (left, right)), shape=(len(roots), len(roots)))
        _, component = connected_components(graph, directed=False)
        first = np.full(component.max() + 1, len(self.parent))
        np.minimum.at(first, component, roots)
        self.parent[roots] = first[component]

    def is_connected(self, *slices: slice) -> bool:
        """Return whether all rows of these slices are in one component."""
        parents = np.concatenate([self.parent[each] for each in slices])
        if (parents != parents[0]).any():  # two lookups settle nearly all
            parents = self.parent[parents]
        return bool((parents == parents[0]).all())

    def labels(self) -> np.ndarray:
        return self.roots(np.arange(len(self.parent)))


@torch.no_grad()
def connect_similar(embeddings: Tensor, threshold: float) -> np.ndarray:
    """Return the connected component of each unit row [N, D], as the index of the component's first row.

    Two rows are connected by a cosine of at least `threshold`.
    """
    count, device = len(embeddings), embeddings.device
    threshold = min(threshold, 1 - ROUNDING)  # rounding keeps the cosine of identical rows below 1
    bounds = bounding_rows(embeddings)
    found = Components(count)
    block_rows, block_columns = CPU_BLOCK if device.type == "cpu" else GPU_BLOCK
    buffer = torch.empty(min(block_rows, count) * min(block_columns, count), device=device)
    for start in range(0, count, block_rows):
        rows = slice(start, min(start + block_rows, count))
        for first in range(start, count, block_columns):
            columns = slice(first, min(first + block_columns, count))
            if found.is_connected(rows, columns):  # for example a hundred thousand copies of one image
                continue
            shape = (rows.stop - rows.start, columns.stop - columns.start)
            bound = buffer[: shape[0] * shape[1]].view(shape)
            torch.mm(bounds[rows], bounds[columns].T, out=bound)
            if first == start:
                bound.fill_diagonal_(-2)  # a row is not a duplicate of itself
            if bound.amax() >= threshold - ROUNDING:
                _connect_block(embeddings, bound, rows.start, columns.start, threshold, found)
    return found.labels()


def bounding_rows(embeddings: Tensor) -> Tensor:
    """Return unit rows [N, ≤ 32] whose cosines are upper bounds of those of `embeddings` [N, D]."""
    if embeddings.shape[1] <= BOUND_DIMS:
        return embeddings
    sample = embeddings[:: max(1, len(embeddings) // 20_000)].double()
    sample = sample - sample.mean(dim=0)
    directions = torch.linalg.eigh(sample.T @ sample)[1].flip(1)[:, : BOUND_DIMS - 1]
    out = embeddings.new_empty(len(embeddings), BOUND_DIMS)
    torch.mm(embeddings, directions.to(embeddings.dtype), out=out[:, :-1])
    out[:, -1] = (embeddings.square().sum(dim=1) - out[:, :-1].square().sum(dim=1)).clamp_min_(0).sqrt_()
    return out


def _connect_block(
    embeddings: Tensor, bound: Tensor, row_start: int, column_start: int, threshold: float, found: Components
) -> None:
    """Compare in full where the bound allows it, and connect. Each pass adds at most one edge per row and column."""
    limit = threshold - ROUNDING
    rows = (bound.amax(dim=1) >= limit).nonzero().flatten()
    columns = (bound[rows].amax(dim=0) >= limit).nonzero().flatten()
    rows, columns = rows + row_start, columns + column_start
    similar = embeddings[rows] @ embeddings[columns].T >= threshold
    similar &= rows[:, None] != columns
    row_index, column_index = rows.cpu().numpy(), columns.cpu().numpy()
    while True:
        # Pairs that are connected already need no edge: a thousand copies of one image take a few passes.
        a, b = (torch.from_numpy(found.roots(index)).to(bound.device) for index in (row_index, column_index))
        similar &= a[:, None] != b
        to_row, to_column = similar.any(dim=0).nonzero().flatten(), similar.any(dim=1).nonzero().flatten()
        if not len(to_column):
            return
        partner_of_row = similar[to_column].int().argmax(dim=1)
        partner_of_column = similar[:, to_row].int().argmax(dim=0)
        pairs = torch.cat([
            torch.stack([rows[to_column], columns[partner_of_row]]),
            torch.stack([rows[partner_of_column], columns[to_row]]),
        ], dim=1)  # fmt: skip
        found.connect(*pairs.cpu().numpy())
