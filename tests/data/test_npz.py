import os
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aag import data
from aag.data import npz, npz_members
from aag.data.arrays import SplitArrays
from aag.errors import AAGError


def save(path: Path, **arrays) -> Path:
    np.savez(path, **arrays)
    return path


def some(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


@settings(deadline=None, max_examples=60)
@given(
    count=st.integers(1, 5),
    size=st.integers(1, 9),
    layout=st.sampled_from(["NHWC", "NCHW", "NHW", "NHW1", "N1HW"]),
    two_parts=st.booleans(),
    labelled=st.booleans(),
    kind=st.sampled_from([np.uint8, np.int16, np.int64, np.uint64]),
    packed=st.booleans(),
    column=st.booleans(),
)
def test_every_layout_gives_the_same_images(
    tmp_path_factory, count, size, layout, two_parts, labelled, kind, packed, column
):
    pixels = some(count, size, size, 3 if "C" in layout else 1)
    stored = {
        "NHWC": pixels,
        "NCHW": pixels.transpose(0, 3, 1, 2),
        "NHW": pixels[..., 0],
        "NHW1": pixels,
        "N1HW": pixels.transpose(0, 3, 1, 2),
    }[layout]
    labels = (np.arange(count) % 3).astype(kind)
    prefix = "train_" if two_parts else ""
    arrays = {f"{prefix}images": stored}
    if labelled:
        arrays[f"{prefix}labels"] = labels[:, None] if column else labels
    if two_parts:
        arrays |= {"test_images": stored[:1]} | ({"test_labels": labels[:1]} if labelled else {})
    path = tmp_path_factory.mktemp("npz") / "mine.npz"
    (np.savez_compressed if packed else np.savez)(path, **arrays)
    train, test = data.load_pair(path)
    if layout == "NCHW" and size == 3:
        pixels = stored  # [N,3,3,3] is read as channels last
    expected = np.broadcast_to(pixels, (count, size, size, 3)).transpose(0, 3, 1, 2)
    assert torch.equal(train.images, torch.from_numpy(expected.copy()))
    assert (train.name, train.split) == ("mine", "train")
    assert (test is None) != two_parts
    if labelled:
        assert train.labels.tolist() == labels.tolist()
        assert train.classes == tuple("012"[: labels.max() + 1])
    else:
        assert train.labels is None
        assert train.classes == ()


def test_splits_share_class_names(tmp_path, refused):
    arrays = {"train_images": some(2, 4, 4, 3), "test_images": some(2, 4, 4, 3)}
    path = save(tmp_path / "a.npz", **arrays, train_labels=[0, 1], test_labels=[2, 0])
    assert data.load(path).classes == ("0", "1", "2")
    path = save(tmp_path / "b.npz", **arrays, train_labels=[0, 1], test_labels=[2, 0], classes=["x", "y", "zebra"])
    assert data.load(path, split="test").classes == ("x", "y", "zebra")
    path = save(tmp_path / "c.npz", images=some(2, 4, 4, 3), labels=[0, 1], classes=np.array([b"x", b"y"]))
    assert data.load(str(path)).classes == ("x", "y")
    refused(lambda: data.load(path, split="test"), "no test split")


def test_image_size_resizes(tmp_path, refused):
    path = save(tmp_path / "a.npz", images=some(3, 20, 20, 3))
    assert data.load(path).image_size == 20
    assert data.load(path, image_size=8).images.shape == (3, 3, 8, 8)
    assert len(data.load(path, limit=2)) == 2
    wide = save(tmp_path / "wide.npz", images=some(3, 20, 30, 3))
    refused(lambda: data.load(wide), "30×20", "--image-size")
    cut = data.load(wide, image_size=20).images
    assert torch.equal(cut, torch.from_numpy(np.load(wide)["images"][:, :, 5:25].transpose(0, 3, 1, 2).copy()))


def test_train_and_test_of_different_sizes_are_refused(tmp_path, refused):
    path = save(tmp_path / "a.npz", train_images=some(2, 8, 8, 3), test_images=some(2, 6, 6, 3))
    refused(lambda: data.load_pair(path), str(path), "8 pixels", "6", "--image-size")
    train, test = data.load_pair(path, image_size=8)
    assert train.image_size == test.image_size == 8


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"images": np.zeros((2, 4, 4, 3), np.float32)}, ["float32", "uint8"]),
        ({"images": np.zeros((2, 4, 4, 3), np.int64)}, ["int64"]),
        ({"images": some(2, 4, 4, 4)}, ["[2, 4, 4, 4]"]),
        ({"images": some(2, 48)}, ["[2, 48]"]),
        ({"images": some(0, 4, 4, 3)}, ["no images"]),
        ({"images": some(2, 0, 0, 3)}, ["no images"]),
        ({"images": some(2, 4, 4, 3), "labels": [0, 1, 1]}, ["3 labels for 2 train images"]),
        ({"images": some(2, 4, 4, 3), "labels": [0.0, 1.0]}, ["float64", "integers"]),
        ({"images": some(2, 4, 4, 3), "labels": [[0, 1], [1, 0]]}, ["[2, 2]"]),
        ({"images": some(2, 4, 4, 3), "labels": 3}, ["integers [N]"]),
        ({"images": some(2, 4, 4, 3), "labels": [0, -2]}, ["-2", "count from 0"]),
        ({"images": some(2, 4, 4, 3), "labels": [-1, -1]}, ["-1", "count from 0"]),
        ({"images": some(2, 4, 4, 3), "labels": [0, 10**12]}, ["1000000000000"]),
        ({"images": some(2, 4, 4, 3), "labels": np.array([0, "a"], object)}, ["pickled"]),
        ({"images": some(2, 4, 4, 3), "labels": [0, 2], "classes": ["a", "b"]}, ["highest label is 2", "2 names"]),
        ({"images": some(2, 4, 4, 3), "labels": [0, 1], "classes": [3, 4]}, ["strings"]),
        ({"train_images": some(2, 4, 4, 3), "test_labels": [1]}, ["no test_images"]),
        ({"x": some(2, 4, 4, 3), "y": [1, 2]}, ["contains x, y", "train_images", "labels are optional"]),
        ({}, ["contains nothing"]),
    ],
)
def test_invalid_arrays_are_refused(tmp_path, arrays, words, refused):
    path = save(tmp_path / "bad.npz", **arrays)
    refused(lambda: data.load_pair(path), str(path), *words)


