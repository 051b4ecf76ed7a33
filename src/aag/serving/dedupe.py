"""Find near-duplicate images and suggest which of each group to keep. Nothing is deleted."""

import hashlib
import itertools
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from aag.data.decode import UnreadableImageError, read_size
from aag.data.store import ProgressCallback
from aag.errors import AAGError
from aag.files import write_csv
from aag.provenance import core_count
from aag.serving.components import ROUNDING, connect_similar
from aag.serving.options import DUPLICATE_COSINE
from aag.serving.search import picture_loader
from aag.serving.sheets import GREEN, Section, Tile, make_sheet
from aag.serving.sources import is_image_set
from aag.serving.table import EmbeddingTable
from aag.text import pluralize

_log = logging.getLogger(__name__)

CHECKED_SIDE = 16  # pixels of the small copies that are compared
MAX_DIFFERENCE, FLAT_DEVIATION, MIN_CORRELATION = (
    25.0,
    4.0,
    0.7,
)  # mean difference, deviation (both of 255), correlation
BLOCK = 32  # images whose group is looked for at once
MAX_PAIRS = 10**9  # pairs that are compared in one component; its other images are kept
MAX_TILES = 18  # of a group on the contact sheet
Picture = np.ndarray | None  # uint8 [S, S, 3]; None if its file cannot be read


@dataclass(frozen=True)
class Duplicate:
    """An image of a group of near-duplicates. `cosine` is its similarity to the image to keep."""

    group: int  # from 1, the largest group first
    keep: bool
    path: str
    cosine: float
    identical: bool  # byte for byte the same file as the one to keep
    width: int | None  # pixels; None if the file no longer exists, or the image comes from an array
    height: int | None
    bytes: int | None
    index: int  # row of the table


def find_duplicates(
    table: EmbeddingTable,
    *,
    threshold: float = DUPLICATE_COSINE,
    device: torch.device | str = "cpu",
    data_root: str | Path | None = None,
    on_progress: ProgressCallback | None = None,
) -> list[Duplicate]:
    """Return groups of near-duplicates: in each, one image to keep and those similar to it.

    Two images are similar if their cosine reaches `threshold` and their pixels, at 16×16 and possibly mirrored, differ
    little. The pixels guard against a poor encoder, which maps different images to the same embedding. They are
    compared where the files still exist. The image with the most pixels is kept, then the largest file, then a file
    rather than a link, then the first path. `on_progress(done, total)` is called while images are decoded.
    """
    if not 0 < threshold <= 1:
        raise AAGError(f"--threshold {threshold} is out of range; use a number above 0 and at most 1")
    labels = connect_similar(table.embeddings.to(device), threshold)
    order = np.argsort(labels, kind="stable")
    starts = np.flatnonzero(np.diff(labels[order], prepend=-1))
    linked = [group.tolist() for group in np.split(order, starts[1:]) if len(group) > 1]
    folder = table.metadata.get("source", "")
    facts = {row: _file_facts(Path(folder, table.names[row])) for group in linked for row in group}

    def rank(row: int) -> tuple[int, int, bool, str]:
        width, height, size = facts[row]
        return -(width or 0) * (height or 0), -(size or 0), _is_link(folder, table.names[row]), table.names[row]

    linked = [sorted(rows, key=rank) for rows in linked]
    groups: list[list[int]] = []
    pool = ThreadPoolExecutor(core_count())
    try:
        decoded = pool.map(picture_loader(table, CHECKED_SIDE, data_root=data_root), itertools.chain(*linked))
        pictures = _report(decoded, len(facts), on_progress)
        for rows in linked:
            small = _SmallPictures.collect(itertools.islice(pictures, len(rows)), len(rows))
            groups += _split_component(table.embeddings, rows, threshold, small)
    finally:  # Ctrl-C must not wait for what is queued
        pool.shutdown(wait=False, cancel_futures=True)
    groups.sort(key=lambda group: (-len(group), min(group)))
    found = []
    for number, group in enumerate(groups, 1):
        best, *_ = group
        cosines = (table.embeddings[group] @ table.embeddings[best]).clamp(max=1).tolist()
        content = _digest(Path(folder, table.names[best])) if facts[best][2] else None
        for row, cosine in zip(group, cosines, strict=True):
            same_size = row != best and content is not None and facts[row][2] == facts[best][2]
            same = same_size and _digest(Path(folder, table.names[row])) == content
            found.append(Duplicate(number, row == best, table.names[row], cosine, same, *facts[row], row))
    return found


def _report(pictures: Iterable[Picture], total: int, on_progress: ProgressCallback | None) -> Iterator[Picture]:
    """Pass the pictures on, and report how many there were."""
    for done, picture in enumerate(pictures, 1):
        if on_progress:
            on_progress(done, total)
        yield picture


