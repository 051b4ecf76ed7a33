"""aag search"""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from aag.cli.output import Printer, embedding_progress, print_rows
from aag.cli.parsing import parse
from aag.errors import AAGError
from aag.signals import hold_stops
from aag.text import printable

if TYPE_CHECKING:
    from aag.serving.search import Neighbour


@dataclass(frozen=True)
class Search:
    """Find the images nearest to query images, by the cosine of their embeddings."""

    model: Annotated[Path, tyro.conf.arg(metavar="MODEL")]
    """Run folder or .safetensors file."""
    images: Annotated[str, tyro.conf.arg(metavar="IMAGES")]
    """Folder of images, or any other --data of aag train, or an embeddings file of aag embed."""
    queries: Annotated[tuple[str, ...], tyro.conf.arg(metavar="QUERY ...")]
    """Image files to find neighbours of."""
    k: int = 12
    """Neighbours per query."""
    sheet: str = "search.png"
    """Contact sheet to write: the queries and their neighbours. none: no sheet."""
    json: bool = False
    """Print JSON."""
    device: str = "auto"
    """cpu, cuda, cuda:N, or auto: the GPU if there is one, else the CPU."""
    data_root: Path | None = None
    """Where data sets and embeddings are stored. Default: $AAG_DATA, else the cache folder."""


def run(arguments: list[str]) -> int:
    options = parse(Search, "search", arguments)
    with hold_stops():
        from aag.serving.embed import Embedder, load_or_embed
        from aag.serving.search import search, search_sheet
        from aag.serving.sheets import check_sheet_path, write_sheet
    sheet = None if options.sheet == "none" else check_sheet_path(Path(options.sheet))
    if not options.queries:
        raise AAGError("no query given; name an image file after the images")
    for query in options.queries:  # before the images are embedded, which may take long
        if not os.path.exists(os.path.expanduser(query)):
            raise AAGError(f"cannot use the query {query}: no such file")
    embedder = Embedder(options.model, device=options.device)
    with embedding_progress() as progress:
        table = load_or_embed(embedder, options.images, data_root=options.data_root, on_progress=progress)
    found = search(embedder, table, options.queries, k=options.k)
    if options.json:
        print_rows(
            [{name: value for name, value in asdict(each).items() if name != "index"} for each in found], as_json=True
        )
    else:
        _print_tables(found)
    if sheet:
        write_sheet(sheet, search_sheet(table, found, data_root=options.data_root))
        if not options.json:
            Printer()(f"contact sheet: {sheet}")
    return 0


def _print_tables(found: "Sequence[Neighbour]") -> None:
    """Print a table per query, with its name above it if there are several."""
    queries = list(dict.fromkeys(each.query for each in found))
    for query in queries:
        rows = [{"rank": each.rank, "cosine": each.cosine, "path": each.path} for each in found if each.query == query]
        if len(queries) > 1:
            Printer()(printable(query))
        print_rows(rows)
