import os
from pathlib import Path

import pytest
from PIL import Image

from aag import data


def put(folder: Path, *names: str, shade: int | None = None) -> None:
    for i, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (10, 10), (i if shade is None else shade,) * 3).save(path, "PNG")


def shades(images: data.ImageSet) -> list[int]:
    return images.images[:, 0, 0, 0].tolist()


def test_flat_folder_is_sorted_and_unlabelled(tmp_path):
    put(tmp_path / "photos", "b.png", "a.png", "C.PNG", "d.jpg")
    photos, test = data.load_pair(tmp_path / "photos")
    assert test is None
    assert shades(photos) == [2, 1, 0, 3]  # C a b d
    assert photos.labels is None
    assert (photos.name, photos.classes, photos.skipped, photos.image_size) == ("photos", (), (), 32)
    assert data.load(tmp_path / "photos", image_size=7).images.shape == (4, 3, 7, 7)


def test_subfolders_are_classes_at_any_depth(tmp_path):
    put(tmp_path, "dog/2.png", "dog/deep/er/1.png", "cat/3.png", "ant/x y.png")
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/readme.txt").write_text("hello")
    images = data.load(str(tmp_path))
    assert images.classes == ("ant", "cat", "dog")
    assert images.labels.tolist() == [0, 1, 2, 2]
    assert shades(images) == [3, 2, 0, 1]


@pytest.mark.parametrize("held_out", ["test", "val", "valid", "Validation", "TEST"])
def test_splits_share_their_classes(tmp_path, held_out):
    put(tmp_path, "train/cat/1.png", "train/dog/2.png", f"{held_out}/dog/3.png", f"{held_out}/emu/4.png")
    put(tmp_path, "extra/cat/5.png")
    train, test = data.load_pair(tmp_path)
    assert train.classes == test.classes == ("cat", "dog", "emu")
    assert (train.labels.tolist(), test.labels.tolist()) == ([0, 1], [1, 2])
    alone = data.load(tmp_path, split="test")
    assert (alone.classes, alone.labels.tolist(), alone.split) == (test.classes, [1, 2], "test")


def test_test_has_precedence_over_val_and_may_be_flat(tmp_path):
    put(tmp_path, "train/a/1.png", "train/b/2.png", "test/3.png", "val/a/4.png")
    train, test = data.load_pair(tmp_path)
    assert train.labels.tolist() == [0, 1]
    assert (shades(test), test.labels, test.classes) == ([2], None, ())


def test_train_alone_is_a_split_and_beside_others_a_class(tmp_path, refused):
    put(tmp_path / "one", "train/a/1.png", "train/b/2.png")
    assert data.load(tmp_path / "one").classes == ("a", "b")
    refused(lambda: data.load(tmp_path / "one", split="test"), "no test split")
    put(tmp_path / "two", "train/1.png", "plane/2.png")
    assert data.load(tmp_path / "two").classes == ("plane", "train")


def test_images_outside_class_folders(tmp_path):
    put(tmp_path / "classes", "logo.png", "a/1.png", "b/2.png")
    images = data.load(tmp_path / "classes")
    assert images.names == ["a/1.png", "b/2.png", "logo.png"]
    assert (images.labels.tolist(), images.classes, images.skipped) == ([0, 1, -1], ("a", "b"), ())
    assert images.labelled().tolist() == [0, 1]
    bare = data.load(tmp_path / "classes", labels="none")
    assert (bare.labels, bare.classes, len(bare)) == (None, (), 3)
    put(tmp_path / "album", "1.png", "2.png", "3.png", "best/4.png")
    assert data.load(tmp_path / "album").labels is None
    assert len(data.load(tmp_path / "album")) == 4


def test_single_subfolder_gives_no_labels(tmp_path):
    put(tmp_path / "card", "DCIM/100/1.png", "DCIM/101/2.png", "thumb.png")
    card = data.load(tmp_path / "card")
    assert (card.labels, card.classes, card.skipped, len(card)) == (None, (), (), 3)
    put(tmp_path / "yolo", "train/images/1.png", "train/images/2.png", "test/images/3.png")
    train, test = data.load_pair(tmp_path / "yolo")
    assert train.labels is test.labels is None
    put(tmp_path / "some", "train/a/1.png", "train/b/2.png", "test/b/3.png")  # a class of two
    assert data.load(tmp_path / "some", split="test").labels.tolist() == [1]


def test_empty_test_folder_is_ignored(tmp_path, refused):
    put(tmp_path, "train/1.png", "train/2.png")
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / ".gitkeep").write_text("")
    train, test = data.load_pair(tmp_path)
    assert (len(train), test) == (2, None)
    (tmp_path / "test" / "broken.png").write_bytes(b"x")
    refused(lambda: data.load_pair(tmp_path), "no readable image in")


