"""Find the nearest images to a query, by the cosine of their embeddings."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from aag.data.decode import UnreadableImageError, decode
from aag.errors import AAGError
from aag.evaluate.knn import find_neighbours
from aag.serving.embedder import Embedder
from aag.serving.sheets import BLUE, Section, Tile, make_sheet
from aag.serving.sources import ImageSource, reopen_source
from aag.serving.table import EmbeddingTable

TILE = 128  # pixels


@dataclass(frozen=True)
class Neighbour:
    """A search result. `index` is the row of the table."""

    query: str
    rank: int  # from 1
    cosine: float
    path: str
    index: int


def find_nearest(embeddings: Tensor, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the cosines and rows [Q, k] of the k nearest of the unit rows [N, D] to each query [Q, D], sorted.

    Exact: every row is compared. Equal cosines are ordered by row.
    """
    k = min(k, len(embeddings))
    cosines, rows = torch.empty(len(queries), k), torch.empty(len(queries), k, dtype=torch.int64)
    for chunk, cosine, index in find_neighbours(embeddings, queries.to(embeddings.device), k):
        index, order = index.sort(dim=1)
        cosine, by_cosine = cosine.gather(1, order).sort(dim=1, descending=True, stable=True)
        cosines[chunk], rows[chunk] = cosine.cpu(), index.gather(1, by_cosine).cpu()
    return cosines, rows


def search(embedder: Embedder, table: EmbeddingTable, queries: Sequence[str | Path], *, k: int = 12) -> list[Neighbour]:
    """Return the k nearest images of a table to each query file, best first. A query's own file is left out.

    A query that is given twice counts once.
    """
    if k < 1:
        raise AAGError(f"--k {k} is too small; ask for at least 1 neighbour")
    queries = list(dict.fromkeys(queries))
    embeddings = embed_queries(embedder, queries)
    cosines, rows = find_nearest(table.embeddings, embeddings, k + 1)
    folder = table.metadata.get("source", "")
    found = []
    for query, cosine, row in zip(queries, cosines.clamp(max=1).tolist(), rows.tolist(), strict=True):
        own = os.path.realpath(os.path.expanduser(query))
        pairs = [
            (value, index)
            for value, index in zip(cosine, row, strict=True)
            if os.path.realpath(os.path.join(folder, table.names[index])) != own
        ]
        found += [
            Neighbour(str(query), rank, value, table.names[index], index)
            for rank, (value, index) in enumerate(pairs[:k], 1)
        ]
    return found


def embed_queries(embedder: Embedder, queries: Sequence[str | Path]) -> Tensor:
    """Return the unit embeddings [Q, D] of image files; raise for the first that cannot be read."""
    source = ImageSource("", [str(query) for query in queries], [os.path.expanduser(query) for query in queries])
    parts = list(embedder.embed(source))
    if failed := [line for _, _, skipped in parts for line in skipped]:
        raise AAGError(f"cannot use the query {failed[0]}")
    return torch.cat([table.embeddings for _, table, _ in parts])


def picture_loader(
    table: EmbeddingTable, size: int = TILE, *, data_root: str | Path | None = None
) -> Callable[[int], np.ndarray | None]:
    """Return a function that loads the picture of a row, uint8 [size, size, 3], or None if it cannot be read."""
    source = reopen_source(table, size, data_root=data_root)
    # The table may hold a part of a set, such as a shard of aag embed.
    places = None if source.names == table.names else {name: place for place, name in enumerate(source.names)}

    def load(row: int) -> np.ndarray | None:
        try:
            return source.load(row if places is None else places[table.names[row]], size)
        except (UnreadableImageError, KeyError):
            return None

    return load


def search_sheet(
    table: EmbeddingTable, found: Sequence[Neighbour], *, data_root: str | Path | None = None
) -> Image.Image:
    """Return a contact sheet: each query, framed, and its neighbours."""
    load = picture_loader(table, data_root=data_root)
    sections = []
    for query in dict.fromkeys(each.query for each in found):
        tiles = [Tile(decode(Path(query).expanduser(), TILE), ("query", Path(query).name), BLUE)]
        tiles += [Tile(load(each.index), (f"{each.cosine:.3f}", each.path)) for each in found if each.query == query]
        sections.append(Section(tiles, title=query))
    return make_sheet(sections, columns=7)
