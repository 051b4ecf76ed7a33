"""Read and write embedding tables as Parquet and .csv, with pyarrow."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import torch
from torch import Tensor

from aag.data.memory import available_memory
from aag.serving.table import RESERVED, EmbeddingTable, parse_metadata
from aag.text import readable_bytes

METADATA_KEY = b"aag"  # in the Parquet file's metadata; its value is JSON
ROW_GROUP = 8192  # rows
ROWS_PER_CHECK = 1024
THUMBNAIL = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def to_arrow(table: EmbeddingTable) -> pa.Table:
    """Return an Arrow table with the columns of the Parquet file."""
    arrays: dict[str, pa.Array] = {"path": pa.array(table.names, pa.string())}
    arrays["embedding"] = _vectors(table.embeddings)
    if table.features is not None:
        arrays["features"] = _vectors(table.features)
    if table.thumbnails is not None:
        rows = [
            {"bytes": jpeg, "path": name} if jpeg else None
            for name, jpeg in zip(table.names, table.thumbnails, strict=True)
        ]
        arrays["thumbnail"] = pa.array(rows, THUMBNAIL)
    for name, values in table.columns.items():
        arrays[name] = pa.array(values)
    return pa.table(arrays, metadata={METADATA_KEY: json.dumps(table.metadata)})


def _vectors(values: Tensor) -> pa.Array:
    rows = values.detach().to("cpu", torch.float32).contiguous().numpy()
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])


def write_stream(path: Path, suffix: str, tables: Iterable[EmbeddingTable]) -> None:
    """Write tables one after the other to a .parquet or .csv file, with one table in memory at a time."""
    writer: Any = None
    try:
        for table in tables:
            arrow = to_arrow(table) if suffix == ".parquet" else _csv_columns(table)
            if writer is None:
                writer = _open_writer(path, suffix, arrow.schema)
            arrow = arrow.cast(writer.schema) if suffix == ".parquet" else arrow
            writer.write_table(arrow, ROW_GROUP) if suffix == ".parquet" else writer.write_table(arrow)
    finally:
        if writer is not None:
            writer.close()


def _open_writer(path: Path, suffix: str, schema: pa.Schema) -> Any:
    if suffix == ".csv":
        return pa.csv.CSVWriter(path, schema)
    # Random floats do not compress, and plain pages are read at the disk's speed.
    return pq.ParquetWriter(path, schema, compression="none", use_dictionary=False)


def read_parquet(path: Path, leave_out: set[str]) -> EmbeddingTable:
    """Read a Parquet file without the columns `leave_out`. It may have no rows. Raises Arrow's errors."""
    with pq.ParquetFile(path) as file:
        wanted = [name for name in file.schema_arrow.names if name not in leave_out]
        if _may_expand(file.metadata):
            _check_expansion(path, file.metadata, wanted)
        found = file.read(wanted)
    metadata = parse_metadata((found.schema.metadata or {}).get(METADATA_KEY, b"{}"))
    return EmbeddingTable(
        found["path"].to_pylist(),
        _matrix(found, "embedding"),
        _matrix(found, "features") if "features" in wanted else None,
        _thumbnails(found["thumbnail"]) if "thumbnail" in wanted else None,
        {name: found[name].to_pylist() for name in wanted if name not in RESERVED},
        metadata,
    )


def _may_expand(metadata: pq.FileMetaData) -> bool:
    """Return whether the values of a file may take more memory than the file, unlike those of `write_stream`."""
    groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    chunks = [group.column(column) for group in groups for column in range(group.num_columns)]
    return any(chunk.has_dictionary_page or chunk.compression != "UNCOMPRESSED" for chunk in chunks)


