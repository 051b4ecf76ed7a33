"""aag cluster"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from aag.cli.output import Printer, embedding_progress, print_rows
from aag.cli.parsing import parse
from aag.settings import Range, Seed, Settings
from aag.signals import hold_stops

if TYPE_CHECKING:
    from aag.serving.clusters import Clustering
    from aag.serving.table import EmbeddingTable


@dataclass(frozen=True)
class Cluster(Settings):
    """Group similar images by k-means on their embeddings."""

    model: Annotated[Path, tyro.conf.arg(metavar="MODEL")]
    """Run folder or .safetensors file."""
    images: Annotated[str, tyro.conf.arg(metavar="IMAGES")]
    """Folder of images, or any other --data of aag train, or an embeddings file of aag embed."""
    clusters: int | None = None
    """Number of clusters. Default: chosen from 2 to 64 by the mean silhouette."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("clusters.csv")
    """CSV to write: path, cluster, distance to the cluster's centre."""
    sheet: str = "clusters.png"
    """Contact sheet to write: the most central images of each cluster. none: no sheet."""
    examples: Annotated[int, Range(at_least=1)] = 10
    """Images per cluster on the contact sheet."""
    seed: Seed = 0
    """Seed of k-means."""
    json: bool = False
    """Print JSON."""
    device: str = "auto"
    """cpu, cuda, cuda:N, or auto: the GPU if there is one, else the CPU."""
    data_root: Path | None = None
    """Where data sets and embeddings are stored. Default: $AAG_DATA, else the cache folder."""


def run(arguments: list[str]) -> int:
    options = parse(Cluster, "cluster", arguments)
    with hold_stops():
        from aag.serving.clusters import clusters_sheet, find_clusters, write_clusters
        from aag.serving.embed import Embedder, load_or_embed
        from aag.serving.sheets import check_sheet_path, write_sheet
    sheet = None if options.sheet == "none" else check_sheet_path(Path(options.sheet))
    embedder = Embedder(options.model, device=options.device)
    with embedding_progress() as progress:
        table = load_or_embed(embedder, options.images, data_root=options.data_root, on_progress=progress)
    found = find_clusters(table, options.clusters, seed=options.seed)
    write_clusters(options.out, table, found)
    if sheet:
        write_sheet(sheet, clusters_sheet(table, found, examples=options.examples, data_root=options.data_root))
    print_rows([_row(table, found, cluster) for cluster in range(found.count)], as_json=options.json)
    if options.json:
        return 0
    say = Printer()
    if found.silhouettes:
        best, value = max(found.silhouettes.values()), found.silhouettes.get(found.count, 0.0)
        rule = "the best of all tried" if value == best else f"the most clusters within 10 % of the best, {best:.3f}"
        say(f"{found.count} clusters were chosen: silhouette {value:.3f}, {rule}; --clusters N sets the number")
    if found.nmi is not None:
        say(f"NMI with the known labels {found.nmi:.3f} (0: unrelated, 1: the same groups)")
    say(f"clusters of all images: {options.out}" + (f", contact sheet: {sheet}" if sheet else ""))
    return 0


def _row(table: "EmbeddingTable", found: "Clustering", cluster: int) -> dict[str, Any]:
    members = found.members(cluster)
    row: dict[str, Any] = {"cluster": cluster + 1, "images": len(members)}
    row["mean distance"] = round(found.distances[members].mean().item(), 4)
    if "label" in table.columns:
        label, count = Counter(table.columns["label"][i] for i in members).most_common(1)[0]
        row["most common label"] = f"{'none' if label in (None, '') else label} ({count / len(members):.0%})"
    return row | {"most central": table.names[members[0]]}
