"""Find near-duplicate images and suggest which of each group to keep. Nothing is deleted."""

import csv
import hashlib
import io
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from aag.data.decode import UnreadableImageError, read_size
from aag.errors import AAGError
from aag.files import write_bytes
from aag.serving.duplicates import connect_similar
from aag.serving.search import picture_loader
from aag.serving.sheets import GREEN, Section, Tile, make_sheet
from aag.serving.table import EmbeddingTable

THRESHOLD = 0.98  # measured: docs/use.md
MAX_TILES = 18  # of a group on the contact sheet


@dataclass(frozen=True)
class Duplicate:
    """An image of a group. `cosine` compares it with the image to keep."""

    group: int  # from 1, the largest group first
    keep: bool
    path: str
    cosine: float
    identical: bool  # byte for byte the same file as the one to keep
    width: int | None  # pixels; None where the file is gone or the image is no file
    height: int | None
    bytes: int | None
    index: int  # row of the table


def find_duplicates(
    table: EmbeddingTable, *, threshold: float = THRESHOLD, device: torch.device | str = "cpu"
) -> list[Duplicate]:
    """Return the groups of images linked by cosines of at least `threshold`, the image to keep first.

    Byte-identical files have the same embedding, so they are always in one group. Of a group, keep the image with the
    most pixels, then the largest file, then the first path.
    """
    if not 0 < threshold <= 1:
        raise AAGError(f"--threshold {threshold} is not above 0 and at most 1")
    labels = connect_similar(table.embeddings.to(device), threshold)
    order = np.argsort(labels, kind="stable")
    starts = np.flatnonzero(np.diff(labels[order], prepend=-1))
    groups = [group.tolist() for group in np.split(order, starts[1:]) if len(group) > 1]
    groups.sort(key=lambda group: (-len(group), group[0]))
    folder = table.metadata.get("source", "")
    found = []
    for number, group in enumerate(groups, 1):
        paths = [Path(folder, table.names[row]) for row in group]
        facts = [_file_facts(path) for path in paths]
        pixels = [(fact[0] or 0) * (fact[1] or 0) for fact in facts]
        ranked = sorted(range(len(group)), key=lambda i: (-pixels[i], -(facts[i][2] or 0), table.names[group[i]]))
        best = ranked[0]
        cosines = table.embeddings[group] @ table.embeddings[group[best]]
        content = _digest(paths[best]) if facts[best][2] else None
        for place in ranked:
            same_size = place != best and facts[place][2] == facts[best][2]
            same = same_size and content is not None and _digest(paths[place]) == content
            cosine = min(1.0, cosines[place].item())
            name = table.names[group[place]]
            found.append(Duplicate(number, place == best, name, cosine, same, *facts[place], group[place]))
    return found


def write_duplicates(path: Path, found: Sequence[Duplicate]) -> None:
    """Write the groups as CSV, atomically."""
    out = io.StringIO()
    columns = [each.name for each in fields(Duplicate) if each.name != "index"]
    writer = csv.DictWriter(out, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for each in found:
        writer.writerow(asdict(each) | {"keep": int(each.keep), "identical": int(each.identical),
                                        "cosine": f"{each.cosine:.6f}"})  # fmt: skip
    write_bytes(path, out.getvalue().encode())


def duplicates_sheet(
    table: EmbeddingTable, found: Sequence[Duplicate], *, groups: int = 60, data_root: str | Path | None = None
) -> Image.Image:
    """Return a contact sheet of the first groups; the image to keep has a green frame."""
    load = picture_loader(table, data_root=data_root)
    members: dict[int, list[Duplicate]] = {}
    for each in found:
        members.setdefault(each.group, []).append(each)
    sections = []
    for number, group in list(members.items())[:groups]:
        tiles = [
            Tile(load(each.index), (_describe(each), each.path), GREEN if each.keep else None)
            for each in group[:MAX_TILES]
        ]
        more = f", {len(group) - MAX_TILES} not shown" if len(group) > MAX_TILES else ""
        sections.append(Section(tiles, f"Group {number}", f"{len(group)} images{more}"))
    shown = "" if len(members) <= groups else f"; the first {groups} of {len(members):,} groups"
    return make_sheet(sections, title=f"Near-duplicates, green: keep{shown}", columns=9)


def _describe(each: Duplicate) -> str:
    size = f"  {each.width}×{each.height}" if each.width else ""
    return ("keep" if each.keep else "identical" if each.identical else f"{each.cosine:.3f}") + size


def _file_facts(path: Path) -> tuple[int | None, int | None, int | None]:
    """Return width, height and bytes of an image file; None where it is gone or unreadable."""
    try:
        return *read_size(path), os.stat(path).st_size
    except (UnreadableImageError, OSError):
        return None, None, None


def _digest(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError:
        return None
