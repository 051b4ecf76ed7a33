import subprocess
import sys
from pathlib import Path

import pytest

from aag import data
from aag.data import datasets


def test_datasets_need_neither_torch_nor_numpy():
    code = (
        "import sys; from aag.data import list_datasets; list_datasets(); "
        "assert not {'torch', 'numpy', 'PIL', 'scipy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_list_datasets_gives_the_path_of_each(root: Path):
    paths = data.list_datasets()
    assert list(paths) == ["sample", "cifar10", "cifar100", "svhn"]
    assert paths["sample"] == datasets.SAMPLE_FOLDER
    assert paths["cifar100"] is None
    assert [(d.train, d.test, len(d.classes), d.size) for d in data.DATASETS.values()] == [
        (3000, 1000, 10, 32),
        (50000, 10000, 10, 32),
        (50000, 10000, 100, 32),
        (73257, 26032, 10, 32),
    ]
    root.mkdir()
    (root / "svhn.npz").touch()
    assert data.list_datasets()["svhn"] == root / "svhn.npz"
    assert len(set(datasets.CIFAR100_CLASSES)) == 100


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("cifar10", ["cifar10.npz"]),
        ("cifar10", ["cifar-10-batches-py/test_batch"]),
        ("cifar10", ["cifar-10-python.tar.gz"]),
        ("cifar100", ["cifar-100-python/train"]),
        ("cifar100", ["cifar-100-python.tar.gz"]),
        ("svhn", ["train_32x32.mat", "test_32x32.mat"]),
    ],
)
@pytest.mark.parametrize("base", ["root", "root/{name}", "work/data", "work/data/{name}"])
def test_find_files_searches_the_usual_folders(root: Path, name, files, base):
    place = root.parent / base.format(name=name)
    for file in files:
        (place / file).parent.mkdir(parents=True, exist_ok=True)
        (place / file).touch()
    found = datasets.find_files(datasets.DATASETS[name])
    assert found is not None
    assert found.paths[0].resolve() == place / files[0].split("/")[0]


def test_find_files_needs_all_archives(root: Path):
    root.mkdir()
    (root / "train_32x32.mat").touch()
    assert datasets.find_files(datasets.DATASETS["svhn"]) is None


def test_data_root_order_argument_environment_cache(monkeypatch, tmp_path, refused):
    monkeypatch.setenv("AAG_DATA", str(tmp_path))
    assert datasets.data_root("/elsewhere") == Path("/elsewhere")
    assert datasets.data_root() == tmp_path
    monkeypatch.setenv("AAG_DATA", "")
    assert datasets.data_root() == Path.home() / ".cache" / "aag"
    (tmp_path / "file").touch()
    refused(lambda: datasets.data_root(tmp_path / "file"), "is a file", "AAG_DATA")


def test_normalisation_of_known_data_sets_only(refused):
    assert data.normalisation("cifar10") == ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
    assert data.normalisation("sample") == data.normalisation("cifar10")
    assert data.normalisation("cifar100") == ((0.5071, 0.4866, 0.4409), (0.2009, 0.1984, 0.2023))
    assert data.normalisation("svhn") == ((0.4377, 0.4438, 0.4728), (0.1201, 0.1231, 0.1052))
    refused(lambda: data.normalisation("holiday"), "holiday", "statistics()")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("cifar-10", ["unknown data set", "cifar10", "no file or folder"]),
        ("CIFAR10", ["did you mean cifar10"]),
        ("imagenet", ["unknown data set", "svhn"]),
        ("", ["unknown data set"]),
        ("./photos", ["no such file or folder: ./photos"]),
        ("photos/cats", ["no such file or folder"]),
        ("set.npz", ["no such file or folder"]),
        ("~nobody-of-that-name/x", ["no such file or folder"]),
        ("a\0b", ["unknown data set"]),
        (Path("nowhere/at/all"), ["no such file or folder"]),
        ("cifar10", ["cifar10 is not in", "aag data fetch cifar10"]),
        ("svhn", ["aag data fetch svhn"]),
    ],
)
def test_missing_sources_are_refused(root: Path, source, words, refused):
    refused(lambda: data.load(source), *words)


def test_other_files_and_arguments_are_refused(root: Path, refused):
    Path("notes.txt").write_text("hello")
    Path("cifar-10-python.tar.gz").touch()
    refused(lambda: data.load("notes.txt"), "neither a folder nor an .npz")
    refused(lambda: data.load("cifar-10-python.tar.gz"), "an archive of cifar10", str(root))
    refused(lambda: data.load("sample", split="tests"), "unknown split", "test")
    refused(lambda: data.load("sample", limit=0), "limit is 0")
    refused(lambda: data.load("sample", image_size=0), "image_size is 0")
    refused(lambda: data.load("sample", image_size=100_000), "image_size is 100000")