def test_unsupported_photographs_are_listed(tmp_path):
    put(tmp_path, "1.png")
    for name in ("IMG_1.HEIC", "raw.cr2", "notes.txt"):
        (tmp_path / name).write_bytes(b"x")
    skipped = data.load(tmp_path).skipped
    assert [line.partition(":")[0] for line in skipped] == ["IMG_1.HEIC", "raw.cr2"]
    assert "Pillow cannot read this format" in skipped[0]


def test_bad_files_are_skipped_and_listed(tmp_path):
    put(tmp_path, "good/1.png", "good/2.jpg", "fine/3.gif")
    whole = (tmp_path / "good/1.png").read_bytes()
    (tmp_path / "good/empty.png").touch()
    (tmp_path / "good/cut.png").write_bytes(whole[: len(whole) - 30])
    (tmp_path / "good/text.jpeg").write_text("not a picture")
    (tmp_path / "good/readme.txt").write_text("ignored")
    (tmp_path / "good/.hidden.png").write_text("ignored")
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache/x.png").write_bytes(whole)
    (tmp_path / "fine/new\nline.png").touch()
    os.mkfifo(tmp_path / "fine/pipe.png")
    (tmp_path / "fine/dead.png").symlink_to("nowhere")
    (tmp_path / "fine/self.png").symlink_to("self.png")
    with open(os.fsencode(tmp_path / "fine") + b"/\xff.png", "wb"):
        pass
    images = data.load(tmp_path)
    assert len(images) == 3
    assert images.labels.tolist() == [0, 1, 1]
    reasons = dict(line.split(": ", 1) for line in images.skipped)
    assert list(reasons) == [
        "fine/dead.png",
        "fine/new?line.png",
        "fine/pipe.png",
        "fine/self.png",
        "fine/?.png",
        "good/cut.png",
        "good/empty.png",
        "good/text.jpeg",
    ]
    assert reasons["good/empty.png"] == "empty file"
    assert reasons["fine/pipe.png"] == "not a regular file"
    "\n".join(images.skipped).encode("utf-8")


def test_links_are_followed_without_cycles(tmp_path):
    put(tmp_path / "set", "a/1.png", "b/2.png", "b/c/3.png")
    put(tmp_path / "elsewhere", "4.png", shade=77)
    put(tmp_path, "outside.png")
    (tmp_path / "set/a/up").symlink_to(tmp_path / "set")
    (tmp_path / "set/b/c/here").symlink_to(".")
    (tmp_path / "set/b/out").symlink_to("../..")
    (tmp_path / "set/d").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "set/e").symlink_to("e")
    images = data.load(tmp_path / "set")
    assert images.classes == ("a", "b", "d")
    assert shades(images) == [0, 1, 2, 77]
    (tmp_path / "way").symlink_to(tmp_path / "set")
    assert len(data.load(tmp_path / "way")) == 4


def test_folder_without_images_reports_counts(tmp_path, refused):
    (tmp_path / "none").mkdir()
    refused(lambda: data.load(tmp_path / "none"), "no readable image", "0 files")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/1.png").touch()
    (tmp_path / "bad/2.png").write_text("x")
    (tmp_path / "bad/3.txt").write_text("x")
    refused(lambda: data.load(tmp_path / "bad"), "3 files", "2 with an image extension", "1.png: empty file")


def test_folder_without_permission_is_skipped(tmp_path, monkeypatch, refused):
    put(tmp_path, "a/1.png", "b/2.png")
    look = os.scandir

    def scandir(path):  # chmod would not stop the superuser, whom many containers run as
        if Path(path).name in forbidden:
            raise PermissionError(13, "Permission denied")
        return look(path)

    forbidden = {"b"}
    monkeypatch.setattr(os, "scandir", scandir)
    images = data.load(tmp_path)
    assert len(images) == 1
    assert images.skipped == ("b: Permission denied",)
    forbidden.add(tmp_path.name)
    refused(lambda: data.load(tmp_path), "cannot read", "Permission denied")


def test_limit_decodes_only_what_it_keeps(tmp_path):
    put(tmp_path, *(f"{'ab'[i % 2]}/{i:03}.png" for i in range(60)))
    images = data.load(tmp_path, limit=20)
    assert len(images) == 20
    assert set(images.labels.tolist()) == {0, 1}
    everything = data.load(tmp_path)
    assert len(everything) == 60
    assert set(shades(images)) < set(shades(everything))
