"""A folder of one's own images on the command line: every image, labels, a held-out part, and the decoded copy."""

from pathlib import Path

import pytest
import torch
from commands import QUICK, aag_, refused
from PIL import Image

from aag.runs import Run


@pytest.fixture
def albums(tmp_path: Path, photographs: torch.Tensor) -> Path:
    """60 photographs in two albums and 12 loose ones, one of them broken."""
    folder = tmp_path / "albums"
    for i, pixels in enumerate(photographs[:72].permute(0, 2, 3, 1).numpy()):
        path = folder / ("", "cats", "dogs", "cats", "dogs", "dogs")[i % 6] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    (folder / "0.png").write_bytes(b"broken")
    return folder


def train(albums: Path, out: str, *words: object) -> str:
    ran = aag_("train", "--data", albums, "--out", out, *QUICK, "--epochs", 1, "--batch-size", 16, *words)
    assert (ran.code, ran.err) == (0, "")
    return ran.out


def test_every_image_is_trained_on_and_a_part_held_out(albums):
    out = train(albums, "run", "--holdout", 0.2)
    assert "images to 32×32" in out  # the size is said beforehand
    assert ", 2 classes, 11 images without a label" in out
    assert "1 file skipped" in out
    assert Run("run").settings()["data"]["holdout"] == 0.2
    assert "labels" not in Run("run").settings()["data"]
    ran = aag_("evaluate", "run", "--linear-epochs", 1)
    assert (ran.code, ran.err) == (0, "")
    assert "decoding" not in ran.out  # once is enough
    protocol = Run("run").evaluation()["results"][0]["protocol"]
    assert protocol["train"] + protocol["test"] == 60
    assert any(row["kind"] == "knn" for row in Run("run").metrics())
    assert "decoding" not in train(albums, "run", "--holdout", 0.2)
    assert "holdout 0.2 there, 0.3 here" in refused(
        "train", "--data", albums, "--out", "run", *QUICK, "--epochs", 1, "--batch-size", 16, "--holdout", 0.3
    )


def test_evaluation_without_a_test_split_names_holdout(albums):
    assert "no labels" in train(albums, "bare", "--labels", "none")
    assert Run("bare").settings()["data"]["labels"] == "none"
    assert "has no labels" in refused("evaluate", "bare")
    assert "71 train images" in train(albums, "run")
    assert "train with --holdout 0.1" in refused("evaluate", "run")
    assert "given with --data" in refused("evaluate", "run", "--holdout", 0.2)
    ran = aag_("evaluate", "run", "--data", albums, "--holdout", 0.2, "--no-linear")
    assert (ran.code, ran.err) == (0, "")


def test_decoded_folders_are_listed_and_cleared(albums):
    train(albums, "run")
    listed = aag_("data").out
    assert "Decoded folders" in listed
    assert "albums-32-" in listed
    assert "deleted" in aag_("data", "clear").out
    assert "Decoded folders" not in aag_("data").out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--network", "resnt34"), "unknown network 'resnt34'"),
        (("--network", "timm/resnet18", "--pretrained", "none.pth"), "none.pth: no such file"),
        (("--pretrained", "timm"), "--pretrained timm does not fit resnet18"),
        (("--from", "nowhere"), "nowhere"),
    ],
)
def test_a_network_that_cannot_be_built_is_told_before_decoding(albums, words, told):
    assert told in refused("train", "--data", albums, "--out", "run", "--epochs", 1, "--device", "cpu", *words)