def test_damaged_files_are_refused(tmp_path, refused):
    good = save(tmp_path / "good.npz", images=some(50, 8, 8, 3), labels=np.arange(50)).read_bytes()
    bad = tmp_path / "bad.npz"

    def check(content: bytes, *words: str) -> None:
        bad.write_bytes(content)
        refused(lambda: data.load(bad), str(bad), *words)

    check(b"", "is empty")
    check(b"hello" * 100, "damaged or truncated")
    for share in (0.1, 0.5, 0.99):
        check(good[: int(len(good) * share)], "damaged or truncated")
    middle = len(good) // 4
    check(good[:middle] + bytes(64) + good[middle + 64 :], "CRC")
    np.save(tmp_path / "array.npy", some(2, 4, 4, 3))
    check((tmp_path / "array.npy").read_bytes(), "not an .npz")
    with zipfile.ZipFile(bad, "w") as file:
        file.writestr("images.npy", b"not an array")
    refused(lambda: data.load(bad), str(bad))
    (tmp_path / "folder.npz").mkdir()
    refused(lambda: data.load(tmp_path / "folder.npz"), "no readable image")


@settings(deadline=None, max_examples=60)
@given(place=st.floats(0, 1), value=st.integers(0, 255))
def test_changed_bytes_never_crash(tmp_path_factory, place, value):
    folder = tmp_path_factory.mktemp("npz")
    path = save(folder / "x.npz", images=some(3, 4, 4, 3), labels=np.arange(3))
    content = bytearray(path.read_bytes())
    content[min(int(place * len(content)), len(content) - 1)] = value
    path.write_bytes(content)
    with suppress(AAGError):
        assert data.load(path).images.dtype == torch.uint8


def test_write_is_atomic(tmp_path, monkeypatch):
    target = tmp_path / "new" / "x.npz"
    npz.write(target, {"train": SplitArrays(some(1, 2, 2, 3), None)})
    before = target.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        npz.write(target, {"train": SplitArrays(some(9, 2, 2, 3), None)})
    assert [file.name for file in target.parent.iterdir()] == ["x.npz"]
    assert target.read_bytes() == before


def write_member(path: Path, name: str, shape: tuple[int, ...], size: int, **options) -> Path:
    """Write an .npz with one array: a header with this shape, and then `size` zero bytes."""
    with zipfile.ZipFile(path, "w", **options) as archive, archive.open(name, "w", force_zip64=True) as member:
        np.lib.format.write_array_header_1_0(member, {"descr": "|u1", "fortran_order": False, "shape": shape})
        for start in range(0, size, 1 << 22):
            member.write(bytes(min(1 << 22, size - start)))
    return path


def test_sizes_are_checked_before_memory_is_allocated(tmp_path, monkeypatch, refused):
    claims = write_member(tmp_path / "claims.npz", "images.npy", (10**9, 32, 32, 3), 3072)
    refused(lambda: data.load(claims), str(claims), "says 3,072,000,000,000 bytes, but it has 3,200")
    overflow = write_member(tmp_path / "overflow.npz", "images.npy", (2**62, 2**62, 32, 3), 10)
    refused(lambda: data.load(overflow), "but it has 138")
    negative = write_member(tmp_path / "negative.npz", "images.npy", (-1, 4, 4, 3), 48)
    refused(lambda: data.load(negative), "shape")
    lzma = write_member(tmp_path / "lzma.npz", "images.npy", (1, 4, 4, 3), 48, compression=zipfile.ZIP_LZMA)
    refused(lambda: data.load(lzma), "a method that NumPy does not use")
    monkeypatch.setattr(npz_members, "_FREE_EXPANSION", 10_000_000)
    packed = {"compression": zipfile.ZIP_DEFLATED}
    bomb = write_member(tmp_path / "bomb.npz", "images.npy", (20_000, 32, 32, 3), 20_000 * 3072, **packed)
    refused(lambda: data.load(bomb), "images has 61 MB in a file of 60 kB", "np.savez")
    monkeypatch.setattr(npz_members, "available_memory", lambda: 100_000)
    plain = write_member(tmp_path / "plain.npz", "images.npy", (20, 32, 32, 3), 20 * 3072)
    refused(lambda: data.load(plain), "does not fit into memory", "123 kB", "100 kB are free")
    first = write_member(tmp_path / "first.npz", "images.npy", (20, 3, 32, 32), 20 * 3072)
    assert len(data.load(first)) == 20  # needs no copy


def test_pipes_are_refused(tmp_path, refused):
    os.mkfifo(tmp_path / "pipe.npz")
    refused(lambda: data.load(tmp_path / "pipe.npz"), "pipe.npz", "not a regular file")
