import io
import json
import os
import tarfile
import tracemalloc

import numpy as np
import pytest
import webdataset
from braceexpand import braceexpand
from shards import encoded, same_images, write_folder, write_shards, write_tar

from aag import data
from aag.data.loading import source_name
from aag.data.shard_files import expand_braces
from aag.data.shards import Shards


def test_shards_are_read_as_webdataset_writes_them(tmp_path, root):
    rng = np.random.default_rng(0)
    photos = [rng.integers(0, 256, (20, 24, 3), np.uint8) for _ in range(12)]
    (tmp_path / "shards").mkdir()
    pattern = str(tmp_path / "shards" / "train-%03d.tar")
    with webdataset.ShardWriter(pattern, maxcount=5, verbose=0) as writer:
        for i, pixels in enumerate(photos):
            writer.write({"__key__": f"a{i:02}", "png": pixels, "cls": i % 3, "json": {"caption": "a photograph"}})
    found = data.load(tmp_path / "shards", image_size=16)
    assert found.names == [f"train-{i // 5:03}/a{i:02}" for i in range(12)]
    assert found.labels.tolist() == [i % 3 for i in range(12)]
    assert found.classes == ("0", "1", "2")
    with_torch = webdataset.WebDataset(braced := str(tmp_path / "shards/train-{000..002}.tar"), shardshuffle=False)
    assert [sample["__key__"] for sample in with_torch] == [name.partition("/")[2] for name in found.names]
    same = data.load(braced, image_size=16)
    assert same.fingerprint() == found.fingerprint()
    assert same.name == "train-{000..002}"


@pytest.mark.parametrize("source", ["shards", "shards/{000..002}.tar", "shards/*.tar"])
def test_shards_give_the_pixels_of_a_folder(tmp_path, images, folder, source):
    write_shards(tmp_path / "shards", images)
    found = data.load(str(tmp_path / source), image_size=16)
    same_images(found, folder)
    assert found.labels is None
    assert len(data.load(tmp_path / "shards/001.tar", image_size=16)) == 10


def test_members_of_a_sample(tmp_path, root):
    images = encoded(5)
    write_tar(
        tmp_path / "a.tar",
        {
            "x/1.input.png": images[0], "x/1.mask.png": images[1], "x/1.json": b'{"label": "dog"}',
            "x/2.PNG": images[1], "x/2.cls": b" cat\n",
            "x/3.txt": b"no image", "x/3.cls": b"cat",
            "x/4.png": b"broken", "x/4.cls": b"cat",
            "x/5.png": images[2], "x/5.json": b"{" * 5000,
            "y/5.png": images[3], "y/5.json": json.dumps({"cls": 7.0}).encode(),
            "y/.hidden.png": images[4],
        },
    )  # fmt: skip
    found = data.load(tmp_path / "a.tar", image_size=16)
    assert found.names == ["a/x/1", "a/x/2", "a/x/5", "a/y/5"]
    assert found.classes == ("7", "cat", "dog")
    assert found.labels.tolist() == [2, 1, -1, 0]
    assert found.skipped == ("a/x/3: the sample has no image", "a/x/4: not an image Pillow can read")
    some = data.load(tmp_path / "a.tar", image_size=16, limit=4)
    assert 1 <= len(some) < 4
    assert (some.images == found.images[[found.names.index(name) for name in some.names]]).all()


@pytest.mark.parametrize("names", [("train-", "val-"), ("train/", "test/")])
def test_splits_by_file_name_or_subfolder(tmp_path, images, root, names):
    write_shards(tmp_path / "set", images[:20], classes=2, prefix=names[0])
    write_shards(tmp_path / "set", images[20:], classes=3, prefix=names[1])
    train, test = data.load_pair(tmp_path / "set", image_size=16)
    assert (len(train), len(test)) == (20, 5)
    assert train.classes == test.classes == ("0", "1", "2")
    assert data.load(tmp_path / "set", split="test", image_size=16).names == test.names


def test_without_labels_other_splits_are_not_read(tmp_path, images, root, refused):
    write_shards(tmp_path / "set", images[:20], classes=2, prefix="train-")
    (tmp_path / "set" / "test-000.tar").write_bytes(b"not a tar archive")
    assert len(data.load(tmp_path / "set", image_size=16, labels="none")) == 20
    refused(lambda: data.load_pair(tmp_path / "set", image_size=16, labels="none"), "test-000")


def test_holdout_by_content(tmp_path, images, root, monkeypatch, refused):
    write_shards(tmp_path / "set", images, classes=2)
    train, test = data.load_pair(tmp_path / "set", image_size=16, holdout=0.3)
    assert len(train) + len(test) == 25
    assert 2 <= len(test) <= 15
    whole = data.load(tmp_path / "set", image_size=16)
    rows = [whole.names.index(name) for name in test.names]
    assert (whole.images[rows] == test.images).all()
    assert (whole.labels[rows] == test.labels).all()
    monkeypatch.setattr(Shards, "scan", None)  # what is stored is not read again
    assert data.load(tmp_path / "set", split="test", image_size=16, holdout=0.3).names == test.names
    monkeypatch.undo()
    write_shards(tmp_path / "unlabelled", images)
    refused(lambda: data.load_pair(tmp_path / "unlabelled", holdout=0.3), "has no labels")


