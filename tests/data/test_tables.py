import io
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shards import same_images, write_parquet

from aag import data
from aag.data.tables import find_columns, read_table


@pytest.fixture(scope="module")
def saved(tmp_path_factory, images):
    """A data set with classes, a test split and a column before the images, by the datasets package."""
    import datasets

    features = datasets.Features(
        {"id": datasets.Value("int64"), "picture": datasets.Image(), "kind": datasets.ClassLabel(names=["cat", "dog"])}
    )
    rows = {
        "id": list(range(25)),
        "picture": [{"bytes": image, "path": f"{i}.png"} for i, image in enumerate(images)],
        "kind": [i % 2 for i in range(24)] + [None],
    }
    whole = datasets.Dataset.from_dict(rows, features=features)
    both = datasets.DatasetDict({"train": whole.select(range(20)), "validation": whole.select(range(20, 25))})
    folder = tmp_path_factory.mktemp("saved")
    datasets.disable_progress_bars()
    whole.save_to_disk(folder / "one", num_shards=2)
    both.save_to_disk(folder / "both")
    (folder / "hub/data").mkdir(parents=True)
    (folder / "hub/README.md").write_text("A data set.")
    for split, part in both.items():
        part.to_parquet(folder / f"hub/data/{split}-00000-of-00001.parquet", batch_size=6)
    return folder


