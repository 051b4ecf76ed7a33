"""Group images by k-means on their embeddings."""

from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from aag.cluster import kmeans, mutual_information
from aag.errors import AAGError
from aag.files import write_csv
from aag.serving.search import picture_loader
from aag.serving.sheets import Section, Tile, make_sheet
from aag.serving.table import EmbeddingTable
from aag.text import pluralize

COUNTS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)  # numbers of clusters that are tried
SAMPLE, SILHOUETTE_SAMPLE = 10_000, 2000  # images used to choose the number of clusters
CLEAR_SILHOUETTE = 0.25  # below it, clusters overlap
TOLERANCE = 0.9  # of the best silhouette; a count that reaches it is good enough
CANDIDATES = 6  # drawn for each initial centre
RESTARTS = 3  # of k-means; the one with the lowest inertia is used


@dataclass(frozen=True, eq=False)
class Clustering:
    """A grouping of N images into k clusters, the largest first."""

    labels: Tensor  # int64 [N], 0 … k − 1
    distances: Tensor  # float32 [N], Euclidean, of each image to its centre
    silhouettes: dict[int, float]  # by number of clusters, without empty ones; empty where that was given
    nmi: float | None  # normalised mutual information with known labels, 0 to 1

    @property
    def count(self) -> int:
        return int(self.labels.max()) + 1

    def members(self, cluster: int) -> list[int]:
        """Return the rows of a cluster, the most central first."""
        rows = (self.labels == cluster).nonzero().flatten()
        return rows[self.distances[rows].argsort(stable=True)].tolist()


def find_clusters(table: EmbeddingTable, count: int | None = None, *, seed: int = 0) -> Clustering:
    """Cluster embeddings by k-means. Without a count, `choose_count` chooses it. Empty clusters are dropped."""
    x = table.embeddings
    if count is not None and not 1 <= count <= len(x):
        raise AAGError(f"--clusters {count} does not fit {pluralize(len(x), 'image')}; use 1 to {len(x):,}")
    silhouettes = {} if count is not None or len(x) < 4 else _silhouettes(x, seed)
    if count is None:
        count = choose_count(silhouettes)
    labels, centres = _best_kmeans(x, count, seed)
    sizes = labels.bincount(minlength=count)
    order = sizes.argsort(descending=True, stable=True)
    order = order[sizes[order] > 0]
    number = torch.empty(count, dtype=torch.int64)
    number[order] = torch.arange(len(order))
    distances = (x - centres[labels]).norm(dim=1)
    return Clustering(number[labels], distances, silhouettes, _nmi(table, labels))


def choose_count(silhouettes: dict[int, float]) -> int:
    """Return the count with the best mean silhouette; if that is below 0.25, the largest count within 10 % of it.

    Below 0.25 the clusters overlap, as those of photographs do. Then the best is often 2, by a small margin.
    """
    best = max(silhouettes.values(), default=0.0)
    required = best if best >= CLEAR_SILHOUETTE else TOLERANCE * best
    return max((count for count, value in silhouettes.items() if value >= required), default=1)


def write_clusters(path: Path, table: EmbeddingTable, clustering: Clustering) -> None:
    """Write path, cluster (from 1) and distance to its centre as CSV, atomically."""
    numbers = (clustering.labels + 1).tolist()
    distances = [f"{distance:.6f}" for distance in clustering.distances.tolist()]
    write_csv(path, ["path", "cluster", "distance"], zip(table.names, numbers, distances, strict=True))


def clusters_sheet(
    table: EmbeddingTable,
    clustering: Clustering,
    *,
    examples: int = 10,
    data_root: str | Path | None = None,
) -> Image.Image:
    """Return a contact sheet with the most central images of each cluster."""
    load = picture_loader(table, 96, data_root=data_root)
    sections = []
    for cluster in range(clustering.count):
        members = clustering.members(cluster)
        tiles = [Tile(load(row), (table.names[row],)) for row in members[:examples]]
        sections.append(Section(tiles, f"Cluster {cluster + 1}", pluralize(len(members), "image")))
    return make_sheet(sections, title="Most central images of each cluster", columns=10, size=96)


def _best_kmeans(x: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return labels and centres of the restart with the lowest inertia."""
    best: tuple[float, Tensor, Tensor] | None = None
    for restart in range(RESTARTS):
        start = _initial_centres(x, count, (RESTARTS * seed + restart) % 2**63)
        labels, centres = kmeans(x, count, seed=seed, epoch=restart, start=start)
        inertia = (x - centres[labels]).square().sum().item()
        if best is None or inertia < best[0]:
            best = inertia, labels, centres
    assert best is not None
    return best[1], best[2]


def _initial_centres(x: Tensor, count: int, seed: int) -> Tensor:
    """Return initial centres [count, D] by greedy k-means++ (Arthur and Vassilvitskii, 2007).

    Candidates are drawn with a probability proportional to their squared distance from the nearest centre so far. The
    candidate with the lowest inertia becomes the next centre. Large sets are sampled.
    """
    x = x[torch.linspace(0, len(x) - 1, min(len(x), max(SAMPLE, 10 * count))).long()]
    generator = torch.Generator().manual_seed(seed)
    rows = [int(torch.randint(len(x), (1,), generator=generator))]
    distance = _squared_distances(x, x[rows])[:, 0]
    for _ in range(count - 1):
        total = distance.double().cumsum(dim=0)
        places = torch.rand(CANDIDATES, dtype=torch.float64, generator=generator) * total[-1]
        candidates = torch.searchsorted(total, places, right=True).clamp_max(len(x) - 1)
        closer = distance[:, None].minimum(_squared_distances(x, x[candidates]))  # [N, candidates]
        best = int(closer.sum(dim=0).argmin())
        rows.append(int(candidates[best]))
        distance = closer[:, best]
    return x[rows]


def _squared_distances(x: Tensor, centres: Tensor) -> Tensor:
    """Return ‖x − c‖² [N, k] of unit rows."""
    return (2 - 2 * x @ centres.T).clamp_min_(0)


def _silhouettes(x: Tensor, seed: int) -> dict[int, float]:
    from sklearn.metrics import silhouette_score

    sample = x[torch.linspace(0, len(x) - 1, min(len(x), SAMPLE)).long()]
    found = {}
    for count in (count for count in COUNTS if 2 * count <= len(sample)):
        labels = _best_kmeans(sample, count, seed)[0].numpy()
        scored = slice(None, None, -(-len(sample) // SILHOUETTE_SAMPLE))  # every n-th row
        if len(set(labels[scored].tolist())) > 1:
            found[len(set(labels.tolist()))] = float(silhouette_score(sample[scored].numpy(), labels[scored]))
    return found


def _nmi(table: EmbeddingTable, labels: Tensor) -> float | None:
    known = table.columns.get("label", ())
    rows = [i for i, name in enumerate(known) if name not in (None, "")]  # a label may be the number 0
    if not rows:
        return None
    numbers = {name: i for i, name in enumerate(dict.fromkeys(known))}
    return mutual_information(labels[rows], torch.tensor([numbers[known[i]] for i in rows])).item()
