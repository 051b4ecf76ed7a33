"""aag embed"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from aag.cli.output import Printer, embedding_progress
from aag.cli.parsing import parse
from aag.errors import AAGError
from aag.signals import hold_stops
from aag.text import pluralize


@dataclass(frozen=True)
class Embed:
    """Embed images with a trained encoder: one row per image in a .parquet, .npz or .csv.

    The same command resumes, and leaves a complete file as it is, unless it is a .csv.
    """

    model: Annotated[Path, tyro.conf.arg(metavar="MODEL")]
    """Run folder or .safetensors file."""
    images: Annotated[tuple[str, ...], tyro.conf.arg(metavar="IMAGES ...")]
    """Folder, image files, or any other --data of aag train: shards, a URL, an .npz, a known data set."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("embeddings.parquet")
    """File to write: .parquet, .npz or .csv."""
    features: bool = False
    """Add the backbone's features, for linear classifiers."""
    thumbnails: bool = False
    """Add JPEG thumbnails, for aag explore (not in a .csv)."""
    thumbnail_size: int = 96
    """Side of a thumbnail in pixels."""
    shard: str = ""
    """NUMBER/COUNT, such as 3/8: embed only that part of the sorted files, to OUT-3-of-8.parquet."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Precision of the network. bf16 needs a GPU; it is faster and less precise."""
    decode: Literal["cpu", "gpu"] = "cpu"
    """gpu: decode JPEGs with nvJPEG. Pixels and embeddings differ slightly from the CPU's."""
    device: str = "auto"
    """cpu, cuda, cuda:N, or auto: the GPU if there is one, else the CPU."""
    data_root: Path | None = None
    """Where data sets are stored. Default: $AAG_DATA, else the cache folder."""


def run(arguments: list[str]) -> int:
    options = parse(Embed, "embed", arguments)
    with hold_stops():
        from aag.serving.embed_file import embed_to_file, parse_shard, shard_indices
        from aag.serving.embedder import Embedder
        from aag.serving.sources import open_source
        from aag.serving.table import check_format, shard_file
    check_format(options.out)
    if not 16 <= options.thumbnail_size <= 1024:
        raise AAGError(f"--thumbnail-size {options.thumbnail_size} is out of range; use 16 to 1024 pixels")
    if options.thumbnails and options.out.suffix.lower() == ".csv":
        raise AAGError("a .csv cannot have thumbnails; write a .parquet, or leave out --thumbnails")
    out, shard = options.out, parse_shard(options.shard) if options.shard else None
    embedder = Embedder(options.model, device=options.device, precision=options.precision, decode=options.decode)
    source = open_source(options.images, embedder.size, data_root=options.data_root)
    indices = range(len(source))
    if shard:
        out, indices = shard_file(out, *shard), shard_indices(len(source), *shard)
        if not indices:
            raise AAGError(f"--shard {options.shard} is empty: there are only {len(source)} images; use fewer shards")
    say = Printer()
    started = time.perf_counter()
    with embedding_progress() as progress:
        done = embed_to_file(
            embedder,
            source,
            out,
            features=options.features,
            thumbnails=options.thumbnail_size if options.thumbnails else 0,
            indices=indices,
            on_progress=progress,
        )
    seconds = time.perf_counter() - started
    kept = len(indices) - done.new
    if not done.new:
        say(f"{done.file} is complete: {done.count:,} images")
    else:
        resumed = f" ({kept:,} were done before)" if kept else ""
        say(f"{done.count:,} images × {embedder.encoder.embedding_dim} → {done.file}{resumed}")
        say(f"{done.new / seconds:,.0f} images/s, {embedder.spec.network} on {embedder.device}, {embedder.precision}")
    if done.skipped:
        say(f"{pluralize(len(done.skipped), 'file')} skipped, listed in {done.skipped_file}")
    return 0
