"""Embeddings survive the disk bit by bit, in every format, with hostile names; damage is one line."""

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import torch.nn.functional as F

from aag.errors import AAGError
from aag.serving.table import FORMATS, EmbeddingTable, find_shards, read_table, shard_file, write_table, write_tables

NAMES = ["a/ü.jpg", "b 'x' \"y\".png", "<b>&amp;</b>.gif", "新/照片.jpg", "line\nbreak, comma.png", "NA"]


def make_table(count=6, width=5, **options):
    generator = torch.Generator().manual_seed(count)
    names = (NAMES * (1 + count // len(NAMES)))[:count]
    return EmbeddingTable(
        names,
        F.normalize(torch.randn(count, width, generator=generator), dim=1),
        torch.randn(count, 3, generator=generator),
        columns={"cluster": list(range(count)), "x": [i / 3 for i in range(count)], "label": ["a"] * count},
        metadata={"model": "0123", "source": "/somewhere/é"},
        **options,
    )


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_keeps_names_numbers_and_columns(tmp_path, suffix):
    first, second = make_table(), make_table(4)
    write_tables(tmp_path / f"out{suffix}", [first, second])
    found = read_table(tmp_path / f"out{suffix}")
    assert found.names == first.names + second.names
    assert torch.equal(found.embeddings, torch.cat([first.embeddings, second.embeddings]))
    assert torch.equal(found.features, torch.cat([first.features, second.features]))
    assert found.columns == {name: values + second.columns[name] for name, values in first.columns.items()}
    assert found.metadata == ({} if suffix == ".csv" else first.metadata)
    assert read_table(tmp_path / f"out{suffix}", features=False).features is None
    assert [path.name for path in tmp_path.iterdir()] == [f"out{suffix}"]  # no temporary file is left


@pytest.mark.parametrize("suffix", FORMATS)
def test_labels_that_look_like_numbers_stay_text(tmp_path, suffix):
    table = EmbeddingTable(["a", "b", "c"], torch.eye(3), columns={"label": ["01", "1", ""]})
    write_table(tmp_path / f"out{suffix}", table)
    assert read_table(tmp_path / f"out{suffix}").columns == table.columns


@pytest.mark.parametrize("suffix", [".parquet", ".npz"])
def test_thumbnails_are_kept_and_may_be_missing(tmp_path, suffix):
    pictures = [b"\xff\xd8one", b"", b"two", b"", b"", b"six"]
    write_table(tmp_path / f"out{suffix}", make_table(thumbnails=pictures))
    assert read_table(tmp_path / f"out{suffix}").thumbnails == pictures
    assert read_table(tmp_path / f"out{suffix}", thumbnails=False).thumbnails is None


def test_the_parquet_has_the_types_that_other_programs_expect(tmp_path):
    write_table(tmp_path / "out.parquet", make_table(thumbnails=[b"x"] * 6))
    schema = pq.read_schema(tmp_path / "out.parquet")
    assert schema.field("path").type == pa.string()
    assert schema.field("embedding").type == pa.list_(pa.float32(), 5)
    assert schema.field("thumbnail").type == pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def test_further_columns_may_hold_structures(tmp_path):
    neighbours = [{"ids": [1, 2], "distances": [0.5, 0.25]}] * 2
    table = EmbeddingTable(["a", "b"], torch.eye(2), columns={"neighbours": neighbours})
    write_table(tmp_path / "out.parquet", table)
    assert read_table(tmp_path / "out.parquet").columns == {"neighbours": neighbours}
    with pytest.raises(AAGError, match=r"npz cannot hold the column 'neighbours'"):
        write_table(tmp_path / "out.npz", table)


def test_embeddings_of_other_programs_are_normalised(tmp_path):
    pq.write_table(pa.table({"path": ["a", "b"], "embedding": [[3.0, 4.0], [0.0, 2.0]]}), tmp_path / "theirs.parquet")
    assert read_table(tmp_path / "theirs.parquet").embeddings.tolist() == pytest.approx(np.array([[0.6, 0.8], [0, 1]]))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"path": ["a", "b"], "embedding": [[1.0], [1.0, 2.0]]}, "different lengths"),
        ({"path": ["a"], "embedding": [[float("nan")]]}, "NaN"),
        ({"path": ["a"]}, "embedding"),
        ({"path": pa.array([], pa.string()), "embedding": pa.array([], pa.list_(pa.float32(), 3))}, "no rows"),
    ],
)
def test_tables_that_make_no_sense_are_one_line(tmp_path, rows, message):
    pq.write_table(pa.table(rows), tmp_path / "bad.parquet")
    with pytest.raises(AAGError, match=message) as error:
        read_table(tmp_path / "bad.parquet")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("metadata", ["[" * 100_000, "[]", '{"key": 3}', "{"])
