"""The pages are true: their Python runs, their tables are what the records say, their options exist."""

import json
import re
import runpy
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from aag import nets
from aag.cli import Bench
from aag.config import LOSSES_OF, METHODS, TrainConfig, recipe_config
from aag.paper import Results
from aag.paper.plan import Reproduce
from aag.recipes import RECIPES

ROOT = Path(__file__).parent.parent
PAGES = {name: (ROOT / name).read_text() for name in ("README.md", "docs/methods.md")}
README, PAGE = PAGES.values()


def test_the_python_of_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "runs" / recipe_config("demo", "sample").run_name()
    assert str(run.relative_to(tmp_path)) in README
    run.mkdir(parents=True)
    nets.save(nets.build(nets.EncoderSpec(width=4)), run / "encoder.safetensors")
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert len(blocks) >= 4
    assert isinstance(names["loss"], torch.Tensor)


def test_the_python_of_the_methods_page_runs():
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(block, "docs/methods.md", "exec"), names)
    outcome = names["outcome"]
    assert torch.isfinite(outcome.loss)
    assert len(outcome.log) == len(names["method"].logs)
    assert all(weight.grad is not None for weight in names["encoder"].parameters())


@pytest.fixture(scope="module")
def tables():
    return runpy.run_path(str(ROOT / "tools" / "make_tables.py"))


@pytest.mark.parametrize("name", PAGES)
def test_the_tables_are_what_the_records_say(tables, name):
    assert tables["filled"](PAGES[name]) == PAGES[name]


@pytest.mark.parametrize("name", PAGES)
def test_a_number_that_names_a_record_is_in_it(name):
    found = re.findall(r"\[(\d+\.\d+)\]\(([^)]*results/[^)]*\.json)\)", PAGES[name])
    for number, path in found:
        record = json.loads((ROOT / name).parent.joinpath(path).read_text())
        known = [record["knn"]["last"], *(row["accuracy"] for row in record["evaluation"])]
        assert number in [f"{value:.2f}" for value in known]
    assert found


@pytest.mark.parametrize("name", RECIPES)
def test_what_to_expect_of_a_recipe_is_what_its_records_say(name):
    runs = Results(ROOT / "results").of(recipe_config(name, "cifar10"))
    told = re.search(r"([\d.]+) here, in (\d+) minutes on one H200", RECIPES[name].expect)
    assert bool(told) == bool(runs)
    if told:
        assert told[1] == f"{sum(run.record['knn']['last'] for run in runs) / len(runs):.1f}"
        assert abs(int(told[2]) * 60 - runs[0].record["seconds"]) <= 30


def test_every_table_has_its_place(tables):
    assert set(PAGES) == set(tables["PAGES"])
    for name in tables["TABLES"]:
        assert "".join(PAGES.values()).count(f"<!-- {name} -->\n") == 1


@pytest.mark.parametrize("name", PAGES)
def test_every_option_exists(name):
    options = [*fields(TrainConfig), *fields(Bench), *fields(Reproduce)]
    known = {"--" + field.name.replace("_", "-") for field in options} | {"--help"}
    known |= {"--no-" + field.name for field in options if field.type is bool}
    page = PAGES[name]
    assert set(re.findall(r"(--[a-z][a-z-]*)", page)) <= known
    for recipe in re.findall(r"--recipe ([\w-]+)", page):
        assert recipe in RECIPES
    for method in re.findall(r"--method ([a-z-]+)", page):
        assert method in METHODS


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name):
    page = PAGES[name]
    anchors = {heading.lower().replace(" ", "-") for heading in re.findall(r"^#+ (.+)$", page, re.MULTILINE)}
    for target in re.findall(r"\]\(([^)]+)\)", page):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        assert (ROOT / name).parent.joinpath(path).exists(), target
        assert path or anchor in anchors, target


def test_the_methods_page_tells_every_method_and_its_losses():
    headings = re.findall(r"^### (.+)$", PAGE, re.MULTILINE)
    assert tuple(headings) == METHODS
    rows = re.findall(r"^\| `(\S+)` \| (.*) \|$", PAGE, re.MULTILINE)
    told = {method: re.findall(r"`([\w-]+)`", losses) for method, losses in rows}
    assert told.keys() == LOSSES_OF.keys()
    for method, losses in told.items():
        assert set(losses) == set(LOSSES_OF[method])
        assert losses[0] == recipe_config("auto", "cifar10", method).loss


def test_every_command_in_the_makefile_that_the_readme_names_exists():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert f"\n{target}:" in makefile
