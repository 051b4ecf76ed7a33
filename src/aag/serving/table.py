"""Embeddings on disk: Parquet, .npz or .csv, one row per image.

Parquet columns: `path` (string), `embedding` (fixed-size list of float32), optionally `features` (the same) and
`thumbnail`, then other columns by name. A thumbnail is a struct of JPEG bytes and path, which Hugging Face and
Embedding Atlas show as a picture. The file's metadata has the model, its network, the version and the images' source.
"""

import json
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from aag.data.npz_members import open_arrays
from aag.errors import AAGError, first_line
from aag.files import atomic_write_path, explain_write_errors
from aag.vectors import unit_rows

FORMATS = (".parquet", ".npz", ".csv")
RESERVED = ("path", "embedding", "features", "thumbnail", "thumbnail_offsets", "metadata")
UNIT_TOLERANCE = 1e-3  # of the length of an embedding; others' tables are normalised


class UnreadableTableError(AAGError):
    """A file is damaged, or holds no embeddings."""


@dataclass(frozen=True, eq=False)
class EmbeddingTable:
    """Embeddings of N images, with their names."""

    names: list[str]  # paths relative to the source folder, "/"-separated
    embeddings: Tensor  # [N, D] float32 on the CPU, unit rows
    features: Tensor | None = None  # [N, F] float32
    thumbnails: list[bytes] | None = None  # JPEG; empty where an image has none
    columns: dict[str, Sequence[Any]] = field(default_factory=dict)  # further columns, one value per image
    metadata: dict[str, str] = field(default_factory=dict)  # model, network, version, source, …

    def __post_init__(self) -> None:
        parts = {"embeddings": self.embeddings, "features": self.features, "thumbnails": self.thumbnails}
        for name, values in (parts | self.columns).items():
            if values is not None and len(values) != len(self.names):
                raise AAGError(f"{name} has {len(values)} rows for {len(self.names)} names; one per image is needed")
        if taken := sorted(set(self.columns) & set(RESERVED)):
            raise AAGError(f"the column name {taken[0]!r} is reserved; choose another")

    def __len__(self) -> int:
        return len(self.names)


def write_table(path: str | Path, table: EmbeddingTable) -> None:
    """Write a table atomically; the extension chooses the format."""
    write_tables(path, [table])


def write_tables(path: str | Path, tables: Iterable[EmbeddingTable]) -> None:
    """Write tables with the same columns below each other, atomically.

    Parquet and .csv are streamed: only one table is in memory. The metadata is the first table's.
    """
    path = Path(path)
    suffix = check_format(path)
    with explain_write_errors(path), atomic_write_path(path) as temporary:
        if suffix == ".npz":
            _write_npz(temporary, concatenate(list(tables)))
        else:
            from aag.serving.arrow import write_stream

            write_stream(temporary, suffix, tables)


def parse_metadata(text: str | bytes) -> dict[str, str]:
    """Return a table's metadata, which others may have written. Raises ValueError for what is not text by name."""
    found = None
    with suppress(ValueError, RecursionError):
        found = json.loads(text)
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ValueError("its metadata is not text by name")
    return found


def read_table(path: str | Path, *, features: bool = True, thumbnails: bool = True) -> EmbeddingTable:
    """Read a table of any of the formats. Embeddings that are not unit rows are normalised.

    features, thumbnails: whether to read these columns. If `path` is missing but all its shards exist
    (`NAME-1-of-8.parquet`, …), they are read as one table.
    """
    path = Path(path)
    suffix = check_format(path)
    if not path.exists() and (shards := find_shards(path)):
        return concatenate([read_table(shard, features=features, thumbnails=thumbnails) for shard in shards])
    if path.exists() and not path.is_file():  # reading a pipe would block
        raise AAGError(f"{path} is not a regular file; give a file that aag embed wrote")
    leave_out = {name for name, wanted in {"features": features, "thumbnail": thumbnails}.items() if not wanted}
    try:
        table = _read(path, suffix, leave_out)
        if table.embeddings.ndim != 2 or not all(isinstance(name, str) for name in table.names):
            raise ValueError("it needs a text as path and a list of numbers as embedding in each row")
    except FileNotFoundError:
        raise AAGError(f"no such file: {path}; make one with aag embed") from None
    except (OSError, ValueError, KeyError, TypeError, EOFError, NotImplementedError, MemoryError, BadZipFile) as error:
        raise UnreadableTableError(f"cannot read embeddings from {path}: {first_line(error)[:200]}") from error
    if not len(table):
        raise AAGError(f"{path} has no rows; run aag embed again")
    return replace(table, embeddings=_unit_rows(table.embeddings, path))