def count_missing(table: EmbeddingTable, found: Sequence[Duplicate]) -> int:
    """Return how many of the images have no readable file, so that their pixels were not compared."""
    return 0 if is_image_set(table.metadata.get("source", "")) else sum(each.bytes is None for each in found)


def _split_component(
    embeddings: torch.Tensor, rows: list[int], threshold: float, pictures: "_SmallPictures | None"
) -> Iterator[list[int]]:
    """Yield groups of connected rows, which are sorted by quality: the best remaining row and all rows similar to it.

    A component may be a chain whose ends differ. So each removed image must be similar to the kept one itself.
    """
    unit_rows, left, pairs = embeddings[rows], np.arange(len(rows)), 0
    while len(left) > 1:
        if pairs > MAX_PAIRS:
            _log.warning(
                "%s have nearly the same embedding; %s of them were not compared: use a higher --threshold, or "
                "train longer",
                pluralize(len(rows), "image"),
                f"{len(left):,}",
            )
            return
        best = left[:BLOCK]
        pairs += len(left) * len(best)
        near = (unit_rows[left] @ unit_rows[best].T >= threshold - ROUNDING).numpy()  # [left, best]
        if pictures is not None:
            pictures.drop_different(near, left)
        free = np.ones(len(left), dtype=bool)
        for column in range(len(best)):
            if free[column]:
                free[column] = False
                similar = np.flatnonzero(free & near[:, column])
                free[similar] = False
                if len(similar):
                    yield [rows[place] for place in left[[column, *similar]]]
        left = left[free]


class _SmallPictures:
    """Small copies of images. Two match in brightness and, unless both are flat, in pattern; a missing one always."""

    def __init__(self, pixels: np.ndarray, missing: np.ndarray) -> None:
        self.pixels, self.missing = pixels, missing  # uint8 [n, S, S, 3], bool [n]
        self.pattern = pixels - pixels.mean(axis=(1, 2), keepdims=True, dtype=np.float32)
        self.deviation = self.pattern.std(axis=(1, 2, 3))

    @classmethod
    def collect(cls, pictures: Iterable[Picture], count: int) -> "_SmallPictures | None":
        """Return these pictures; None if all are missing."""
        pixels = np.zeros((count, CHECKED_SIDE, CHECKED_SIDE, 3), np.uint8)
        missing = np.zeros(count, dtype=bool)
        for position, picture in enumerate(pictures):
            if picture is None:
                missing[position] = True
            else:
                pixels[position] = picture
        return None if missing.all() else cls(pixels, missing)

    def drop_different(self, near: np.ndarray, left: np.ndarray) -> None:
        """Set near [left, best] to False where pictures do not match; `best` are the first of `left`."""
        best = left[: near.shape[1]]
        matches = self.missing[left, None] | self.missing[best]
        deviation, best_deviation = self.deviation[left, None], self.deviation[best]
        flat = np.maximum(deviation, best_deviation) < FLAT_DEVIATION
        least = MIN_CORRELATION * self.pattern[0].size * deviation * best_deviation
        patterns = self.pattern[left].reshape(len(left), -1)
        for mirror in (1, -1):
            alike = patterns @ self.pattern[best, :, ::mirror].reshape(len(best), -1).T >= least
            candidates = near & (alike | flat) & ~matches
            for column, one in enumerate(best):
                found = np.flatnonzero(candidates[:, column])
                copy = self.pixels[one, :, ::mirror].astype(np.int16)
                difference = np.abs(self.pixels[left[found]] - copy).mean(axis=(1, 2, 3))
                matches[found, column] = difference <= MAX_DIFFERENCE
        near &= matches


def write_duplicates(path: Path, found: Sequence[Duplicate]) -> None:
    """Write the groups as CSV, atomically."""
    columns = ["group", "keep", "path", "cosine", "identical", "width", "height", "bytes"]
    rows = (
        (row.group, int(row.keep), row.path, f"{row.cosine:.6f}", int(row.identical), row.width, row.height, row.bytes)
        for row in found
    )
    write_csv(path, columns, rows)


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
    """Return width, height and bytes of an image file; None if it is missing or unreadable."""
    try:
        return *read_size(path), os.stat(path).st_size
    except (UnreadableImageError, OSError):
        return None, None, None


def _is_link(folder: str, name: str) -> bool:
    """Return whether the path below the folder contains a link: if its target were removed, nothing would be left."""
    return os.path.realpath(Path(folder, name)) != os.path.join(os.path.realpath(folder), name)


def _digest(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError:
        return None
