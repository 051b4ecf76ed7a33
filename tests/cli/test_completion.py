"""Completion scripts: run by the shell that they are for."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from commands import QUICK, aag_, refused

from aag.cli import command_names
from aag.cli.completion import commands, completion_script


@pytest.fixture(scope="module")
def script() -> str:
    return completion_script("bash")


def complete(script: str, line: str) -> list[str]:
    """What bash proposes after this line, whose last word is being typed; with files as readline would."""
    words = line.split(" ")
    code = f"""
source /dev/stdin <<'SCRIPT'
{script}
SCRIPT
COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}
_aag
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    ran = subprocess.run(["bash", "--norc", "-c", code], capture_output=True, text=True, check=True)
    assert ran.stderr == ""
    return ran.stdout.split()


def test_bash_completes_commands(script):
    assert complete(script, "aag tr") == ["train"]
    assert set(command_names()) <= set(complete(script, "aag "))


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("aag train --sched", ["--schedule"]),
        ("aag train --schedule ", ["cosine", "step", "constant"]),
        ("aag train --schedule = co", ["cosine", "constant"]),  # bash splits at the sign
        ("aag train --track ", ["tensorboard", "wandb", "trackio"]),
        ("aag train --data cifar", ["cifar10", "cifar100"]),
        ("aag train --method si", ["simclr"]),
        ("aag train --queue", ["--queue"]),  # an option of one method
        ("aag train --no-nest", ["--no-nesterov"]),
        ("aag train --nesterov --no-fl", ["--no-flip"]),  # a flag takes no value
        ("aag train --out run", []),  # files: bash's own completion
        ("aag export runs/x --format on", ["onnx"]),
        ("aag export run", []),
        ("aag data ", ["fetch", "clear"]),
        ("aag data fetch --sou", ["--source"]),
        ("aag data fetch --source n", ["npm"]),
        ("aag reproduce page --mark", ["--markdown"]),
        ("aag reproduce --wh", []),  # the names are written without an option
        ("aag sweep --one-at", ["--one-at-a-time"]),
        ("aag sweep --rank-by ", ["auto", "knn", "linear", "agreement"]),
        ("aag sweep --sched", ["--schedule"]),  # options of train
        ("aag completion ", ["bash", "zsh", "fish"]),
    ],
)
def test_bash_completes(script, line, wanted):
    assert complete(script, line) == wanted


def test_the_script_falls_back_to_files(script):
    assert "complete -o default -F _aag aag" in script


@pytest.fixture(scope="module")
def declared():
    return commands()


@pytest.mark.parametrize("name", command_names())
def test_the_options_of_a_commands_help_are_completed(declared, name):
    shown = set(re.findall(r"^[│ ]*(--[a-z][a-z-]*)", aag_(name, "--help").out, re.MULTILINE)) - {"--help"}
    assert shown <= set(declared[name].options)
    assert shown or name in ("data", "completion")


@pytest.mark.parametrize(("shell", "check"), [("zsh", ["zsh", "-n"]), ("fish", ["fish", "--no-execute"])])
def test_other_shells_accept_their_scripts(shell, check, tmp_path):
    text = completion_script(shell)
    for name in command_names():
        assert name in text
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed: its syntax is not checked")
    path = tmp_path / "script"
    path.write_text(text)
    subprocess.run([*check, str(path)], check=True)


def test_the_command_prints_the_script(script):
    assert aag_("completion", "bash").out == script
    assert "shell" in refused("completion") or "bash" in refused("completion")
    assert "tcsh" in refused("completion", "tcsh")


# --- tables as JSON ---------------------------------------------------------------------------------------------------


def parse_json(*words: object) -> list[dict]:
    ran = aag_(*words, "--json")
    assert (ran.code, ran.err) == (0, "")
    return json.loads(ran.out)


def test_listings_are_json_alone_on_stdout():
    methods = {row["method"]: row for row in parse_json("methods")}
    assert "--queue" in {setting["option"] for setting in methods["moco"]["settings"]}
    recipes = {row["recipe"]: row for row in parse_json("recipes")}
    assert recipes["demo"]["settings"]["width"] == 8


def test_the_listings_of_the_paper_are_json():
    parts = {row["name"]: row for row in parse_json("reproduce")}
    assert parts["table1"]["runs"] == sum(
        parts["table1"][status] for status in ("recorded", "incomplete", "started", "stale", "missing")
    )
    runs = parse_json("reproduce", "table1", "--list")
    assert len(runs) == parts["table1"]["runs"]
    assert runs[0]["status"] == "missing"
    assert "give --list, too" in refused("reproduce", "table1", "--json")


def test_data_sets_are_json():
    rows = {row["set"]: row for row in parse_json("data")}
    assert (rows["cifar10"]["train"], rows["cifar10"]["path"]) == (50_000, None)
    assert "did you mean --json" in refused("data", "--jsn")


def test_an_evaluation_is_json(npz):
    aag_("train", "--data", npz, "--epochs", "1", "--batch-size", "16", "--out", "run", *QUICK)
    ran = aag_("evaluate", "run", "--linear-epochs", "1", "--json", "--device", "cpu")
    rows = json.loads(ran.out)
    assert [row["name"] for row in rows] == ["kNN (embedding)", "kNN (features)", "linear (features)"]
    assert rows == json.loads(Path("run/evaluation.json").read_text())["results"]
    assert "saved in run/evaluation.json" in ran.err


@pytest.mark.parametrize("name", command_names())
def test_every_command_that_prints_a_table_has_json(declared, name):
    text = (Path(__file__).parents[2] / "src" / "aag" / "cli" / f"{name}.py").read_text()
    if "Table(" in text or "print_rows" in text:
        assert "--json" in declared[name].options
