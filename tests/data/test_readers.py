import gzip
import os
import pickle
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from published import cifar_archive, cifar_files, images, planes, python2_pickle, shrink, svhn_files, tar_gz
from scipy.io import savemat

from aag import data
from aag.data import archive, datasets, readers

ARCHIVE = {"cifar10": "cifar-10-python.tar.gz", "cifar100": "cifar-100-python.tar.gz"}


def tensor(pixels: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(pixels.transpose(0, 3, 1, 2).copy())


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
@pytest.mark.parametrize("packed", [True, False])
def test_cifar_as_published(root: Path, monkeypatch, name, packed):
    train, test = images(20, 1), images(7, 2)
    if packed:
        shrink(monkeypatch, name, 20, 7, cifar_archive(root / ARCHIVE[name], name, train, test))
    else:
        shrink(monkeypatch, name, 20, 7)
        folder = root / str(datasets.DATASETS[name].folder)
        folder.mkdir(parents=True)
        for file, content in cifar_files(name, train, test).items():
            (folder / file).write_bytes(content)
    first = data.load_pair(name)
    count = len(datasets.DATASETS[name].classes)
    for part, pixels in zip(first, (train, test), strict=True):
        assert torch.equal(part.images, tensor(pixels))
        assert part.labels.tolist() == [i % count for i in range(len(pixels))]
        assert part.classes == datasets.DATASETS[name].classes
    # The second time, only the stored .npz is read.
    monkeypatch.setattr(readers, f"read_{name}", None)
    assert data.list_datasets()[name] == root / f"{name}.npz"
    for part, again in zip(first, data.load_pair(name), strict=True):
        assert again.fingerprint() == part.fingerprint()
        assert again.classes == part.classes
    assert data.load(root / f"{name}.npz").classes == first[0].classes


def test_svhn_as_published(root: Path, monkeypatch):
    train, test = images(23, 1), images(11, 2)
    shrink(monkeypatch, "svhn", 23, 11, *svhn_files(root, train, test))
    first = data.load_pair("svhn")
    for part, pixels in zip(first, (train, test), strict=True):
        assert torch.equal(part.images, tensor(pixels))
        assert part.labels.tolist() == [i % 10 for i in range(len(pixels))]
    assert (root / "svhn.npz").exists()
    assert data.load("svhn", split="test").fingerprint() == first[1].fingerprint()


def test_read_only_data_root_gives_a_warning(root: Path, monkeypatch, caplog):
    path = cifar_archive(Path("data/cifar-10-python.tar.gz"), "cifar10", images(5), images(2))
    shrink(monkeypatch, "cifar10", 5, 2, path)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(root))

    monkeypatch.setattr(Path, "mkdir", refuse)
    assert len(data.load("cifar10")) == 5
    assert [record.getMessage() for record in caplog.records] == [
        f"cannot store cifar10 as an .npz for faster loading: [Errno 13] Permission denied: '{root}'"
    ]


def test_wrong_npz_in_the_data_root_is_refused(root: Path, monkeypatch, refused):
    root.mkdir()
    kept = root / "cifar10.npz"
    np.savez(kept, images=images(3), labels=[0, 1, 2])
    refused(lambda: data.load("cifar10"), "contains 3 train images", "50000", "aag data fetch cifar10")
    shrink(monkeypatch, "cifar10", 3, 1)
    refused(lambda: data.load_pair("cifar10"), "contains 0 test images")
    np.savez(kept, images=images(3), labels=[0, 1, 10])
    refused(lambda: data.load("cifar10"), "10 classes")
    np.savez(kept, images=images(3))
    refused(lambda: data.load("cifar10"), "10 classes")
    kept.write_bytes(kept.read_bytes()[:900])
    refused(lambda: data.load("cifar10"), "damaged", "delete it", "aag data fetch cifar10")


def test_a_wrong_checksum_is_refused(root: Path, monkeypatch, refused):
    cifar_archive(root / "cifar-10-python.tar.gz", "cifar10", images(5), images(2))
    refused(lambda: data.load("cifar10"), "cifar-10-python.tar.gz", "expected 170,498,071", "fetch again")
    shrink(monkeypatch, "svhn", 3, 3, *svhn_files(root, images(3), images(3)))
    entry = datasets.DATASETS["svhn"]
    for kind in ("md5", "sha256"):
        wrong = replace(entry.archives[0], **{kind: "0" * 32})
        monkeypatch.setitem(datasets.DATASETS, "svhn", replace(entry, archives=(wrong, entry.archives[1])))
        refused(lambda: data.load("svhn"), "train_32x32.mat", kind, f"expected {'0' * 32}")


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.9, 0.9995])
def test_truncated_archive_is_refused(root: Path, monkeypatch, share, refused):
    path = cifar_archive(root / "cifar-10-python.tar.gz", "cifar10", images(50), images(10))
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    shrink(monkeypatch, "cifar10", 50, 10, path)  # with the matching checksum
    refused(lambda: data.load("cifar10"), str(path))


