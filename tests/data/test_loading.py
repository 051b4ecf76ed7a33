"""`as_image_sets`, and what one new entry in `DATASETS` is enough for."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from aag import data
from aag.data import datasets
from aag.data.arrays import SplitArrays
from aag.data.datasets import Archive, Dataset, StoredFiles


def pixels(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def labelled(count: int = 4, size: int = 8) -> data.ImageSet:
    return data.ImageSet("mine", torch.from_numpy(pixels(count, 3, size, size)), torch.arange(count) % 2, ("a", "b"))


@pytest.mark.parametrize("channels", [1, 3, 4, 8])
def test_tensors_and_both_layouts_of_arrays_give_the_same_images(channels):
    last = pixels(5, 8, 8, channels)
    first = last.transpose(0, 3, 1, 2)
    tensor = torch.from_numpy(first.copy())
    for images in (tensor, tensor.contiguous(memory_format=torch.channels_last), last, *([first] * (channels != 8))):
        train, test = data.as_image_sets(images)
        assert test is None
        assert torch.equal(train.images, tensor)
        assert (train.channels, train.image_size, train.labels, train.split) == (channels, 8, None, "train")


def test_image_sets_and_pairs_are_passed_on():
    mine = labelled()
    assert data.as_image_sets(mine) == (mine, None)
    assert data.as_image_sets((mine, None)) == (mine, None)
    train, test = data.as_image_sets([mine, pixels(2, 8, 8, 3)])
    assert train is mine
    assert (len(test), test.split) == (2, "test")


def test_a_tensor_is_not_copied():
    tensor = torch.from_numpy(pixels(5, 3, 8, 8))
    assert data.as_image_sets(tensor)[0].images.data_ptr() == tensor.data_ptr()


def test_names_and_paths_are_loaded(tmp_path):
    np.savez(tmp_path / "a.npz", images=pixels(3, 8, 8, 3))
    for source in (tmp_path / "a.npz", str(tmp_path / "a.npz")):
        train, test = data.as_image_sets(source, image_size=6)
        assert (train.images.shape, test) == ((3, 3, 6, 6), None)
    assert [len(part) for part in data.as_image_sets("sample")] == [3000, 1000]


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_image_size_resizes_every_source_alike(channels, tmp_path):
    array = pixels(2, 8, 12, channels)
    wide = data.as_image_sets(array, image_size=4)[0].images
    tensor = torch.from_numpy(array.transpose(0, 3, 1, 2).copy())
    assert torch.equal(data.as_image_sets(tensor, image_size=4)[0].images, wide)
    if channels == 3:
        np.savez(tmp_path / "a.npz", images=array)
        assert torch.equal(data.load(tmp_path / "a.npz", image_size=4).images, wide)
    mine = labelled()
    small = data.as_image_sets(mine, image_size=4)[0]
    assert (small.image_size, small.classes, small.labels is mine.labels) == (4, ("a", "b"), True)


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (torch.rand(4, 3, 8, 8), ["float32", "uint8", "0..255"]),
        (np.zeros((4, 8, 8, 3)), ["float64", "uint8", "0..255"]),
        (torch.zeros(3, 8, 8, dtype=torch.uint8), ["[3, 8, 8]", "[N, C, H, W]"]),
        (np.zeros((0, 8, 8, 3), np.uint8), ["[0, 8, 8, 3]"]),
        (torch.zeros(4, 3, 8, 9, dtype=torch.uint8), ["9×8", "--image-size"]),
        (torch.zeros(4, 8, 8, 3, dtype=torch.uint8), ["[4, 8, 8, 3]", ".permute(0, 3, 1, 2)"]),
        (7, ["int", "ImageSet", "path"]),
        ([1, 2, 3], ["list"]),
        ((labelled(), "sample"), ["test images are a str"]),
        ((labelled(size=8), labelled(size=6)), ["8 pixels", "6", "--image-size"]),
        ((pixels(2, 8, 8, 3), pixels(2, 8, 8, 1)), ["3 channels", "1"]),
        ((labelled(), replace(labelled(), classes=("b", "a"))), ["different classes", "load_pair"]),
    ],
)
def test_other_objects_are_refused(images, words, refused):
    refused(lambda: data.as_image_sets(images), *words)


def test_wrong_types_are_refused(refused):
    refused(lambda: data.load_pair(None), "None", "expected a path or one of sample")
    refused(lambda: data.load("sample", image_size="32"), "image_size is '32'")
    refused(lambda: data.load("sample", image_size=8.5), "image_size is 8.5")
    refused(lambda: data.load("sample", limit="3"), "limit is '3'")


def read_grey(dataset: Dataset, files: StoredFiles) -> dict[str, SplitArrays]:
    images = np.frombuffer(files.paths[0].read_bytes(), np.uint8).reshape(-1, 4, 4, 1)
    labels = np.array([0, 1])
    return {
        "train": SplitArrays(images[:2], labels, dataset.classes),
        "test": SplitArrays(images[2:4], labels, dataset.classes),
        "unlabelled": SplitArrays(images[4:], None),
    }


def test_one_entry_adds_a_grey_data_set_with_an_unlabelled_split(root: Path, monkeypatch, refused):
    content = pixels(9, 4, 4, 1)
    entry = Dataset(
        name="grey",
        description="nine grey images",
        splits={"train": 2, "test": 2, "unlabelled": 5},
        classes=("a", "b"),
        mean=(0.5,),
        std=(0.2,),
        reader=f"{__name__}:read_grey",
        size=4,
        channels=1,
        archives=(Archive("grey.bin", "http://127.0.0.1:9/", hashlib.md5(content.tobytes()).hexdigest()),),
    )
    monkeypatch.setitem(datasets.DATASETS, "grey", entry)
    assert (entry.train, entry.test, entry.policy, entry.auxiliary_crop) == (2, 2, "cifar10", "resized")
    refused(lambda: data.load("grey"), "aag data fetch grey")
    root.mkdir()
    (root / "grey.bin").write_bytes(content.tobytes())
    for _ in ("published file", "npz"):
        train, test = data.load_pair("grey")
        rest = data.load("grey", split="unlabelled")
        assert (train.images.shape, test.labels.tolist(), len(rest), rest.labels) == ((2, 1, 4, 4), [0, 1], 5, None)
        assert np.array_equal(rest.images.numpy()[:, 0], content[4:, ..., 0])
        assert data.list_datasets()["grey"] == root / "grey.npz"
    assert data.fetch("grey") == root / "grey.npz"
    refused(lambda: data.load("sample", split="unlabelled"), "sample has no unlabelled split")
    monkeypatch.setitem(datasets.DATASETS, "grey", Dataset(**(vars(entry) | {"channels": 3})))
    refused(lambda: data.load("grey"), "[4, 4, 1]", "[4, 4, 3]", "aag data fetch grey")


def test_training_facts_of_the_data_sets():
    facts = {name: (entry.policy, entry.auxiliary_crop) for name, entry in data.DATASETS.items()}
    assert facts.pop("svhn") == ("svhn", "none")
    assert set(facts.values()) == {("cifar10", "resized")}


def test_printed_commands_name_the_folder_and_quote_it(tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    option = """--data-root 'it'"'"'s here'"""
    refused(lambda: data.load("cifar10", root="it's here"), option)
    (tmp_path / "it's here").mkdir()
    np.savez("it's here/cifar10.npz", images=pixels(2, 32, 32, 3))
    refused(lambda: data.load("cifar10", root="it's here"), "contains 2 train images", option)
    (tmp_path / "it's here/cifar10.npz").write_bytes(b"damaged")
    refused(lambda: data.load("cifar10", root="it's here"), "damaged", option)
    (tmp_path / "cifar-10-python.tar.gz").touch()
    refused(lambda: data.load("cifar-10-python.tar.gz", root="it's here"), "move it to it's here and")
