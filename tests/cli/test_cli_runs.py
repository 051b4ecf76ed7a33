"""Training and evaluating from the command line."""

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import QUICK, Ran, aag_, refused
from PIL import Image

import aag
from aag.runs import Run
from aag.serving.table import read_table
from aag.training import recipe_settings

VICREG = f"{Path(__file__).parents[2] / 'examples' / 'vicreg.py'}:VICReg"

# --- training and evaluating ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trained:
    command: tuple[object, ...]
    ran: Ran
    folder: Path

    @property
    def run(self) -> Run:
        return Run.open(self.folder)


@pytest.fixture(scope="module")
def trained(npz, tmp_path_factory) -> Trained:
    folder = tmp_path_factory.mktemp("runs") / "it's a run [old]"  # what a path may hold
    command = ("train", "--data", npz, *QUICK, "--epochs", 2, "--batch-size", 24, "--knn-every", 1, "--out", folder)
    return Trained(command, aag_(*command), folder)


def test_train_tells_what_it_does_and_what_came_of_it(trained):
    ran, run = trained.ran, trained.run
    assert (ran.code, ran.err) == (0, "")
    for line in (
        "data     tiny: 96 train + 40 test images, 32×32, 4 classes",
        "method   aag: 2 basic views + autoaugment, gnt-xent, τ 0.1",
        "network  resnet18 (width 4), 2 epochs of 4 steps of 24 images",
        "runs on  CPU, 1 thread, fp32, channels last",
        f"run      {trained.folder}\n",
    ):
        assert line in ran.out
    accuracies = [row["knn"] for row in run.metrics() if row["kind"] == "knn"]
    untrained, _, last = accuracies
    best = max(accuracies[1:])
    assert f"kNN      untrained {untrained:.2f} %  →  trained {last:.2f} %  (last epoch; best {best:.2f} %)" in ran.out
    assert re.search(r"^time     \d+ s of training at [\d,]+ views/s$", ran.out, re.MULTILINE)
    rest = ran.out[ran.out.index("Next:") :]
    (evaluate,) = re.findall(r"^  (aag evaluate .*)$", rest, re.MULTILINE)
    assert shlex.split(evaluate) == ["aag", "evaluate", str(trained.folder)]  # as a shell reads it
    assert "cifar10" not in rest  # the next steps after the sample are none after one's own data


