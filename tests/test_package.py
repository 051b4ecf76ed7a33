"""The package as a whole: what `import aag` offers and costs, and what it says of itself."""

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement

import aag
from aag import provenance

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
HEAVY = ("torch", "torchvision", "timm", "numpy", "PIL", "scipy")


def python(code: str, **environment: str) -> str:
    """What a fresh interpreter prints."""
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ | environment
    )
    return ran.stdout


# --- importing --------------------------------------------------------------------------------------------------------


def test_importing_the_package_imports_nothing_heavy():
    assert python(f"import aag, sys; print([m for m in {HEAVY} if m in sys.modules])") == "[]\n"


def test_what_needs_no_tensors_stays_light():
    light = "aag.AAGError, aag.data.list_datasets(), aag.data.data_root()"
    assert python(f"import aag, sys; {light}; print([m for m in {HEAVY} if m in sys.modules])") == "[]\n"


@pytest.mark.parametrize("piece", ["losses.gnt_xent", "augment.AutoAugment()", "evaluate.knn_accuracy", "nets.build"])
def test_one_piece_loads_no_other(piece):
    """Who takes the loss alone pays for torch, and for nothing that the command line or other pieces need."""
    others = (
        "tyro",
        "rich",
        "timm",
        "sklearn",
        "scipy",
        "matplotlib",
        "pyarrow",
        "torchvision",
        "aag.training",
        "aag.cli",
    )
    assert python(f"import aag, sys; aag.{piece}; print([m for m in {others} if m in sys.modules])") == "[]\n"


def test_every_public_name_is_there():
    for name in aag.__all__:
        assert getattr(aag, name) is not None
    assert set(aag.__all__) <= set(dir(aag))
    for package in (aag.data, aag.serving):
        assert set(package.__all__) <= set(dir(package))
    with pytest.raises(AttributeError, match="no attribute 'loses'"):
        aag.loses  # noqa: B018


def test_the_version_is_that_of_the_distribution():
    assert PROJECT["project"]["version"] == aag.__version__
    assert f"\nversion: {aag.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_every_dependency_is_pinned_by_name_version_and_hashes_alone():
    text = (ROOT / "constraints.txt").read_text()
    entries = [entry.split(" \\\n    ") for entry in re.split(r"\n(?! )", text.rstrip("\n"))]
    lines = [line for line, *_ in entries]
    assert [line for line in lines if not re.fullmatch(r"[a-z0-9-]+==[\w.]+( ; [^@#/]+)?", line)] == []
    for line, *hashes in entries:  # without one, uv would not check the package's files
        assert hashes, line
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", each) for each in hashes), line
    pinned = {line.partition("==")[0]: line.partition("==")[2].partition(" ;")[0] for line in lines}
    groups = (
        PROJECT["project"]["dependencies"],
        PROJECT["build-system"]["requires"],
        *PROJECT["dependency-groups"].values(),
    )
    for requirement in map(Requirement, chain(*groups)):
        assert requirement.specifier.contains(pinned[requirement.name.lower()]), f"{requirement}: run make pins"


# --- the documented calls ---------------------------------------------------------------------------------------------

