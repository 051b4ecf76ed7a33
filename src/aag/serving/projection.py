"""Project embeddings to a plane by t-SNE, in plain torch and linear time, on a CPU or a GPU.

The repulsion of all pairs is a convolution on a grid (Linderman et al., Fast interpolation-based t-SNE, 2019). The
attraction has equal weights for the nearest neighbours (Böhm et al., Attraction-repulsion spectrum, 2022). Of more rows
than `LANDMARKS`, t-SNE places a sample, and each other row is placed between its nearest rows of the sample.
"""

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from aag.errors import AAGError
from aag.evaluate.knn import find_neighbours
from aag.rng import keys, permutation, uniforms
from aag.serving.neighbours import neighbour_graph

LANDMARKS = 10_000
NEIGHBOURS = 15  # of the attraction
EARLY_STEPS, LATE_STEPS = 200, 450  # steps with and without exaggeration
EXAGGERATION = 12.0
COARSE, FINE = (0.7, 256), (0.25, 512)  # grids: spacing in units of the map, largest number of nodes along a side
EXACT_ROWS = 700  # up to here all pairs cost less than the grid
FINE_STEPS = 100  # last steps, on the fine grid: the coarse one leaves the nearest points too close
LANDMARKS_PER_ROW = 5  # whose weighted mean is the position of another row
PLACEMENT_TEMPERATURE = 0.03  # of the softmax of their weights


@torch.no_grad()
def project(
    embeddings: Tensor, *, seed: int = 0, landmarks: int = LANDMARKS, graph: Tensor | None = None,
    on_progress: Callable[[float], None] = lambda done: None,
) -> Tensor:  # fmt: skip
    """Place unit rows [N, D] on a plane by t-SNE of their cosine neighbours; return float32 [N, 2] on the CPU.

    `graph`: the rows' nearest neighbours, int64 [N, k], if they are known already. `on_progress` is called with the
    fraction done. The same input and seed give the same map on one device.
    """
    if embeddings.ndim != 2 or not embeddings.is_floating_point():
        raise AAGError(f"a map takes embeddings [N, D], not {embeddings.dtype} {list(embeddings.shape)}")
    if not embeddings.isfinite().all():
        raise AAGError("embeddings that hold NaN or infinity cannot be placed; train again with a lower --lr")
    count = len(embeddings)
    if count <= landmarks:
        graph = neighbour_graph(embeddings, NEIGHBOURS, seed=seed)[0] if graph is None else graph[:, :NEIGHBOURS]
        return _tsne(embeddings, graph, seed, on_progress).cpu()
    chosen = permutation(seed, 0, count, embeddings.device)[:landmarks].sort().values
    sample = embeddings[chosen]
    plane = _tsne(sample, neighbour_graph(sample, NEIGHBOURS, seed=seed)[0], seed, on_progress)
    placed = _place(embeddings, sample, plane, seed)
    placed[chosen] = plane
    return placed.cpu()


def _place(rows: Tensor, sample: Tensor, plane: Tensor, seed: int) -> Tensor:
    """Place rows at the weighted mean of their nearest landmarks, with a jitter that keeps equal rows apart."""
    placed = torch.empty(len(rows), 2, device=rows.device)
    for chunk, cosine, index in find_neighbours(sample, rows, min(LANDMARKS_PER_ROW, len(sample))):
        weights = torch.softmax(cosine / PLACEMENT_TEMPERATURE, dim=1)[:, :, None]
        placed[chunk] = (weights * plane[index]).sum(dim=1)
    jitter = uniforms(keys(seed, 0, torch.arange(len(rows), device=rows.device)), 2) - 0.5
    return placed + jitter


def _tsne(rows: Tensor, graph: Tensor, seed: int, on_progress: Callable[[float], None]) -> Tensor:
    """Arrange rows by gradient descent with momentum and gains, as van der Maaten's implementation does."""
    count = len(rows)
    y = _initial_positions(rows, seed)
    if count < 4:  # a line or a triangle: nothing to arrange
        return y * 1e4
    row, column = _symmetric_edges(graph, count)
    edge_weight = 1.0 / len(row)
    velocity, gains = torch.zeros_like(y), torch.ones_like(y)
    rate = max(50.0, count / EXAGGERATION)
    for step in range(EARLY_STEPS + LATE_STEPS):
        early = step < EARLY_STEPS
        grid = COARSE if step < EARLY_STEPS + LATE_STEPS - FINE_STEPS else FINE
        repulsion = _exact_repulsion(y) if count <= EXACT_ROWS else _repulsion(y, *grid)
        gradient = (EXAGGERATION if early else 1.0) * edge_weight * _attraction(y, row, column) - repulsion
        gains = torch.where((gradient > 0) == (velocity > 0), gains * 0.8, gains + 0.2).clamp_min(0.01)
        velocity = (0.5 if early else 0.8) * velocity - 4 * rate * gains * gradient
        y = y + velocity
        y = y - y.mean(dim=0)
        if step % 10 == 9:
            on_progress((step + 1) / (EARLY_STEPS + LATE_STEPS))
    return y