def _read(path: Path, suffix: str, leave_out: set[str]) -> EmbeddingTable:
    if suffix == ".npz":
        return _read_npz(path, leave_out)
    from aag.serving import arrow  # pyarrow takes half a second, which an .npz need not pay

    return arrow.read_parquet(path, leave_out) if suffix == ".parquet" else arrow.read_csv(path, leave_out)


def check_format(path: Path) -> str:
    """Return the extension of a table's file in lower case, or raise."""
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise AAGError(f"{path} is not an embeddings file; use one of {', '.join(FORMATS)}")
    return suffix


def concatenate(tables: Sequence[EmbeddingTable]) -> EmbeddingTable:
    """Join tables below each other. The metadata is the first one's."""
    if len(tables) == 1:
        return tables[0]
    first = tables[0]
    return EmbeddingTable(
        [name for table in tables for name in table.names],
        torch.cat([table.embeddings for table in tables]),
        None if first.features is None else torch.cat([t.features for t in tables if t.features is not None]),
        None if first.thumbnails is None else [jpeg for table in tables for jpeg in table.thumbnails or ()],
        {name: [value for table in tables for value in table.columns[name]] for name in first.columns},
        first.metadata,
    )


def shard_file(path: Path, number: int, count: int) -> Path:
    """Return the file of shard `number` of `count`: out.parquet → out-3-of-8.parquet."""
    return path.with_name(f"{path.stem}-{number}-of-{count}{path.suffix}")


def find_shards(path: Path) -> list[Path]:
    """Return the files of all shards of a table, in order; empty where it has none."""
    pattern = re.compile(re.escape(path.stem) + r"-(\d+)-of-(\d+)" + re.escape(path.suffix))
    found = [match for match in map(pattern.fullmatch, _file_names(path.parent)) if match]
    counts = {int(match[2]) for match in found}
    if not counts:
        return []
    count = max(counts)
    shards = [shard_file(path, number, count) for number in range(1, count + 1)]
    if len(counts) > 1:
        raise AAGError(f"{path.parent} holds shards of {path.name} of different counts ({sorted(counts)}); remove some")
    if missing := [shard for shard in shards if not shard.exists()]:
        raise AAGError(f"{len(missing)} of {count} shards are missing, first {missing[0]}; run aag embed for them")
    return shards


def _file_names(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir()] if folder.is_dir() else []


def _unit_rows(embeddings: Tensor, path: Path) -> Tensor:
    if not embeddings.isfinite().all():
        raise AAGError(f"{path} has embeddings with NaN or infinity; train again with a lower --lr")
    lengths = torch.linalg.vector_norm(embeddings, dim=1)
    return embeddings if ((lengths - 1).abs() < UNIT_TOLERANCE).all() else unit_rows(embeddings)


# --- .npz -----------------------------------------------------------------------------------------------------------


def _write_npz(path: Path, table: EmbeddingTable) -> None:
    arrays: dict[str, Any] = {"path": np.array(table.names, dtype=np.str_), "embedding": table.embeddings.numpy()}
    if table.features is not None:
        arrays["features"] = table.features.numpy()
    if table.thumbnails is not None:  # one block of bytes and where each picture starts: nothing is pickled
        arrays["thumbnail"] = np.frombuffer(b"".join(table.thumbnails), np.uint8)
        arrays["thumbnail_offsets"] = np.cumsum([0, *map(len, table.thumbnails)])
    for name, values in table.columns.items():
        arrays[name] = np.array(values)
        if arrays[name].dtype == object:
            raise AAGError(f"an .npz cannot hold the column {name!r}; use .parquet")
    with path.open("wb") as file:
        np.savez(file, metadata=np.array(json.dumps(table.metadata)), **arrays)


def _read_npz(path: Path, leave_out: set[str]) -> EmbeddingTable:
    with open_arrays(path) as found:
        if not {"path", "embedding"} <= set(found) or not len(found["path"]):
            raise ValueError("it needs rows in the arrays path and embedding")
        thumbnails = None
        if "thumbnail" in found and "thumbnail" not in leave_out:
            pixels, offsets = found["thumbnail"].tobytes(), found["thumbnail_offsets"].tolist()
            thumbnails = [pixels[a:b] for a, b in pairwise(offsets)]
        features = found["features"] if "features" in found and "features" not in leave_out else None
        return EmbeddingTable(
            found["path"].tolist(),
            torch.from_numpy(found["embedding"].astype(np.float32)),
            None if features is None else torch.from_numpy(features.astype(np.float32)),
            thumbnails,
            {name: found[name].tolist() for name in found if name not in RESERVED},
            parse_metadata(str(found["metadata"])) if "metadata" in found else {},
        )
