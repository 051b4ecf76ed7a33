"""A file has the same numbers wherever it stands, nothing readable is lost, and a killed process continues."""

import io
import multiprocessing
import os
import random
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from aag import data, nets
from aag.data import parallel_decode
from aag.errors import AAGError
from aag.serving import embedder as embedding
from aag.serving.embed import embed_folder, load_or_embed
from aag.serving.embed_file import embed_to_file, parse_shard, shard_indices
from aag.serving.embedder import Embedder, hash_model
from aag.serving.sources import ImageSource, class_folders, open_source
from aag.serving.table import concatenate, read_table, write_table


def by_name(table):
    return dict(zip(table.names, table.embeddings, strict=True))


# --- numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spec",
    [
        nets.EncoderSpec(width=8),
        nets.EncoderSpec(network="resnet50", width=4, image_size=32, resize_size=40, embedding=48),
        nets.EncoderSpec(network="vit_tiny_patch16_224", image_size=32, head="none"),
    ],
    ids=lambda spec: spec.network,
)
def test_a_file_has_the_same_bits_alone_in_a_folder_and_in_any_order(photos, spec):
    embedder = Embedder(nets.build(spec, seed=1).eval())
    files = sorted(str(path) for path in photos.rglob("*.png"))[:20]
    shuffled = random.Random(0).sample(files, len(files))
    ordered, other = by_name(embed_folder(embedder, files)), by_name(embed_folder(embedder, shuffled))
    assert all(torch.equal(ordered[name], other[name]) for name in files)
    alone = embed_folder(embedder, files[13])
    assert torch.equal(alone.embeddings[0], ordered[files[13]])