def _initial_positions(rows: Tensor, seed: int) -> Tensor:
    """Return the two main directions [N, 2], scaled to 1e-4, with a little noise for rows that are equal."""
    centred = rows.double() - rows.double().mean(dim=0)  # in fp32, eigh can fail on equal rows
    _, directions = torch.linalg.eigh(centred.T @ centred)
    plane = torch.zeros(len(rows), 2, device=rows.device)
    main = (centred @ directions[:, -2:].flip(1)).float()
    plane[:, : main.shape[1]] = main
    plane /= plane[:, 0].std(correction=0).clamp_min(1e-12)
    noise = uniforms(keys(seed, 0, torch.arange(len(rows), device=rows.device)), 2) - 0.5
    return 1e-4 * (plane + 0.1 * noise)


def _symmetric_edges(graph: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return rows and columns of the graph's edges in both directions, sorted by row; mutual neighbours twice."""
    row = torch.arange(count, device=graph.device).repeat_interleave(graph.shape[1])
    column = graph.flatten()
    row, column = torch.cat([row, column]), torch.cat([column, row])
    order = torch.sort(row, stable=True).indices
    return row[order], column[order]


def _attraction(y: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Return Σ_j (y_i − y_j) / (1 + |y_i − y_j|²) over the edges of each row i, [N, 2]."""
    difference = y[row] - y[column]
    force = difference / (1 + difference.square().sum(dim=1, keepdim=True))
    return torch.zeros_like(y).index_add_(0, row, force)


def _exact_repulsion(y: Tensor) -> Tensor:
    """Return Σ_j (y_i − y_j) / (1 + |y_i − y_j|²)² / Z over all pairs, with Z = Σ 1 / (1 + |y_i − y_j|²), [N, 2]."""
    difference = y[:, None] - y[None]
    kernel = 1 / (1 + difference.square().sum(dim=2))
    total = (kernel.sum() - len(y)).clamp_min(1e-12)  # without the pairs of a point with itself
    return (difference * kernel.square()[:, :, None]).sum(dim=1) / total


def _repulsion(y: Tensor, spacing: float, largest: int) -> Tensor:
    """Return nearly the same as `_exact_repulsion`, in linear time.

    Points are spread over the nodes of a grid; the sums over pairs of nodes are convolutions, computed by FFT.
    """
    low = y.amin(dim=0)
    side, spacing = _grid(float((y.amax(dim=0) - low).max()), spacing, largest)
    position = (y - low) / spacing  # in nodes
    corner = position.long().clamp_max(side - 2)
    after = position - corner  # [N, 2] the share of the nodes after the point, along each axis
    share = torch.stack([1 - after, after])  # [2, N, 2]
    weight = (share[:, None, :, 0] * share[None, :, :, 1]).flatten(0, 1)  # [4, N]
    first = corner[:, 0] * side + corner[:, 1]
    node = torch.stack([first, first + 1, first + side, first + side + 1])  # [4, N]
    mass = torch.zeros(side * side, device=y.device).index_add_(0, node.flatten(), weight.flatten()).view(side, side)
    size = (2 * side, 2 * side)  # padded with zeros, so that the convolution does not wrap around
    transformed = torch.fft.rfft2(mass, s=size) * _kernel_spectra(side, spacing, y.device)
    fields = torch.fft.irfft2(transformed, s=size)[:, :side, :side].flatten(1)  # [3, side²]
    at_points = (fields[:, node] * weight).sum(dim=1)  # [3, N]
    total = (at_points[0].sum() - len(y)).clamp_min(1e-12)  # without the pairs of a point with itself
    return (at_points[1:] / total).T


def _grid(extent: float, spacing: float, largest: int) -> tuple[int, float]:
    """Return the nodes along a side and their spacing. There are few different ones, because spectra are kept."""
    while extent / spacing > largest - 2:
        spacing *= 1.25
    return max(32, -(-int(extent / spacing + 2) // 32) * 32), spacing


@lru_cache(maxsize=4)
def _kernel_spectra(side: int, spacing: float, device: torch.device) -> Tensor:
    """Return the transforms of 1 / (1 + d²), dx / (1 + d²)² and dy / (1 + d²)² on a grid, [3, 2·side, side + 1]."""
    offset = torch.arange(2 * side, device=device)
    offset = torch.where(offset < side, offset, offset - 2 * side) * spacing
    kernel = 1 / (1 + offset[:, None] ** 2 + offset[None, :] ** 2)
    square = kernel * kernel
    return torch.fft.rfft2(torch.stack([kernel, offset[:, None] * square, offset[None, :] * square]))
