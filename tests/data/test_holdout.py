from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from aag import data
from aag.data.holdout import choose_held_out


def fill(folder: Path, count: int, classes: str = "abc", seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    for i in range(count):
        path = folder / classes[i % len(classes)] / f"{seed}-{i:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (4, 4, 3), np.uint8)).save(path)


def contents(folder: Path, images: data.ImageSet) -> set[bytes]:
    return {(folder / name).read_bytes() for name in images.names}


def test_choice_keeps_both_sides_of_every_class():
    rng = np.random.default_rng(0)
    hashes = rng.integers(0, 2**64, 5000, np.uint64)
    labels = np.concatenate([np.repeat(np.arange(100), 3), rng.integers(100, 110, 4500), np.full(200, -1)])
    held_out = choose_held_out(hashes, labels, 0.1)
    assert not held_out[labels == -1].any()
    for number in range(110):
        own = held_out[labels == number]
        assert 0 < own.sum() < len(own)
    large = labels >= 100
    assert held_out[large].mean() == pytest.approx(0.1, abs=0.02)
    assert (held_out[large] == (hashes[large] < 0.1 * 2**64)).all()


def test_duplicates_are_on_one_side(refused):
    hashes = np.array([5, 5, 9, 5, 2**63, 2**62], np.uint64)  # the hash 5 in both classes
    assert choose_held_out(hashes, np.array([0, 0, 0, 1, 1, 1]), 0.25).tolist() == [
        True,
        True,
        False,
        True,
        False,
        False,
    ]
    refused(lambda: choose_held_out(hashes[:2], np.array([0, 0]), 0.1), "no class has two different images")


def test_folder_is_split_by_content(tmp_path):
    folder = tmp_path / "photos"
    fill(folder, 150)
    Image.new("RGB", (4, 4)).save(folder / "loose.png")
    train, test = data.load_pair(folder, holdout=0.2)
    assert len(train) + len(test) == 151
    assert 10 < len(test) < 55
    assert set(test.labels.tolist()) == {0, 1, 2}
    assert (test.split, test.classes) == ("test", train.classes)
    assert "loose.png" in train.names
    assert train.labels[train.names.index("loose.png")] == -1
    before = contents(folder, test)
    for path in list(folder.glob("a/*.png"))[:40]:
        path.rename(path.with_name(f"renamed {path.name}"))
    fill(folder, 60, seed=1)
    train, test = data.load_pair(folder, holdout=0.2)
    assert before < contents(folder, test)
    assert not before & contents(folder, train)
    assert data.load(folder, split="test", holdout=0.2).names == test.names
    assert set(data.load(folder, split="test", holdout=0.2, limit=5).names) < set(test.names)


def test_arrays_are_split_by_pixels(tmp_path, refused):
    images = np.random.default_rng(0).integers(0, 256, (100, 4, 4, 3), np.uint8)
    labels = np.arange(100) % 4
    np.savez(tmp_path / "a.npz", images=images, labels=labels)
    train, test = data.load_pair(tmp_path / "a.npz", holdout=0.25)
    assert len(train) + len(test) == 100
    order = np.random.default_rng(1).permutation(100)
    np.savez(tmp_path / "b.npz", images=images[order], labels=labels[order])
    again = data.load_pair(tmp_path / "b.npz", holdout=0.25)[1]
    assert sorted(again.images.flatten(1).tolist()) == sorted(test.images.flatten(1).tolist())
    few = data.load_pair(tmp_path / "a.npz", holdout=0.25, limit=10)
    assert (len(few[0]), len(few[1])) == (10, 10)  # of each split, as for a folder
    assert all(any(torch.equal(one, other) for other in test.images) for one in few[1].images)
    whole = data.load(tmp_path / "a.npz")
    assert torch.equal(data.as_image_sets(whole, holdout=0.25)[1].images, test.images)
    refused(lambda: data.as_image_sets(replace(whole, labels=None, classes=()), holdout=0.25), "has no labels")


def test_known_data_sets_hold_out_training_images():
    whole, published = data.load_pair("sample")
    train, test = data.load_pair("sample", holdout=0.1)
    assert len(train) + len(test) == len(whole)
    assert len(test) == pytest.approx(0.1 * len(whole), rel=0.2)
    both = torch.cat([train.images, test.images]).flatten(1)
    assert sorted(map(hash, map(bytes, both.numpy()))) == sorted(map(hash, map(bytes, whole.images.flatten(1).numpy())))
    assert not {bytes(image) for image in test.images.numpy()} & {bytes(image) for image in published.images.numpy()}
    assert (train.classes, test.split, len(set(test.labels.tolist()))) == (whole.classes, "test", 10)
    assert train.fingerprint() != whole.fingerprint()


def test_wrong_uses_are_refused(tmp_path, refused):
    Image.new("RGB", (4, 4)).save(tmp_path / "1.png")
    refused(lambda: data.load_pair(tmp_path, holdout=0.1), "has no labels", "--holdout")
    refused(lambda: data.load_pair(tmp_path, holdout=0.9), "0.9", "at most 0.5")
    refused(lambda: data.load_pair(tmp_path, holdout=0.1, labels="none"), "--labels none")
    refused(lambda: data.load(tmp_path, labels="all"), "unknown labels 'all'")


@pytest.mark.parametrize("kind", ["folder", "npz", "pair"])
def test_held_out_images_replace_a_test_split_that_is_not_read(tmp_path, kind):
    rng = np.random.default_rng(0)
    pixels, labels = rng.integers(0, 256, (40, 8, 8, 3), dtype=np.uint8), np.arange(40) % 2
    source: Any = tmp_path
    if kind == "folder":
        for number, image in enumerate(pixels):
            path = tmp_path / "train" / str(number % 2) / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(path)
        (tmp_path / "test" / "other").mkdir(parents=True)
        (tmp_path / "test" / "other" / "broken.png").write_bytes(b"not an image")
    elif kind == "npz":
        source = tmp_path / "images.npz"
        np.savez(source, train_images=pixels, train_labels=labels, test_images=pixels[:2, :4], test_labels=labels[:2])
    else:
        images = torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()
        whole = data.ImageSet("mine", images, torch.from_numpy(labels), ("a", "b"))
        source = (whole, replace(whole, split="test"))
    train, test = data.as_image_sets(source, image_size=8, holdout=0.25, root=tmp_path / "cache")
    assert test is not None
    assert len(train) + len(test) == 40
    assert not test.skipped
    assert sorted(set(test.labels.tolist())) == [0, 1]