def test_limit_reads_no_image_to_choose(tmp_path, images, root, monkeypatch):
    write_shards(tmp_path / "set", images)
    monkeypatch.setattr(Shards, "scan", None)
    assert len(data.load(tmp_path / "set", image_size=16, limit=5)) == 5


def test_interrupted_decoding_resumes_inside_a_shard(tmp_path, images, folder, monkeypatch):
    monkeypatch.setattr("aag.data.encoded.PIXEL_BYTES", 3 * 16 * 16 * 4)
    write_shards(tmp_path / "shards", images)

    def interrupt(done: int, total: int) -> None:
        if done >= 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        data.load(tmp_path / "shards", image_size=16, progress=interrupt)
    reports = []
    same_images(data.load(tmp_path / "shards", image_size=16, progress=lambda *a: reports.append(a)), folder)
    assert reports[0][0] == 12 + 4  # the first chunk after the interruption
    assert reports[-1] == (25, 25)
    assert all(done <= total for done, total in reports)


def test_changed_shard_is_decoded_again(tmp_path, images, root):
    write_shards(tmp_path / "shards", images)
    data.load(tmp_path / "shards", image_size=16)
    write_shards(tmp_path / "shards", encoded(24, seed=1))
    assert len(data.load(tmp_path / "shards", image_size=16)) == 24
    assert len(list(root.glob("images/*/*.u8"))) == 1


def test_damaged_shard_loses_only_its_own_rest(tmp_path, images, root):
    write_shards(tmp_path / "shards", images)
    os.truncate(tmp_path / "shards/001.tar", 5000)
    found = data.load(tmp_path / "shards", image_size=16)
    assert 15 < len(found) < 25
    assert found.names[-1] == "002/0024"
    assert len(found.skipped) == 1
    assert found.skipped[0].startswith("001: damaged after")


def test_holdout_of_a_shard_that_ends_inside_an_image(tmp_path, images, root):
    """If that image is not wanted, it is not read, and the damage is found one sample later."""
    write_shards(tmp_path / "shards", images, classes=2)
    with tarfile.open(tmp_path / "shards/000.tar") as shard:
        ends = [member.offset_data + member.size for member in shard if member.name.endswith(".png")]
    for end in ends[4:]:
        os.truncate(tmp_path / "shards/000.tar", end - 100)
        whole = data.load(tmp_path / "shards", image_size=16)
        train, test = data.load_pair(tmp_path / "shards", image_size=16, holdout=0.3)
        assert sorted([*train.names, *test.names]) == whole.names
        write_shards(tmp_path / "shards", images, classes=2)


