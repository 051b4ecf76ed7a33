"""Targets: shards of images, as tar archives and as tables."""

import io
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from aag.data.shards import Shard, Shards
from fuzz.archives import write_tars
from fuzz.target import Target


@cache
def _pictures() -> list[bytes]:
    """Return small images in two formats."""
    contents = []
    for number, kind in enumerate(("PNG", "JPEG", "PNG", "JPEG")):
        content = io.BytesIO()
        Image.new("RGB", (6, 5), (60 * number, 90, 20)).save(content, kind)
        contents.append(content.getvalue())
    return contents


@cache
def tar_seeds() -> list[bytes]:
    """Return WebDataset shards, in the formats that tar has."""
    members = {}
    for number, picture in enumerate(_pictures()):
        contents = {"png": picture, "cls": b"%d" % number, "json": b'{"label": "cat", "n": [1.5, null]}'}
        members |= {f"folder/{number:04}.{extension}": content for extension, content in contents.items()}
    return write_tars(members)


def _table() -> pa.Table:
    features = '{"info": {"features": {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": ["a"]}}}}'
    images = [{"bytes": picture, "path": None} for picture in _pictures()]
    table = pa.table({"image": images, "label": [0, 1, 0, 1], "note": ["x", "yy", None, "z"]})
    return table.replace_schema_metadata({"huggingface": features})


@cache
def parquet_seeds() -> list[bytes]:
    """Return tables with and without compression, dictionaries and structs."""
    table = _table()
    plain = pa.table({"jpg": _pictures(), "label": ["a", "b", "a", "b"]})
    seeds = []
    for each, options in (
        (table, {"compression": "snappy"}),
        (table, {"compression": "none", "use_dictionary": False, "row_group_size": 2}),
        (plain, {"compression": "zstd"}),
        (plain, {"compression": "none", "data_page_version": "2.0"}),
    ):
        content = io.BytesIO()
        pq.write_table(each, content, **options)
        seeds.append(content.getvalue())
    return seeds


@cache
def arrow_seeds() -> list[bytes]:
    """Return streams and files, with and without compression."""
    table, seeds = _table(), []
    for write in (pa.ipc.new_stream, pa.ipc.new_file):
        for compression in (None, "zstd"):
            content = io.BytesIO()
            with write(content, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
                writer.write_table(table, max_chunksize=2)
            seeds.append(content.getvalue())
    return seeds


def _read(path: Path) -> None:
    """Read all samples as a store does, and the names of the classes."""
    shards = Shards(str(path), [Shard(str(path), "shard", path.stat().st_size, "")])
    shards.class_names()
    for part in shards.parts(0, (), 32):
        assert len(part.items) == len(part.names) == len(part.labels)


TARGETS = {
    "shard-tar": Target(tar_seeds, _read, ".tar"),
    "shard-parquet": Target(parquet_seeds, _read, ".parquet"),
    "shard-arrow": Target(arrow_seeds, _read, ".arrow"),
}