NONE_GIVEN = inspect.Parameter.empty
FEATURES = dict.fromkeys(("train_features", "train_labels", "test_features", "test_labels"), NONE_GIVEN)
VIEWS = dict.fromkeys(("x", "y", "z"), NONE_GIVEN)
CALLS = {  # positional parameters and keyword-only ones, each with its default
    "losses.gnt_xent": (VIEWS, {"temperature": 0.1, "one_way": False}),
    "losses.nt_xent": (VIEWS, {"temperature": 0.1, "one_way": False}),
    "augment.AutoAugment": ({"policy": "cifar10"}, {}),
    "augment.RandAugment": ({"n": 2, "magnitude": 10, "bins": 31}, {}),
    "augment.apply_op": ({"name": NONE_GIVEN, "images": NONE_GIVEN, "magnitude": None}, {}),
    "augment.AutoAugment.__call__": ({"self": NONE_GIVEN, "images": NONE_GIVEN}, {"seed": None, "key": None}),
    "augment.RandAugment.__call__": ({"self": NONE_GIVEN, "images": NONE_GIVEN}, {"seed": None, "key": None}),
    "augment.BasicAugment.__call__": ({"self": NONE_GIVEN, "images": NONE_GIVEN}, {"seed": None, "key": None}),
    "evaluate.knn_accuracy": (FEATURES, {"k": 200, "temperature": 0.1}),
    "evaluate.linear_probe": (
        FEATURES, {"epochs": 50, "batch_size": 128, "lr": 0.01, "weight_decay": 0.0, "seed": 0},
    ),
    "load": ({"run_or_file": NONE_GIVEN}, {"device": "cpu", "backbone": None}),
}  # fmt: skip


@pytest.mark.parametrize("path", CALLS)
def test_a_documented_call_has_its_signature(path):
    thing = aag
    for name in path.split("."):
        thing = getattr(thing, name)
    parameters = inspect.signature(thing).parameters.values()
    only = inspect.Parameter.KEYWORD_ONLY
    positional = {p.name: p.default for p in parameters if p.kind is not only}
    assert (positional, {p.name: p.default for p in parameters if p.kind is only}) == CALLS[path]


# --- provenance -------------------------------------------------------------------------------------------------------


def test_provenance_names_machine_and_versions():
    made = provenance.provenance("cpu")
    assert made["torch"] == torch.__version__.partition("+")[0] or made["torch"] == torch.__version__
    assert made["aag"] == aag.__version__
    assert made["python"] == ".".join(map(str, sys.version_info[:3]))
    assert all(made[name] for name in ("timm", "numpy", "pillow", "cpu"))
    assert made["gpu"] is made["cuda"] is None
    assert json.loads(json.dumps(made)) == made


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A folder that holds the package's provenance.py and what importing the package needs."""
    package = tmp_path / "copy" / "aag"
    package.mkdir(parents=True)
    for name in ("__init__.py", "lazy.py", "provenance.py"):
        shutil.copy(Path(aag.__file__).parent / name, package / name)
    return package.parent


def commit(folder: Path, **environment: str) -> str:
    settings = {"PYTHONPATH": str(folder), "AAG_COMMIT": "", **environment}
    code = "import aag, aag.provenance as p; print(aag.__file__); print(p.commit() or None)"
    where, answer = python(code, **settings).splitlines()
    assert Path(where).parent.parent == folder
    return answer


needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    ran = subprocess.run(["git", "-C", str(folder), *who, *words], capture_output=True, text=True, check=True)
    return ran.stdout.strip()


@needs_git
def test_the_commit_is_that_of_the_checkout_and_says_when_it_was_changed(copied):
    git(copied, "init", "--quiet")
    git(copied, "add", ".")
    git(copied, "commit", "--quiet", "--message", "first", "--no-verify")
    git(copied, "tag", "v1")  # a tag is no commit
    head = git(copied, "rev-parse", "HEAD")[:12]
    assert commit(copied) == head
    with (copied / "aag" / "provenance.py").open("a") as file:
        file.write("# changed\n")
    assert commit(copied) == f"{head}-dirty"
    assert commit(copied, AAG_COMMIT="a copy's") == "a copy's"  # whose history stayed behind


def test_outside_a_checkout_the_environment_says_the_commit(copied):
    assert commit(copied, AAG_COMMIT="abc123") == "abc123"
    assert commit(copied) == "None"


@needs_git
def test_a_package_installed_below_someone_elses_checkout_does_not_take_its_commit(copied):
    git(copied, "init", "--quiet")  # a project whose ignored .venv holds aag
    git(copied, "commit", "--quiet", "--allow-empty", "--message", "theirs", "--no-verify")
    assert commit(copied, AAG_COMMIT="ours") == "ours"
