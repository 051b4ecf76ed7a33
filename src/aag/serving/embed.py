"""Embed images in memory, or reuse cached embeddings."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from aag.data.datasets import data_root as find_data_root
from aag.data.store import ProgressCallback
from aag.errors import AAGError
from aag.files import explain_write_errors
from aag.serving.embed_file import embed_to_file, table_key
from aag.serving.embedder import Embedder, Model
from aag.serving.sources import open_source
from aag.serving.table import EmbeddingTable, UnreadableTableError, read_table
from aag.text import pluralize

_log = logging.getLogger(__name__)
Images = str | Path | Sequence[str | Path]


def embed_folder(
    model: Model | Embedder,
    images: Images,
    *,
    features: bool = False,
    thumbnails: int = 0,
    data_root: str | Path | None = None,
    on_progress: ProgressCallback | None = None,
    **options: Any,
) -> EmbeddingTable:
    """Embed a folder, files, an .npz or a data set in memory. `options` are the Embedder's.

    thumbnails: side of JPEG thumbnails in pixels; 0: none. Files that cannot be read are left out.
    """
    embedder = model if isinstance(model, Embedder) else Embedder(model, **options)
    source = open_source(images, embedder.size, data_root=data_root)
    return embedder.embed_all(source, features=features, thumbnails=thumbnails, on_progress=on_progress)[0]


def load_or_embed(
    model: Model | Embedder,
    images: Images,
    *,
    features: bool = False,
    data_root: str | Path | None = None,
    on_progress: ProgressCallback | None = None,
    **options: Any,
) -> EmbeddingTable:
    """Return the embeddings of images, from an embeddings file of this model, the cache or the encoder.

    Embeddings are cached until a file or the model changes. A damaged cache file is made again.
    """
    embedder = model if isinstance(model, Embedder) else Embedder(model, **options)
    if (file := embeddings_file(images)) is not None:
        return check_model(read_table(file, features=features, thumbnails=False), embedder, file)
    source = open_source(images, embedder.size, data_root=data_root)
    folder = find_data_root(data_root) / "embeddings"
    with explain_write_errors(folder, "set AAG_DATA to a folder that can be written to"):
        folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{table_key(embedder, source, range(len(source)), features, 0)}.parquet"
    if (table := _read_cached(path)) is None:
        embed_to_file(embedder, source, path, features=features, on_progress=on_progress)
        table = read_table(path)
    if missing := len(source) - len(table):
        _log.warning("left out %s that cannot be read; aag embed lists the reasons", pluralize(missing, "image"))
    # Cached by content: the same folder may have moved.
    return replace(table, metadata={**table.metadata, "source": source.source})


def _read_cached(path: Path) -> EmbeddingTable | None:
    """Return the table of a cache file; None if it is missing or was damaged, and then removed."""
    if not path.exists():
        return None
    try:
        return read_table(path)
    except UnreadableTableError:
        _log.warning("the cached embeddings in %s are damaged; embedding the images again", path)
        with explain_write_errors(path):
            path.unlink(missing_ok=True)
        return None


def embeddings_file(images: Images) -> Path | None:
    """Return the path if `images` is an embeddings file; None if it is images."""
    if not isinstance(images, str | Path):
        images = list(images)
        if len(images) != 1:
            return None
        images = images[0]
    path = Path(images)
    if path.suffix.lower() in (".parquet", ".csv"):
        return path
    if path.suffix.lower() == ".npz" and path.is_file():
        try:
            with np.load(path, allow_pickle=False) as arrays:
                return path if "embedding" in arrays else None
        except (OSError, ValueError, BadZipFile):
            return None
    return None


def check_model(table: EmbeddingTable, embedder: Embedder, file: Path) -> EmbeddingTable:
    """Return the table, or raise if another model made it."""
    made_by, width = table.metadata.get("model"), table.embeddings.shape[1]
    if made_by not in (None, embedder.model_hash):
        network = table.metadata.get("network", "network")
        raise AAGError(f"{file} was made by another model ({network}, {made_by}); run aag embed with this model")
    if width != embedder.encoder.embedding_dim:
        wanted = embedder.encoder.embedding_dim
        raise AAGError(f"{file} has {width} dimensions, this model {wanted}; run aag embed with this model")
    return table