def test_saved_dataset_is_read_without_the_package(saved, folder, root, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    found = data.load(saved / "one", image_size=16)
    same_images(found, folder)
    assert found.names[-1] == "data-00001-of-00002/00000011"
    assert found.classes == ("cat", "dog")
    assert found.labels.tolist() == [i % 2 for i in range(24)] + [-1]
    assert data.survey(saved / "one", sample=5).count == 25


@pytest.mark.parametrize("source", ["both", "hub"])
def test_splits_of_a_saved_dataset(saved, source, folder, root):
    train, test = data.load_pair(saved / source, image_size=16)
    assert (len(train), len(test)) == (20, 5)
    whole = data.load(folder, image_size=16)
    assert (train.images == whole.images[:20]).all()
    assert (test.images == whole.images[20:]).all()
    assert test.labels.tolist() == [0, 1, 0, 1, -1]
    assert test.classes == ("cat", "dog")


def test_dataset_by_name_goes_through_the_package(saved, root, tmp_path, monkeypatch, refused):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    train, test = data.load_pair(f"hf:{saved}/hub", image_size=16)
    assert (len(train), len(test)) == (20, 5)
    assert (train.name, train.classes) == ("hub", ("cat", "dog"))
    only, none = data.load_pair(f"hf:{saved}/hub@validation", image_size=16)
    assert (only.fingerprint(), none) == (test.fingerprint(), None)
    refused(lambda: data.load(f"hf:{saved}/hub@unknown"), "no split unknown", "train, validation")
    refused(lambda: data.load("hf:nobody/nothing"), "cannot load hf:nobody/nothing")
    refused(lambda: data.load("hf:a:b:c"), "hf:OWNER/NAME")
    monkeypatch.setitem(sys.modules, "datasets", None)
    refused(lambda: data.load("hf:nobody/nothing"), "needs datasets", "pip install datasets")


def test_images_of_a_folder_on_the_hub_are_read_by_path(tmp_path, images, folder, root, monkeypatch):
    """The builder of image folders stores paths, not bytes."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    found = data.load(f"hf:{folder}", image_size=16)
    same_images(found, folder)


@pytest.mark.parametrize("options", [{}, {"row_group_size": 7}, {"row_group_size": 7, "use_dictionary": False}])
def test_parquet_of_any_row_groups(tmp_path, images, folder, options):
    path = write_parquet(tmp_path / "a.parquet", images, ["x", "y", None, "x", "y"] * 5, **options)
    found = data.load(path, image_size=16)
    same_images(found, folder)
    assert found.classes == ("x", "y")
    assert found.labels[:4].tolist() == [0, 1, -1, 0]
    train, test = data.load_pair(path, image_size=16, holdout=0.3)
    assert len(train) + len(test) == 25
    assert sorted([*train.names, *test.names]) == found.names


def test_plain_binary_column(tmp_path, images, folder):
    pq.write_table(pa.table({"jpg": images, "y": list(range(25))}), tmp_path / "a.parquet")
    found = data.load(tmp_path / "a.parquet", image_size=16)
    same_images(found, folder)
    assert found.labels.tolist() == list(range(25))


def test_interrupted_table_resumes(tmp_path, images, folder, monkeypatch):
    monkeypatch.setattr("aag.data.encoded.PIXEL_BYTES", 3 * 16 * 16 * 4)
    path = write_parquet(tmp_path / "a.parquet", images, row_group_size=6)

    def interrupt(done: int, total: int) -> None:
        if done >= 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        data.load(path, image_size=16, progress=interrupt)
    reports = []
    same_images(data.load(path, image_size=16, progress=lambda *a: reports.append(a)), folder)
    assert reports[0] == (12, 25)


def test_rows_without_an_image_are_skipped(tmp_path, images, root):
    """A path in a file from elsewhere is not followed: it may be anything on this machine."""
    secret = tmp_path / "secret.png"
    secret.write_bytes(images[0])
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    rows = [{"bytes": None, "path": str(secret)}, {"bytes": images[1], "path": None}, None, {"bytes": b"", "path": ""}]
    pq.write_table(pa.table({"image": pa.array(rows, kind)}), tmp_path / "a.parquet")
    found = data.load(tmp_path / "a.parquet", image_size=16)
    assert found.names == ["a/00000001"]
    assert [line.partition(": ")[2] for line in found.skipped] == [
        "the row has no bytes of an image", "the row has no bytes of an image", "empty file",
    ]  # fmt: skip


def test_damaged_tables_give_one_line(tmp_path, images, root, refused):
    whole = write_parquet(tmp_path / "a.parquet", images).read_bytes()
    for name, content in {"cut": whole[:-100], "text": b"no table" * 100, "empty": b"", "magic": b"PAR1" * 3}.items():
        (tmp_path / f"{name}.parquet").write_bytes(content)
        refused(lambda path=tmp_path / f"{name}.parquet": data.load(path), "no readable image", "1 shard")
        (tmp_path / f"{name}.arrow").write_bytes(content)
        refused(lambda path=tmp_path / f"{name}.arrow": data.load(path), "no readable image", "1 shard")
    pq.write_table(pa.table({"text": ["a"], "label": [1]}), tmp_path / "b.parquet")
    refused(lambda: data.load(tmp_path / "b.parquet"), "no column holds images (rename", "text, label")


@pytest.mark.parametrize("column", ["image", "label"])
def test_arrow_offsets_outside_the_buffer_are_found(tmp_path, images, root, refused, column):
    columns = {"image": pa.array(images[:3], pa.binary()), "label": pa.array(["cat", "horse", "ox"])}
    table, path = pa.table(columns), tmp_path / "a.arrow"
    with pa.OSFile(str(path), "wb") as out, pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    content, lengths = path.read_bytes(), [len(value.as_py()) for value in columns[column]]
    place = content.index(np.cumsum([0, *lengths]).astype(np.int32).tobytes())
    path.write_bytes(content[: place + 4] + np.int32(len(content)).tobytes() + content[place + 8 :])
    refused(lambda: data.load(path), "no readable image", "out of bounds")


def test_columns_are_chosen_by_type_then_name():
    struct = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema({"label": pa.float32(), "mask": pa.string(), "photo": struct, "cls": pa.int8()})
    assert find_columns(schema).image == "photo"
    assert find_columns(schema).label == "cls"
    features = b'{"info": {"features": {"cls": {"_type": "ClassLabel", "names": 3}}}}'
    hostile = schema.with_metadata({"huggingface": features})
    assert find_columns(hostile).classes == ()


# --- hostile tables ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", [pa.ipc.new_stream, pa.ipc.new_file], ids=["stream", "file"])
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_compressed_arrow_files_are_refused(write, compression):
    table, content = pa.table({"image": [b"x" * 1000] * 4, "label": [0, 1, 2, 3]}), io.BytesIO()
    with write(content, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table, max_chunksize=2)
    content.seek(0)
    samples = read_table(content, ".arrow", lambda number: True)
    if compression is None:
        assert [(sample.item, sample.label) for sample in samples] == [(b"x" * 1000, label) for label in range(4)]
    else:
        with pytest.raises(ValueError, match="its batches are compressed; write it without compression"):
            next(samples)


def test_dictionary_columns_next_to_images_are_read():
    words = pa.array(["a", "b", "a"]).dictionary_encode()
    table, content = pa.table({"image": [b"x", b"y", b"z"], "words": words}), io.BytesIO()
    with pa.ipc.new_stream(content, table.schema) as writer:
        writer.write_table(table)
    content.seek(0)
    assert [sample.item for sample in read_table(content, ".arrow", lambda number: True)] == [b"x", b"y", b"z"]