def test_the_command_that_is_offered_for_embedding_works(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (command,) = re.findall(r"^  aag (embed .*)$", trained.ran.out, re.MULTILINE)
    ran = aag_(*shlex.split(command), "--device", "cpu")
    assert (ran.code, ran.err) == (0, "")
    assert read_table("embeddings.parquet").embeddings.shape == (136, 128)


def test_the_same_command_again_says_it_is_complete_and_changes_nothing(trained):
    def content() -> dict[str, bytes]:
        # safetensors writes its header in any order, so the encoder's weights are compared and not its bytes.
        return {path.name: path.read_bytes() for path in trained.folder.iterdir() if path.suffix != ".safetensors"}

    before, weights = content(), aag.load(trained.folder).state_dict()
    again = aag_(*trained.command)
    assert (again.code, again.err) == (0, "")
    assert f"run      {trained.folder} (complete)\n" in again.out
    assert again.out[again.out.index("\nkNN ") :] == trained.ran.out[trained.ran.out.index("\nkNN ") :]
    assert content() == before
    assert all(torch.equal(weights[name], value) for name, value in aag.load(trained.folder).state_dict().items())


def test_evaluate_shows_and_saves_numbers_with_their_protocols(trained, tmp_path):
    records = tmp_path / "records"
    ran = aag_("evaluate", trained.folder, "--device", "cpu", "--record", records)
    assert (ran.code, ran.err) == (0, "")
    saved = json.loads(trained.run.evaluation_file.read_text())
    assert [row["name"] for row in saved["results"]] == ["kNN (embedding)", "kNN (features)", "linear (features)"]
    for row in saved["results"]:
        assert row["name"] in ran.out
        assert f"{row['accuracy']:.2f} %" in ran.out
        assert {"layer", "precision", "data", "train", "test", "dimensions"} <= row["protocol"].keys()
    assert saved["results"][2]["protocol"]["epochs"] == 50
    assert saved["data"] == str(trained.command[2])
    assert {"torch", "python", "commit", "cpu"} <= saved.keys()
    assert f"{trained.folder.name}, on tiny" in ran.out
    assert f"saved in {trained.run.evaluation_file}\n" in ran.out
    assert "unfinished" not in ran.out

    # The kNN that training logged last is the one that the saved encoder gives.
    knn = [row["knn"] for row in trained.run.metrics() if row["kind"] == "knn"]
    assert saved["results"][0]["accuracy"] == knn[-1]

    (path,) = records.iterdir()
    assert f"recorded in {path}\n" in ran.out
    record = json.loads(path.read_text())
    assert record["evaluation"] == saved["results"]
    assert record["knn"]["last"] == round(knn[-1], 2)
    assert record["knn"]["best"] == round(max(knn[1:]), 2)
    epochs = [row for row in trained.run.metrics() if row["kind"] == "epoch"]
    assert record["loss_by_epoch"] == [[row["epoch"], round(row["loss"], 4)] for row in epochs]
    assert record["seconds"] == epochs[-1]["seconds"]
    assert record["settings"] == trained.run.settings()


def test_the_test_split_of_a_run_that_holds_out_images_is_evaluated_apart(npz):
    options = ["--holdout", 0.2, "--epochs", 1, "--batch-size", 24, "--out", "run"]
    assert aag_("train", "--data", npz, *QUICK, *options).code == 0
    assert aag_("evaluate", "run", "--no-linear").code == 0
    assert "saved in run/evaluation-tiny.json" in aag_("evaluate", "run", "--data", npz, "--no-linear").out
    own, other = (json.loads(Path("run", name).read_text())["results"][0]["protocol"]["test"]
                  for name in ("evaluation.json", "evaluation-tiny.json"))  # fmt: skip
    assert (own, other) == (19, 40)
    assert "leave out --data" in refused("evaluate", "run", "--data", npz, "--record", "records")


def test_evaluate_without_the_linear_layer_and_with_another_k(trained):
    ran = aag_("evaluate", trained.folder, "--no-linear", "--k", 5, "--temperature", 0.5)
    assert ran.code == 0
    assert "linear" not in ran.words.replace("--linear", "")
    assert "k 5, temperature 0.5" in ran.words


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--k", "0"], "k must be at least 1"),
        (["--linear-epochs", "0"], "epochs must be at least 1 and at most"),
        (["--precision", "fp16"], "--precision takes one of auto, bf16, fp32, not 'fp16'"),
        (["--data", "smaple"], "unknown data set 'smaple'; did you mean sample"),
    ],
)
def test_mistakes_in_evaluating_are_told_in_one_line(trained, words, told):
    assert told in refused("evaluate", trained.folder, *words)


def test_a_run_that_has_saved_no_encoder_yet_is_named(tmp_path):
    run = Run(tmp_path / "run")
    with run.lock():
        run.start(recipe_settings("paper", "cifar10").resolve("fp32").to_json())
    assert "run has no encoder yet" in refused("evaluate", tmp_path / "run")


# --- more epochs, other weights, other methods -----------------------------------------------------------------------


def test_a_run_that_cannot_be_extended_says_what_to_type(trained):
    told = refused(*trained.command, "--epochs", 3)
    assert "epochs 2 there, 3 here" in told
    assert f"use --from {shlex.quote(str(trained.folder))} with another --out" in told


def test_a_method_of_ones_own_is_trained_by_its_file_and_class(npz):
    words = ["train", "--method", VICREG, "--data", npz]
    shown = aag_(*words, "--help")
    assert shown.code == 0
    assert "--expander INT" in shown.out
    assert "Weight of the covariance term" in shown.words
    assert "--auxiliary" not in shown.out
    ran = aag_(*words, *QUICK, "--epochs", 4, "--batch-size", 24, "--expander", 64, "--lr", 0.1)
    assert (ran.code, ran.err) == (0, "")
    (folder,) = Path("runs").iterdir()
    assert folder.name.startswith("tiny-resnet18-vicreg-seed0-width=4-")
    run = Run(folder)
    rows = [row for row in run.metrics() if row["kind"] == "epoch"]
    assert rows[-1]["loss"] < rows[0]["loss"] - 0.5
    assert {"invariance", "variance", "covariance"} <= rows[0].keys()
    assert run.settings()["method"]["expander"] == 64
    assert aag_("evaluate", folder, "--linear-epochs", 1).code == 0


