import json
import shutil

import pytest
import torch

from aag import data
from aag.data.datasets import CIFAR10_CLASSES, DATASETS, SAMPLE_FOLDER, StoredFiles
from aag.data.readers import read_sample


@pytest.fixture(scope="module")
def pair():
    return data.load_pair("sample")


def test_counts_balance_and_size_on_disk(pair):
    train, test = pair
    assert train.images.shape == (3000, 3, 32, 32)
    assert test.images.shape == (1000, 3, 32, 32)
    assert torch.bincount(train.labels).tolist() == [300] * 10
    assert torch.bincount(test.labels).tolist() == [100] * 10
    assert train.classes == test.classes == CIFAR10_CLASSES
    assert (train.name, train.split, test.split) == ("sample", "train", "test")
    assert sum(file.stat().st_size for file in SAMPLE_FOLDER.iterdir()) < 8_000_000
    assert (SAMPLE_FOLDER / "README.md").read_text().count("Krizhevsky") >= 1


def test_splits_share_no_image(pair):
    train, test = ({image.numpy().tobytes() for image in part.images} for part in pair)
    assert len(test) == 1000
    assert not train & test


def test_classes_are_in_file_order(pair):
    # CIFAR-10's own beginning: frog, truck, truck, deer, automobile
    assert pair[0].labels[:5].tolist() == [6, 9, 9, 4, 1]
    assert pair[1].labels[:5].tolist() == [3, 8, 8, 0, 6]


def test_pixels_are_photographs_not_noise(pair):
    train = pair[0]
    known_mean, _ = data.normalisation("sample")
    assert train.statistics()[0] == pytest.approx(known_mean, abs=0.005)
    step = (train.images[..., 1:].float() - train.images[..., :-1].float()).abs().mean()
    assert step < 15  # neighbouring pixels are similar: the sheets are split correctly


def test_limit_keeps_a_sorted_nested_spread():
    few, more = data.load("sample", limit=200), data.load("sample", limit=400)
    assert (len(few), len(more)) == (200, 400)
    assert torch.bincount(few.labels, minlength=10).min() >= 8
    rows = [image.numpy().tobytes() for image in more.images]
    places = [rows.index(image.numpy().tobytes()) for image in few.images]
    assert places == sorted(places)
    assert len(data.load("sample", split="test", limit=10**6)) == 1000


@pytest.mark.parametrize("harm", ["cut", "gone", "labels", "pixels"])
def test_damaged_installation_is_reported(tmp_path, harm, refused):
    shutil.copytree(SAMPLE_FOLDER, tmp_path / "sample")
    sheet, labels = tmp_path / "sample/test.webp", tmp_path / "sample/labels.json"
    if harm == "cut":
        sheet.write_bytes(sheet.read_bytes()[:50_000])
    elif harm == "gone":
        sheet.unlink()
    elif harm == "labels":
        labels.write_text("{")
    else:
        content = json.loads(labels.read_text())
        content["test"]["sha256"] = "0" * 64
        labels.write_text(json.dumps(content))
    refused(
        lambda: read_sample(DATASETS["sample"], StoredFiles("bundled", (tmp_path / "sample",))),
        "sample",
        "install aag again",
    )