def _check_expansion(path: Path, metadata: pq.FileMetaData, wanted: list[str]) -> None:
    """Raise ValueError if the columns take more than a quarter of the free memory: all rows may share one long text."""
    leaves = [metadata.schema.column(number) for number in range(len(metadata.schema))]
    texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
    total, limit = 0, available_memory() // 4
    with pq.ParquetFile(path, read_dictionary=texts) as file:  # such a column holds each text once
        for batch in file.iter_batches(ROWS_PER_CHECK, columns=wanted):
            total += sum(map(_expanded_bytes, batch.columns))
            if total > limit:
                raise ValueError(f"its values take more than {readable_bytes(limit)} of memory")


def _expanded_bytes(array: pa.Array) -> int:
    """Return the memory of an array without its dictionaries."""
    if pa.types.is_dictionary(array.type):
        lengths = pc.binary_length(array.dictionary).cast(pa.int64())
        return int(pc.sum(lengths.take(array.indices)).as_py() or 0)
    if pa.types.is_struct(array.type) and array.type.num_fields:
        return sum(map(_expanded_bytes, array.flatten()))
    return int(array.nbytes)


def _matrix(found: pa.Table, name: str) -> Tensor:
    """Return a column of equally long lists as float32 [N, D]."""
    column = found[name]
    kind = column.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        raise ValueError(f"column {name} has no lists of numbers but {kind}")
    width = kind.list_size if pa.types.is_fixed_size_list(kind) else len(column[0]) if len(column) else 0
    out, start = np.empty((len(column), width), np.float32), 0
    for chunk in column.chunks:
        values = chunk.flatten().to_numpy(zero_copy_only=False)
        if chunk.null_count or len(values) != len(chunk) * width:
            raise ValueError(f"column {name} has rows of different lengths")
        out[start : start + len(chunk)] = values.reshape(len(chunk), width)
        start += len(chunk)
    return torch.from_numpy(out)


def _thumbnails(column: pa.ChunkedArray) -> list[bytes]:
    # chunk by chunk: 2 GiB of bytes do not fit into one binary array
    return [(row or {}).get("bytes") or b"" for chunk in column.chunks for row in chunk.to_pylist()]


# --- .csv ----------------------------------------------------------------------------------------------------------


def _csv_columns(table: EmbeddingTable) -> pa.Table:
    """Return the columns of a .csv: path, other columns, embedding_0 …, feature_0 …; no thumbnails, no metadata."""
    arrays: dict[str, Any] = {"path": pa.array(table.names, pa.string())}
    arrays |= {name: pa.array(values) for name, values in table.columns.items()}
    for name, values in (("embedding", table.embeddings), ("feature", table.features)):
        if values is not None:
            arrays |= {f"{name}_{i}": pa.array(row) for i, row in enumerate(values.cpu().T.contiguous().numpy())}
    return pa.table(arrays)


def read_csv(path: Path, leave_out: set[str]) -> EmbeddingTable:
    """Read a .csv, without features if `leave_out` names them. Raises ValueError if columns are missing."""
    found = pa.csv.read_csv(
        path,
        parse_options=pa.csv.ParseOptions(newlines_in_values=True),
        # A label is text: 01 is not 1.
        convert_options=pa.csv.ConvertOptions(
            column_types={"path": pa.string(), "label": pa.string()}, strings_can_be_null=False
        ),
    )
    numbered = [re.fullmatch(r"(embedding|feature)_(\d+)", name) for name in found.column_names]
    groups: dict[str, list[str]] = {"embedding": [], "feature": []}
    for match in sorted((match for match in numbered if match), key=lambda match: int(match[2])):
        groups[match[1]].append(match[0])

    def matrix(names: list[str]) -> Tensor:
        return torch.from_numpy(np.stack([found[name].to_numpy().astype(np.float32) for name in names], axis=1))

    used = {"path", *groups["embedding"], *groups["feature"]}
    if "path" not in found.column_names or not groups["embedding"] or not len(found):
        raise ValueError("it needs rows with the columns path and embedding_0, embedding_1, …")
    return EmbeddingTable(
        found["path"].to_pylist(),
        matrix(groups["embedding"]),
        matrix(groups["feature"]) if groups["feature"] and "features" not in leave_out else None,
        columns={name: found[name].to_pylist() for name in found.column_names if name not in used},
    )