def test_flipped_bit_is_refused(tmp_path, refused):
    path = tar_gz(tmp_path / "x.tar.gz", {"a": os.urandom(5000)})
    content = bytearray(path.read_bytes())
    content[2500] ^= 1
    path.write_bytes(content)
    refused(lambda: archive.read_members(path, ["a"]), str(path))


def _link(kind: bytes, name: str, target: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize(
    "member",
    [
        tarfile.TarInfo("../outside"),
        tarfile.TarInfo("cifar-10-batches-py/../../outside"),
        tarfile.TarInfo("/etc/outside"),
        tarfile.TarInfo("..\\outside"),
        _link(tarfile.SYMTYPE, "cifar-10-batches-py/data_batch_1", "/etc/passwd"),
        _link(tarfile.LNKTYPE, "cifar-10-batches-py/data_batch_1", "/etc/passwd"),
        _link(tarfile.CHRTYPE, "cifar-10-batches-py/device", ""),
        _link(tarfile.FIFOTYPE, "cifar-10-batches-py/pipe", ""),
    ],
    ids=lambda info: f"{info.name}-{info.type.decode()}",
)
def test_paths_outside_the_archive_are_refused(root: Path, monkeypatch, member, refused):
    path = cifar_archive(root / "cifar-10-python.tar.gz", "cifar10", images(5), images(2), member)
    shrink(monkeypatch, "cifar10", 5, 2, path)
    refused(lambda: data.load("cifar10"), str(path), "points outside")
    assert sorted(file.name for file in root.iterdir()) == [path.name]


def test_different_archive_is_refused(root: Path, monkeypatch, refused):
    path = tar_gz(root / "cifar-100-python.tar.gz", {"readme": b"hello"})
    shrink(monkeypatch, "cifar100", 5, 2, path)
    refused(lambda: data.load("cifar100"), "does not contain cifar-100-python/meta")
    monkeypatch.setattr(archive, "MAX_MEMBER_BYTES", 4)
    refused(lambda: data.load("cifar100"), "5 bytes")
    path.write_bytes(b"not a gzip file")
    shrink(monkeypatch, "cifar100", 5, 2, path)
    refused(lambda: data.load("cifar100"), "damaged")


class Malicious:
    def __reduce__(self):
        return os.system, ("touch broken-into",)


GOOD = {b"data": planes(images(2)), b"labels": [0, 1]}


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (
            pickle.dumps(Malicious(), protocol=2),
            ["posix.system" if os.name == "posix" else "nt.system", "do not trust"],
        ),
        (b"\x80\x02c__builtin__\neval\n(U\x011tR.", ["__builtin__.eval", "do not trust"]),
        (pickle.dumps({b"data": np.zeros(2, object)}, protocol=4), ["that is not uint8"]),
        (python2_pickle(GOOD | {b"data": planes(images(2)).astype(np.float32)}), ["damaged", "uint8"]),
        (python2_pickle(GOOD | {b"data": planes(images(2))[:, :100]}), ["3×32×32"]),
        (python2_pickle(GOOD | {b"data": [1, 2]}), ["3×32×32"]),
        (python2_pickle(GOOD | {b"labels": [1]}), ["one label for each of its 2"]),
        (python2_pickle(GOOD | {b"labels": [b"1", b"2"]}), ["one label for each"]),
        (python2_pickle(GOOD | {b"labels": [1, 300]}), ["outside 0..255"]),
        (python2_pickle({b"data": planes(images(2))}), ["one label for each"]),
        (python2_pickle([1, 2]), ["contains a list"]),
        (python2_pickle(GOOD)[:3000], ["damaged"]),
        (b"", ["damaged"]),
        (b"hello", ["damaged"]),
    ],
)
def test_bad_batches_are_refused(root: Path, monkeypatch, batch, words, refused):
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for file, content in cifar_files("cifar10", images(10), images(2)).items():
        (folder / file).write_bytes(content)
    (folder / "data_batch_3").write_bytes(batch)
    shrink(monkeypatch, "cifar10", 10, 2)
    refused(lambda: data.load("cifar10"), "data_batch_3", *words)
    assert not Path("broken-into").exists()