def test_metadata_of_others_is_one_line(tmp_path, metadata):
    table = pa.table({"path": ["a"], "embedding": [[1.0]]}).replace_schema_metadata({"aag": metadata})
    pq.write_table(table, tmp_path / "bad.parquet")
    np.savez(tmp_path / "bad.npz", path=np.array(["a"]), embedding=np.ones((1, 1)), metadata=np.array(metadata))
    for name in ("bad.parquet", "bad.npz"):
        with pytest.raises(AAGError, match="its metadata is not text by name"):
            read_table(tmp_path / name)


@pytest.mark.parametrize("suffix", FORMATS)
def test_damaged_and_missing_files_are_one_line(tmp_path, suffix):
    path = tmp_path / f"out{suffix}"
    with pytest.raises(AAGError, match="no such file"):
        read_table(path)
    path.write_bytes(b"PAR1 nothing of the kind" * 5)
    with pytest.raises(AAGError, match="cannot read embeddings") as error:
        read_table(path)
    assert "\n" not in str(error.value)
    write_table(path, make_table())
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])  # a copy that was interrupted
    if suffix != ".csv":
        with pytest.raises(AAGError, match="cannot read embeddings"):
            read_table(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(AAGError, match="not a regular file"):
        read_table(path)


@pytest.mark.parametrize(
    "columns",
    [
        {"path": [1], "embedding": [[1.0]]},
        {"path": pa.array([None], pa.string()), "embedding": [[1.0]]},
        {"path": ["a"], "embedding": ["b"]},
        {"path": ["a"], "embedding": [None]},
    ],
)
def test_columns_of_other_types_are_one_line(tmp_path, columns):
    pq.write_table(pa.table(columns), tmp_path / "out.parquet")
    with pytest.raises(AAGError, match="cannot read embeddings"):
        read_table(tmp_path / "out.parquet")
    np.savez(tmp_path / "out.npz", path=["a"], embedding=[1.0])
    with pytest.raises(AAGError, match="cannot read embeddings"):
        read_table(tmp_path / "out.npz")


def test_wrong_tables_are_refused():
    with pytest.raises(AAGError, match="the column name 'path' is reserved"):
        EmbeddingTable(["a"], torch.ones(1, 1), columns={"path": ["b"]})
    with pytest.raises(AAGError, match="2 rows for 1 names"):
        EmbeddingTable(["a"], torch.ones(2, 1))
    with pytest.raises(AAGError, match=r"use one of \.parquet"):
        read_table("embeddings.txt")


def test_an_error_keeps_the_old_file(tmp_path):
    write_table(tmp_path / "out.parquet", make_table())

    def failing():
        yield make_table(3)
        raise AAGError("stopped")

    with pytest.raises(AAGError, match="stopped"):
        write_tables(tmp_path / "out.parquet", failing())
    assert len(read_table(tmp_path / "out.parquet")) == 6
    with pytest.raises(AAGError, match="cannot write"):
        write_table(tmp_path / "missing" / "out.parquet", make_table())


def test_all_shards_are_read_as_one_table(tmp_path):
    out = tmp_path / "out.parquet"
    for number in (1, 2):
        write_table(shard_file(out, number, 3), make_table(number))
    with pytest.raises(AAGError, match="1 of 3 shards are missing"):
        read_table(out)
    write_table(shard_file(out, 3, 3), make_table(3))
    assert len(read_table(out)) == 6
    write_table(shard_file(out, 1, 2), make_table(1))
    with pytest.raises(AAGError, match="different counts"):
        find_shards(out)


@pytest.mark.parametrize("column", ["path", "thumbnail"])
def test_tables_whose_rows_share_a_long_text_are_refused(tmp_path, monkeypatch, column):
    """A few kilobytes then take any amount of memory."""
    long = pa.DictionaryArray.from_arrays(pa.array([0] * 200, pa.int32()), pa.array(["x" * 1_000_000]))
    columns = {"path": [f"{i}" for i in range(200)], "embedding": [[1.0, 0.0]] * 200}
    columns[column] = long if column == "path" else pa.StructArray.from_arrays([long.cast(pa.binary())], ["bytes"])
    path = tmp_path / "out.parquet"
    pq.write_table(pa.table(columns), path, compression="zstd", dictionary_pagesize_limit=2**24, store_schema=False)
    assert path.stat().st_size < 20_000
    monkeypatch.setattr("aag.serving.arrow.available_memory", lambda: 400_000_000)
    with pytest.raises(AAGError, match="its values take more than 100 MB of memory"):
        read_table(path)
