"""aag dedupe"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from aag.cli.output import Printer, decoding_progress, embedding_progress, make_console, print_rows
from aag.cli.parsing import parse
from aag.serving.options import DUPLICATE_COSINE
from aag.signals import hold_stops
from aag.text import pluralize

if TYPE_CHECKING:
    from aag.serving.dedupe import Duplicate

PRINTED_ROWS = 20  # the .csv has all


@dataclass(frozen=True)
class Dedupe:
    """Find near-duplicate images and suggest which of each group to keep. Deletes nothing."""

    model: Annotated[Path, tyro.conf.arg(metavar="MODEL")]
    """Run folder or .safetensors file."""
    images: Annotated[str, tyro.conf.arg(metavar="IMAGES")]
    """Folder of images, or any other --data of aag train, or an embeddings file of aag embed."""
    threshold: float = DUPLICATE_COSINE
    """Minimum cosine of two duplicates. A lower value finds more duplicates, and more false matches."""
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])] = Path("duplicates.csv")
    """CSV to write: group, keep, path, cosine, identical, width, height, bytes."""
    sheet: str = "duplicates.png"
    """Contact sheet of the groups to write. none: no sheet."""
    json: bool = False
    """Print all groups as JSON."""
    device: str = "auto"
    """cpu, cuda, cuda:N, or auto: the GPU if there is one, else the CPU."""
    data_root: Path | None = None
    """Where data sets and embeddings are stored. Default: $AAG_DATA, else the cache folder."""


def run(arguments: list[str]) -> int:
    options = parse(Dedupe, "dedupe", arguments)
    with hold_stops():
        from aag.serving.dedupe import count_missing, duplicates_sheet, find_duplicates, write_duplicates
        from aag.serving.embed import Embedder, load_or_embed
        from aag.serving.sheets import check_sheet_path, write_sheet
    sheet = None if options.sheet == "none" else check_sheet_path(Path(options.sheet))
    embedder = Embedder(options.model, device=options.device)
    with embedding_progress() as progress:
        table = load_or_embed(embedder, options.images, data_root=options.data_root, on_progress=progress)
    with decoding_progress() as progress:
        found = find_duplicates(
            table,
            threshold=options.threshold,
            device=embedder.device,
            data_root=options.data_root,
            on_progress=progress,
        )
    write_duplicates(options.out, found)
    if sheet and found:
        write_sheet(sheet, duplicates_sheet(table, found, data_root=options.data_root))
    if missing := count_missing(table, found):
        folder = table.metadata.get("source") or "the current folder"
        Printer(make_console(stderr=True))(
            f"warning: {missing:,} of the {len(found):,} listed images cannot be opened in {folder}, so their pixels "
            f"were not compared; give the folder of the images in place of {options.images}"
        )
    if options.json:
        rows = [{name: value for name, value in asdict(each).items() if name != "index"} for each in found]
        print_rows(rows, as_json=True)
        return 0
    say = Printer()
    if not found:
        say(f"no near-duplicates among {len(table):,} images at a cosine of {options.threshold:g}")
        return 0
    print_rows([_row(each) for each in found[:PRINTED_ROWS]])
    if len(found) > PRINTED_ROWS:
        say(f"and {len(found) - PRINTED_ROWS:,} more rows in {options.out}")
    groups, identical = found[-1].group, sum(each.identical for each in found)
    removable = f"{len(found) - groups:,} of {len(table):,} images can be removed"
    say(f"{pluralize(groups, 'group')}; {removable}, {identical:,} of them identical to the image to keep")
    say(f"nothing was deleted; list: {options.out}" + (f", contact sheet: {sheet}" if sheet else ""))
    return 0


def _row(each: "Duplicate") -> dict[str, Any]:
    hint = "keep" if each.keep else "identical" if each.identical else "similar"
    size = f"{each.width}×{each.height}" if each.width else "–"
    return {
        "group": each.group,
        "": hint,
        "cosine": each.cosine,
        "size": size,
        "bytes": each.bytes,
        "path": each.path,
    }