def test_incomplete_or_different_folder_is_refused(root: Path, monkeypatch, refused):
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    for file, content in cifar_files("cifar100", images(4), images(2)).items():
        (folder / file).write_bytes(content)
    refused(lambda: data.load("cifar100"), "contains 4 train images")
    shrink(monkeypatch, "cifar100", 4, 2)
    (folder / "meta").write_bytes(python2_pickle({b"fine_label_names": [b"cat"]}))
    refused(lambda: data.load("cifar100"), "meta", "a different data set")
    (folder / "test").unlink()
    refused(lambda: data.load("cifar100"), "cannot read", "test")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"X": images(3), "y": [[1], [2], [3]]}, ["X of uint8"]),
        ({"X": images(3).transpose(1, 2, 3, 0).astype(float), "y": [[1], [2], [3]]}, ["X of uint8"]),
        ({"X": images(3).transpose(1, 2, 3, 0), "y": [[1], [2]]}, ["one digit y", "3 images"]),
        ({"X": images(3).transpose(1, 2, 3, 0), "y": [[1], [2], [11]]}, ["outside 1..10"]),
        ({"X": images(3).transpose(1, 2, 3, 0), "y": [[0], [2], [1]]}, ["outside 1..10"]),
        ({"X": images(3).transpose(1, 2, 3, 0)}, ["one digit y"]),
        ({"z": 1}, ["X of uint8"]),
        (None, ["not a readable .mat"]),
    ],
)
def test_bad_mat_files_are_refused(root: Path, monkeypatch, content, words, refused):
    train, test = svhn_files(root, images(3), images(3))
    if content is None:
        test.write_bytes(test.read_bytes()[:700])
    else:
        savemat(test, content)
    shrink(monkeypatch, "svhn", 3, 3, train, test)
    refused(lambda: data.load("svhn"), str(test), *words)


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        # The memo's entry 2³¹ − 1: the unpickler in C would allocate 34 GB.
        (b"\x80\x02}r\xff\xff\xff\x7f.", ["3×32×32"]),
        # Tuples of tuples, 60 deep: as a key of a dict, its hash takes 2⁶⁰ steps.
        (b"\x80\x02}(" + b")" + b"q\0h\0\x86" * 60 + b"Nu.", ["a key that is neither"]),
        (b"\x80\x02}((" + b")" + b"q\0h\0\x86" * 60 + b"Nds.", ["damaged"]),
        (b"\x80\x02})" + b"q\0h\0\x86" * 60 + b"Ns.", ["a key that is neither"]),
        (b"\x80\x04\x8f(" + b")" + b"q\0h\0\x86" * 60 + b"\x90.", ["damaged"]),
        # Eight exabytes, says the header.
        (b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7fabc.", ["damaged"]),
        # A state for the function that makes arrays.
        (b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n}U\x01aU\x01bsb.", ["an object that is not an array"]),
        (b"\x80\x02c" + b"x" * 9 + b"\ny\n.", ["uses xxxxxxxxx.y"]),
    ],
)
def test_costly_pickles_are_refused(root: Path, monkeypatch, batch, words, refused):
    test_bad_batches_are_refused(root, monkeypatch, batch, words, refused)


def test_archives_that_expand_are_refused(tmp_path, monkeypatch, refused):
    monkeypatch.setattr(archive, "MAX_BYTES", 10_000_000)
    long_name = tarfile.TarInfo("x")
    long_name.type, long_name.size = tarfile.GNUTYPE_LONGNAME, 50_000_000
    path = tmp_path / "x.tar.gz"
    path.write_bytes(gzip.compress(long_name.tobuf() + bytes(50_000_000)))  # 50 kB
    refused(lambda: archive.read_members(path, ["a"]), str(path), "more than 10,000,000 bytes")
    monkeypatch.setattr(archive, "MAX_MEMBERS", 2)
    refused(lambda: archive.read_members(tar_gz(path, dict.fromkeys("abc", b"")), ["a"]), "more than 2 files")


def test_pipes_in_an_unpacked_folder_are_refused(root: Path, monkeypatch, refused):
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "data_batch_1")
    refused(lambda: data.load("cifar10"), "data_batch_1", "not a regular file")
