"""Read images from Parquet and Arrow files, as Hugging Face datasets write them.

The column of images holds the bytes of image files. It is the column of the type Image, where the file says so, or the
first of structs {bytes, path}, or one of bytes with a usual name. The label is the first column of the type ClassLabel,
or one with a usual name.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from aag.data.arrow_messages import check_uncompressed, find_stream
from aag.data.decode import UnreadableImageError
from aag.data.encoded import MAX_FILE_BYTES, Item
from aag.data.tar import Sample, as_label

LABEL_NAMES = ("label", "labels", "cls", "class", "target", "fine_label", "category", "y")
MAX_GROUP_ROWS = 2**24
MAX_CHUNK_BYTES = 2**27  # of a column in a row group, to be read at once
BUFFER_BYTES = 2**20
TABLE_ERRORS = (pa.ArrowException, OSError, ValueError, EOFError)


@dataclass(frozen=True)
class Columns:
    """The columns of a table that are read, and the names of the classes where the table has them."""

    image: str
    label: str | None
    classes: tuple[str, ...] = ()


def find_columns(schema: pa.Schema) -> Columns:
    """Choose the columns of images and labels. Raises ValueError for a table without images."""
    features = _features(schema)
    kinds = {name: feature.get("_type") for name, feature in features.items() if isinstance(feature, dict)}
    images = [name for name in schema.names if kinds.get(name) == "Image"]
    images += [field.name for field in schema if _is_image_struct(field.type)]
    images += [f.name for f in schema if f.name.lower() in ("image", "img", "jpg", "png") and _is_binary(f.type)]
    if not images:
        found = ", ".join(schema.names[:10])
        advice = "rename the one with the bytes of image files to image"
        raise ValueError(f"no column holds images ({advice}); its columns are {found}")
    labels = [name for name in schema.names if kinds.get(name) == "ClassLabel"]
    usual = [name for wanted in LABEL_NAMES for name in schema.names if name.lower() == wanted]
    labels = [name for name in usual if name in labels] + labels or usual
    label = next((name for name in labels if name != images[0] and _is_label(schema.field(name).type)), None)
    names = features[label].get("names") if label and kinds.get(label) == "ClassLabel" else None
    is_list = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return Columns(images[0], label, tuple(names) if names and is_list else ())


def read_schema(file: Any, kind: str) -> pa.Schema:
    if kind == ".parquet":
        return pq.ParquetFile(file).schema_arrow
    with _open_arrow(file) as (schema, _):
        return schema


def count_rows(file: Any, kind: str) -> int:
    if kind == ".parquet":
        return int(pq.ParquetFile(file).metadata.num_rows)
    with _open_arrow(file) as (_, batches):
        return sum(len(batch) for batch in batches)


def read_table(
    file: IO[bytes], kind: str, wanted: Callable[[int], bool], *, follow_paths: bool = False
) -> Iterator[Sample]:
    """Yield the rows of a file as samples, named by their number. `wanted(i)`: whether to read row i.

    With `follow_paths`, an image without bytes is read from its path. Raises pa.ArrowException, OSError or ValueError.
    """
    number = 0
    for images, labels in (_parquet_batches if kind == ".parquet" else _arrow_batches)(file, wanted):
        if images is None:
            yield from (Sample(f"{number + i:08}", None, as_label(each)) for i, each in enumerate(labels))
        else:
            images.validate(full=True)  # a hostile file could point outside its buffers
            for i, label in enumerate(labels):
                item = _item(images[i].as_py(), follow_paths) if wanted(number + i) else None
                yield Sample(f"{number + i:08}", item, as_label(label))
        number += len(labels)


def _parquet_batches(file: IO[bytes], wanted: Callable[[int], bool]) -> Iterator[tuple[Any, list[Any]]]:
    """Yield the images and labels of a few rows at a time; None for images of which none is wanted."""
    metadata = pq.read_metadata(file)
    table = pq.ParquetFile(file, metadata=metadata, pre_buffer=False, buffer_size=_buffer_bytes(metadata, file))
    columns = find_columns(table.schema_arrow)
    start = 0
    for group in range(table.num_row_groups):
        rows = table.metadata.row_group(group).num_rows
        if not 0 <= rows <= MAX_GROUP_ROWS:
            raise ValueError(f"a row group claims {rows:,} rows")
        labels: list[Any] = [None] * rows
        if columns.label:  # small, and far from the images: reading both together would seek
            labels = table.read_row_group(group, columns=[columns.label])[columns.label].to_pylist()
        if not any(wanted(i) for i in range(start, start + rows)):
            yield None, labels
        else:
            done = 0
            # One by one: all rows may share one large value of a dictionary, and each would be a copy of it.
            for batch in table.iter_batches(1, row_groups=[group], columns=[columns.image], use_threads=False):
                yield batch.column(0), labels[done : done + len(batch)]
                done += len(batch)
        start += rows


def _buffer_bytes(metadata: pq.FileMetaData, file: IO[bytes]) -> int:
    """Return the size of the buffer that columns are read through; 0 reads each column of a row group at once.

    A buffer saves memory. But with one, Arrow reserves the length that a page claims, up to 2 GB, even in a small file.
    """
    groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    chunks = [group.column(column) for group in groups for column in range(group.num_columns)]
    largest = max((chunk.total_compressed_size for chunk in chunks), default=0)
    file.seek(0, 2)
    if largest > file.tell():
        raise ValueError(f"a column claims {largest:,} bytes, more than the file has")
    return BUFFER_BYTES if largest > MAX_CHUNK_BYTES else 0


def _arrow_batches(file: IO[bytes], wanted: Callable[[int], bool]) -> Iterator[tuple[Any, list[Any]]]:
    with _open_arrow(file) as (schema, batches):
        columns = find_columns(schema)
        for batch in batches:
            labels: list[Any] = [None] * len(batch)
            if columns.label:
                batch.column(columns.label).validate(full=True)
                labels = batch.column(columns.label).to_pylist()
            yield batch.column(columns.image), labels


@contextmanager
def _open_arrow(file: Any) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    """Open an Arrow stream, which datasets write, or an Arrow file."""
    start = find_stream(file)
    check_uncompressed(file, start)
    file.seek(start)
    with pa.ipc.open_stream(file) as stream:
        yield stream.schema, iter(stream)


def _item(value: Any, follow_paths: bool) -> Item:
    content, path = (value.get("bytes"), value.get("path")) if isinstance(value, dict) else (value, None)
    if isinstance(content, bytes):
        if len(content) > MAX_FILE_BYTES:
            return UnreadableImageError(f"its {len(content):,} bytes exceed {MAX_FILE_BYTES:,}")
        return content
    if isinstance(path, str) and follow_paths:
        return path
    return UnreadableImageError("the row has no bytes of an image")


def _features(schema: pa.Schema) -> dict[str, Any]:
    """Return what the datasets package wrote about the columns."""
    try:
        info = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        features = info["info"]["features"]
        return features if isinstance(features, dict) else {}
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}


def _is_image_struct(kind: pa.DataType) -> bool:
    if not pa.types.is_struct(kind):
        return False
    fields = {kind.field(i).name: kind.field(i).type for i in range(kind.num_fields)}
    return "bytes" in fields and _is_binary(fields["bytes"])


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_label(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind))