def test_embeddings_are_those_of_the_encoder(embedder, photos):
    table = embed_folder(embedder, photos, features=True)
    loaded = data.load(photos)
    features, embeddings = embedder.encoder.encode(loaded.images)
    assert table.names == sorted(table.names)
    assert len(table) == 50
    torch.testing.assert_close(table.embeddings, embeddings, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(table.features, features, rtol=1e-5, atol=1e-5)
    assert table.columns["label"] == [name.split("/")[0] for name in table.names]


def test_files_sets_and_arrays_have_names(embedder, photos, tmp_path):
    assert embed_folder(embedder, [photos / "cats/00.png"]).names == [f"{photos}/cats/00.png"]
    two = embed_folder(embedder, [photos / "cats", photos / "dogs/01.png"])
    assert two.names[0] == f"{photos}/cats/00.png"
    assert two.names[-1] == f"{photos}/dogs/01.png"
    np.savez(tmp_path / "set.npz", images=np.zeros((3, 8, 10, 3), np.uint8))
    assert embed_folder(embedder, tmp_path / "set.npz").names == ["train/00000", "train/00001", "train/00002"]


@pytest.mark.parametrize("side", [24, 48])
def test_thumbnails_are_jpegs_of_the_images(embedder, photos, monkeypatch, side):
    if side < embedder.size:
        monkeypatch.setattr(ImageSource, "load", lambda *_: pytest.fail("decoded an image again"))
    table = embed_folder(embedder, photos / "cats", thumbnails=side)
    pixels = np.asarray(Image.open(io.BytesIO(table.thumbnails[3])))
    expected = np.asarray(Image.open(photos / "cats" / table.names[3]).resize((side, side), Image.Resampling.BICUBIC))
    assert pixels.shape == (side, side, 3)
    assert np.abs(pixels.astype(int) - expected).mean() < 12


def test_class_folders_are_labels_where_there_are_two():
    assert class_folders(["a/1", "b/2", "b/c/3"]) == ["a", "b", "b"]
    assert class_folders(["train/a/1", "test/b/2"]) == ["a", "b"]
    assert class_folders(["a/1", "b/1", "2"]) == ["a", "b", ""]
    assert class_folders(["a/1", "2"]) is None
    assert class_folders(["a/1", "a/2"]) is None


# --- bad input --------------------------------------------------------------------------------------------------------


def test_what_cannot_be_read_is_skipped_and_listed(embedder, photos, tmp_path):
    folder = tmp_path / "mixed"
    shutil.copytree(photos / "cats", folder)
    (folder / "empty.jpg").touch()
    (folder / "text.png").write_text("no image")
    os.mkfifo(folder / "pipe.jpg")
    (folder / "loop").symlink_to(folder)
    (folder / "<img src=x> 'q'.png").write_bytes((folder / "00.png").read_bytes())
    Path(os.fsdecode(os.fsencode(folder) + b"/bad\xff.png")).write_bytes((folder / "00.png").read_bytes())
    done = embed_to_file(embedder, open_source(folder, embedder.size), tmp_path / "out.parquet")
    table = read_table(tmp_path / "out.parquet")
    assert done.count == len(table) == 26
    assert "<img src=x> 'q'.png" in table.names
    reasons = dict(line.rsplit(": ", 1) for line in done.skipped_file.read_text().splitlines())
    assert reasons == {
        "empty.jpg": "empty file",
        "text.png": "not an image Pillow can read",
        "pipe.jpg": "not a regular file",
        "bad?.png": "its name is not UTF-8; rename it",
    }
    assert torch.equal(by_name(table)["00.png"], by_name(table)["<img src=x> 'q'.png"])


def test_nothing_readable_is_one_line(embedder, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(AAGError, match="no image in"):
        open_source(tmp_path / "empty", 32)
    (tmp_path / "empty/broken.png").write_text("x")
    for work in (
        lambda: embed_folder(embedder, tmp_path / "empty"),
        lambda: embed_to_file(embedder, open_source(tmp_path / "empty", 32), tmp_path / "out.parquet"),
    ):
        with pytest.raises(AAGError, match=r"no readable image in .*empty: broken\.png: not an image"):
            work()
    assert not (tmp_path / "out.parquet.parts").exists()
    with pytest.raises(AAGError, match="no such file or folder: nowhere"):
        open_source("nowhere", 32)
    with pytest.raises(AAGError, match="cannot write"):
        embed_to_file(embedder, open_source("sample", 32), Path("/proc/none/out.parquet"))


# --- parts ------------------------------------------------------------------------------------------------------------


def test_a_killed_process_loses_at_most_one_part(model, embedder, photos, tmp_path, monkeypatch):
    monkeypatch.setattr(embedding, "PART_IMAGES", 16)
    out, source = tmp_path / "out.parquet", open_source(photos, embedder.size)

    def halt(done: int, total: int) -> None:
        if done > 32:
            signal.pause()  # until it is killed

    process = multiprocessing.get_context("fork").Process(
        target=embed_to_file, args=(embedder, source, out), kwargs={"on_progress": halt}
    )
    process.start()
    while len(list(out.with_name("out.parquet.parts").glob("*.parquet"))) < 2:
        assert process.is_alive()
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not out.exists()
    calls = []
    done = embed_to_file(embedder, source, out, on_progress=lambda *progress: calls.append(progress))
    assert done.new <= 18  # of 50: two parts of 16 were kept
    assert calls[0] == (50 - done.new, 50)
    assert calls[-1] == (50, 50)
    whole = embed_folder(embedder, photos)
    assert read_table(out).names == whole.names
    assert torch.equal(read_table(out).embeddings, whole.embeddings)
    assert not out.with_name("out.parquet.parts").exists()


def test_a_complete_file_is_not_made_again_until_something_changes(embedder, photos, tmp_path):
    folder, out = tmp_path / "photos", tmp_path / "out.npz"
    shutil.copytree(photos, folder)
    assert embed_to_file(embedder, open_source(folder, embedder.size), out).new == 50
    assert embed_to_file(embedder, open_source(folder, embedder.size), out).new == 0
    assert embed_to_file(embedder, open_source(folder, embedder.size), out, features=True).new == 50
    (folder / "cats/00.png").write_bytes((folder / "dogs/01.png").read_bytes())
    assert embed_to_file(embedder, open_source(folder, embedder.size), out, features=True).new == 50
    rows = by_name(read_table(out))
    assert torch.equal(rows["cats/00.png"], rows["dogs/01.png"])


def test_two_at_once_do_the_work_once(embedder, photos, tmp_path):
    source, out = open_source(photos, embedder.size), tmp_path / "out.parquet"
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda _: embed_to_file(embedder, source, out), range(2)))
    assert sorted(each.new for each in done) == [0, len(source)]
    assert len(read_table(out)) == done[0].count == done[1].count
    assert not out.with_name("out.parquet.parts").exists()