# --- what is damaged, full or in the way ------------------------------------------------------------------------------


def test_an_evaluation_on_a_full_disk_is_printed_before_it_is_lost(trained, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    ran = aag_("evaluate", trained.folder, "--no-linear")
    assert ran.code == 2
    assert re.search(r"kNN \(embedding\).*\d+\.\d\d %", ran.out)
    assert re.fullmatch(r"error: cannot write .*evaluation\.json: No space left on device\n", ran.err)


# --- images without labels --------------------------------------------------------------------------------------------


@pytest.fixture
def photos(tmp_path: Path, photographs: torch.Tensor) -> Path:
    """A flat folder: 16 pictures of many sizes and three formats, two broken ones, and a text."""
    folder = tmp_path / "my photos [2019]"
    folder.mkdir()
    for i, pixels in enumerate(photographs[:16].permute(0, 2, 3, 1).numpy()):
        picture = Image.fromarray(pixels).resize((24 + 3 * i, 60 - 2 * i))
        picture.save(folder / f"{i}.{('png', 'jpg', 'webp')[i % 3]}")
    (folder / "broken.png").write_bytes(b"no picture")
    (folder / "cut [off].jpg").write_bytes((folder / "1.jpg").read_bytes()[:200])
    (folder / "notes.txt").write_text("not a picture")
    return folder


@pytest.mark.parametrize("size", [None, 16])
def test_a_folder_of_pictures_trains(photos, size):
    words = ["--batch-size", 8, "--epochs", 1, *QUICK] + ([] if size is None else ["--image-size", size])
    ran = aag_("train", "--data", photos, *words)
    assert (ran.code, ran.err) == (0, "")
    side = size or 32
    assert f"data     my photos [2019]: 16 train images, {side}×{side}, no labels\n" in ran.out
    listed = re.search(r"^ +2 files skipped, listed in (.+)$", ran.out, re.MULTILINE)
    assert listed
    assert re.search(r"^broken\.png: \w", Path(listed[1]).read_text(), re.MULTILINE)
    assert "no labelled test images: training without kNN" in ran.out
    (folder,) = Path("runs").iterdir()
    assert folder.name.startswith("my_photos__2019_-auto-seed0-")
    assert ("image-size=16" in folder.name) == (size == 16)
    assert "aag evaluate" not in ran.out  # there is nothing to evaluate with
    encoder = aag.load(folder)
    assert encoder.spec.image_size == side
    assert encoder.embed(torch.zeros(2, 3, side, side)).shape == (2, 128)

    told = refused("evaluate", folder)
    assert "my photos [2019] has no labels, and evaluation needs them; give labelled data with --data" in told


def test_another_set_is_taken_at_the_size_that_was_trained(photos, tmp_path, photographs):
    words = ["--batch-size", 8, "--epochs", 1, *QUICK, "--image-size", 16, "--out", "run"]
    assert aag_("train", "--data", photos, *words).code == 0
    for i, pixels in enumerate(photographs[:12].permute(0, 2, 3, 1).numpy()):
        path = tmp_path / "other" / ("train", "test")[i % 2] / str(i % 3) / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    assert aag_("evaluate", "run", "--data", tmp_path / "other", "--linear-epochs", 1).code == 0
    results = json.loads(Path("run/evaluation-other.json").read_text())["results"]
    assert {row["protocol"]["image_size"] for row in results} == {16}


def test_a_slash_at_the_end_makes_no_other_run(photos, monkeypatch):
    monkeypatch.chdir(photos.parent)
    words = ["--batch-size", 8, "--epochs", 1, *QUICK]
    assert aag_("train", "--data", photos.name, *words).code == 0
    for same in (f"{photos.name}/", f"./{photos.name}"):
        ran = aag_("train", "--data", same, *words)
        assert ran.code == 0
        assert "(complete)" in ran.out


def test_a_test_part_without_labels_is_told(tmp_path, npz):
    arrays = dict(np.load(npz))
    del arrays["test_labels"]
    np.savez(tmp_path / "unlabelled.npz", **arrays)
    ran = aag_("train", "--data", tmp_path / "unlabelled.npz", "--batch-size", 48, "--epochs", 1, *QUICK)
    assert ran.code == 0
    assert "4 classes\n" in ran.out
    assert "no labelled test images: training without kNN" in ran.out