def test_damaged_header_is_not_taken_for_the_end(tmp_path, images, root):
    path = write_tar(tmp_path / "a.tar", {f"{i}.png": image for i, image in enumerate(images[:3])})
    content = bytearray(path.read_bytes())
    content[512 + -(-len(images[0]) // 512) * 512 + 150] ^= 0x55  # the checksum of the second header
    path.write_bytes(content)
    found = data.load(path, image_size=16)
    assert found.names == ["a/0"]
    assert found.skipped == ("a: damaged after 1 samples: a header is damaged",)


def hostile_header(name: str, kind: bytes, size: int) -> bytes:
    member = tarfile.TarInfo(name)
    member.type, member.size = kind, max(size, 0)
    block = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    if size < 0:
        block[124:136] = b"\xff" + (2**88 + size).to_bytes(11, "big")
        block[148:156] = b"        "
        block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


@pytest.mark.parametrize(
    ("kind", "size"),
    [(tarfile.REGTYPE, 2**40), (tarfile.XHDTYPE, 2**33), (tarfile.GNUTYPE_LONGNAME, 2**33), (tarfile.REGTYPE, -512),
     (tarfile.REGTYPE, -1024), (tarfile.GNUTYPE_SPARSE, 2**30), (tarfile.XHDTYPE, -512)],
)  # fmt: skip
def test_hostile_headers_end_a_shard(tmp_path, root, kind, size):
    """Member sizes that would be read forever, or into all memory."""
    path = write_tar(tmp_path / "a.tar", {"1.png": encoded(1)[0]})
    content = path.read_bytes()
    end = 512 + -(-len(encoded(1)[0]) // 512) * 512
    path.write_bytes(content[:end] + hostile_header("2.png", kind, size) + bytes(2048))
    tracemalloc.start()
    found = data.load(path, image_size=16)
    assert tracemalloc.get_traced_memory()[1] < 2**26
    tracemalloc.stop()
    assert found.names == ["a/1"]
    assert found.skipped[-1].startswith("a: damaged after")


def test_what_is_no_shard_is_refused_in_one_line(tmp_path, images, root, refused):
    write_shards(tmp_path / "shards", images)
    refused(lambda: data.load(str(tmp_path / "shards/{000..009}.tar")), "003.tar", "No such file")
    refused(lambda: data.load(str(tmp_path / "shards/x*.tar")), "no file matches")
    refused(lambda: data.load(str(tmp_path / "shards/{0..99999999}.tar")), "more than 1,000,000 shards")
    refused(lambda: data.load(tmp_path / "a.tar.gz"), "compressed", "decompress it")
    os.mkfifo(tmp_path / "pipe.tar")
    refused(lambda: data.load(tmp_path / "pipe.tar"), "not a regular file")
    (tmp_path / "text.tar").write_text("no archive " * 100)
    refused(lambda: data.load(tmp_path / "text.tar"), "no readable image", "1 shard")
    write_tar(tmp_path / "empty.tar", {})
    refused(lambda: data.load(tmp_path / "empty.tar"), "no readable image", "0 samples")
    with pytest.raises(data.loading.AAGError, match="first 1 samples"):
        data.survey(tmp_path / "text.tar")


def test_links_to_themselves_hide_no_shard(tmp_path, images, folder):
    write_shards(tmp_path / "shards", images)
    for i in range(20):  # some are listed before a shard
        (tmp_path / f"shards/loop{i}").symlink_to(f"loop{i}")
    (tmp_path / "shards/loop.tar").symlink_to("loop.tar")
    same_images(data.load(tmp_path / "shards", image_size=16), folder)


def test_images_next_to_shards_make_a_folder(tmp_path, images, folder):
    write_shards(folder, images)
    assert data.load(folder, image_size=16).names[0] == "0000.png"


def test_archive_next_to_extracted_images_is_no_shard(tmp_path, images, root):
    for i, content in enumerate(images[:4]):
        write_folder(tmp_path / f"set/train/{i}", [content])
    write_tar(tmp_path / "set/train.tar", {"x.png": images[5]})
    found = data.load(tmp_path / "set", image_size=16)
    assert found.names == [f"{i}/0000.png" for i in range(4)]
    (tmp_path / "set/train").rename(tmp_path / "set/photos")
    assert len(data.load(tmp_path / "set", image_size=16)) == 4


def test_survey_estimates_the_count(tmp_path, root):
    write_shards(tmp_path / "shards", encoded(10) * 50, per_shard=100)
    found = data.survey(tmp_path / "shards", sample=40)
    assert (found.sampled, found.shorter_side) == (40, 12)
    assert 300 < found.count < 700
    assert data.survey(tmp_path / "shards", sample=1000).count == 500


@pytest.mark.parametrize(
    "pattern",
    ["a.tar", "{000..011}.tar", "a-{8..11}.tar", "{a,b}-{0..2}.tar", "{3..1}", "x{01..3}y{b,}", "{..}", "{a}.tar"],
)
def test_braces_expand_as_in_webdataset(pattern):
    assert list(expand_braces(pattern)) == list(braceexpand(pattern))


def test_archive_is_read_without_seeking_far_back(tmp_path, images, root):
    """A remote archive is read once: positions grow, but for the byte that tarfile checks."""
    from aag.data.tar import read_tar

    path = write_tar(tmp_path / "a.tar", {f"{i}.png": image for i, image in enumerate(images)})
    places = []

    class Watched(io.BytesIO):
        def seek(self, place: int, whence: int = 0) -> int:
            places.append((self.tell(), place))
            return super().seek(place, whence)

    assert len(list(read_tar(Watched(path.read_bytes()), lambda i: True))) == 25
    assert all(to >= at - 512 for at, to in places)


def test_training_and_embedding_take_shards(tmp_path, root):
    import aag
    from aag.serving.embed import load_or_embed
    from aag.serving.sources import open_source, reopen_source

    write_shards(tmp_path / "set", encoded(40), classes=2)
    source = str(tmp_path / "set/{000..003}.tar")
    result = aag.train(source, width=8, epochs=1, out=tmp_path / "run", device="cpu")
    settings = result.run.settings()
    assert settings["data"]["source"] == source
    assert settings["data"]["image_size"] == 32  # chosen by the images' headers
    assert settings["train"]["batch_size"] <= 10  # and by their number
    opened = open_source(source, 32)
    assert (opened.source, opened.names[0], len(opened)) == (source, "000/0000", 40)
    assert opened.labels()[:3] == ["0", "1", "0"]
    table = load_or_embed(result.encoder, source)
    (tmp_path / "set" / "000.tar").rename(tmp_path / "set" / "000a.tar")
    assert "000a/0000" in load_or_embed(result.encoder, str(tmp_path / "set")).names  # the cache has the old names
    (tmp_path / "set" / "000a.tar").rename(tmp_path / "set" / "000.tar")
    again = reopen_source(table, 16)
    assert again.load(3, 16).shape == (16, 16, 3)
    assert again.sets[0].image_size == 32  # the shards are not decoded again for a few pictures


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("photos/train-{000..003}.tar", "train-{000..003}"),
        ("photos/{000..003}.tar", "photos"),
        ("photos/*.parquet", "photos"),
        ("https://host/photos/*.tar", "photos"),
        ("s3://bucket/photos", "photos"),
        ("hf:OWNER/NAME", "NAME"),
        ("photos/2024.tar", "2024"),
    ],
)
def test_sources_are_named_by_their_last_word(source, name):
    assert source_name(source) == name