def test_parts_of_other_settings_are_discarded_and_strange_files_kept(embedder, photos, tmp_path):
    folder = tmp_path / "out.parquet.parts"
    folder.mkdir()
    (folder / "0-50.parquet").write_text("of another model")
    (folder / "key").write_text("another")
    (folder / "mine.txt").write_text("keep me")
    assert embed_to_file(embedder, open_source(photos, embedder.size), tmp_path / "out.parquet").count == 50
    assert [path.name for path in folder.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("count", [1, 3, 8])
def test_the_shards_in_order_are_the_whole(embedder, photos, tmp_path, count):
    source = open_source(photos, embedder.size)
    tables = []
    for number in range(1, count + 1):
        out = tmp_path / f"{number}.parquet"
        embed_to_file(embedder, source, out, indices=shard_indices(len(source), number, count))
        tables.append(read_table(out))
    whole, joined = embed_folder(embedder, photos), concatenate(tables)
    assert joined.names == whole.names
    assert torch.equal(joined.embeddings, whole.embeddings)


def test_shards_are_numbered_from_one():
    assert parse_shard("3/8") == (3, 8)
    for wrong in ("0/8", "9/8", "3", "a/b", "3/8/1", ""):
        with pytest.raises(AAGError, match="such as 3/8"):
            parse_shard(wrong)


# --- the cache --------------------------------------------------------------------------------------------------------


def test_a_folder_is_embedded_once(embedder, photos, tmp_path):
    folder = tmp_path / "photos"
    shutil.copytree(photos, folder)
    calls = []
    first = load_or_embed(embedder, folder, on_progress=lambda *progress: calls.append(progress))
    assert calls
    calls.clear()
    again = load_or_embed(embedder, folder, on_progress=lambda *progress: calls.append(progress))
    assert not calls
    assert torch.equal(first.embeddings, again.embeddings)
    assert again.metadata["source"] == str(folder)
    (folder / "cats/00.png").unlink()
    assert len(load_or_embed(embedder, folder)) == 49


def test_images_that_are_left_out_are_counted_each_time(embedder, photos, tmp_path, caplog):
    folder = tmp_path / "photos"
    shutil.copytree(photos, folder)
    (folder / "broken.jpg").write_text("x")
    for _ in range(2):  # the second time from the cache
        caplog.clear()
        assert len(load_or_embed(embedder, folder)) == 50
        assert caplog.messages == ["left out 1 image that cannot be read; aag embed lists the reasons"]


@pytest.mark.parametrize("damaged", ["end", "features"])
def test_a_damaged_cache_is_made_again(embedder, photos, tmp_path, caplog, damaged):
    first = load_or_embed(embedder, photos, features=True)
    (cached,) = (tmp_path / "cache/embeddings").iterdir()
    content = bytearray(cached.read_bytes())
    if damaged == "end":
        del content[-100:]
    else:
        start = pq.ParquetFile(cached).metadata.row_group(0).column(2).data_page_offset
        content[start : start + 100] = bytes(100)
    cached.write_bytes(content)
    assert torch.equal(load_or_embed(embedder, photos, features=True).embeddings, first.embeddings)
    load_or_embed(embedder, photos, features=True)
    assert caplog.messages == [f"the cached embeddings in {cached} are damaged; embedding the images again"]


def test_an_embeddings_file_must_be_of_the_model(embedder, photos, tmp_path):
    write_table(tmp_path / "out.parquet", embed_folder(embedder, photos))
    assert len(load_or_embed(embedder, tmp_path / "out.parquet")) == 50
    other = Embedder(nets.build(nets.EncoderSpec(width=4, embedding=16), seed=4).eval())
    with pytest.raises(AAGError, match="made by another model"):
        load_or_embed(other, tmp_path / "out.parquet")
    write_table(tmp_path / "out.csv", embed_folder(embedder, photos))  # says nothing about its model
    with pytest.raises(AAGError, match="has 16 dimensions, this model 128"):
        load_or_embed(nets.build(nets.EncoderSpec(width=4)).eval(), tmp_path / "out.csv")


def test_the_hash_is_of_weights_and_description(model):
    one, two = nets.load(model), nets.load(model)
    assert hash_model(one) == hash_model(two)
    with torch.no_grad():
        next(two.parameters())[0] += 1
    assert hash_model(one) != hash_model(two)


@pytest.mark.gpu
def test_the_gpu_gives_the_same_bits_for_a_file_and_nearly_the_cpus(model, photos):
    cpu, gpu = embed_folder(Embedder(model, device="cpu"), photos), Embedder(model, device="cuda")
    files = sorted(str(path) for path in photos.rglob("*.png"))
    ordered = embed_folder(gpu, files)
    reversed_ = embed_folder(gpu, files[::-1])
    assert torch.equal(ordered.embeddings, reversed_.embeddings.flip(0))
    assert (ordered.embeddings - cpu.embeddings).abs().max() < 1e-4


@pytest.mark.gpu
def test_jpegs_decoded_on_the_gpu_are_close(model, photos, tmp_path):
    for path in sorted(photos.rglob("*.png"))[:20]:
        image = Image.open(path).resize((120, 90), Image.Resampling.BICUBIC)
        exif = Image.Exif()
        exif[0x0112] = 6  # rotated by 90 degrees
        image.save(tmp_path / f"{path.stem}.jpg", quality=95)
        image.save(tmp_path / f"{path.stem}-rotated.jpg", quality=95, exif=exif)
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 broken")
    cpu = embed_folder(Embedder(model, device="cuda"), tmp_path)
    gpu = embed_folder(Embedder(model, device="cuda", decode="gpu"), tmp_path)
    assert cpu.names == gpu.names
    assert (cpu.embeddings * gpu.embeddings).sum(dim=1).min() > 0.99


def test_files_decoded_in_processes_give_the_same_bits(model, photos, monkeypatch):
    (photos / "broken.png").write_bytes(b"no image")
    embedder = Embedder(model, device="cpu")
    in_threads = embed_folder(embedder, photos)
    monkeypatch.setattr(parallel_decode, "PROCESS_FILES", 1)
    in_processes = embed_folder(embedder, photos)
    assert in_processes.names == in_threads.names
    assert torch.equal(in_processes.embeddings, in_threads.embeddings)
