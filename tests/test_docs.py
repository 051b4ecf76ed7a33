"""The pages are true: their Python runs, their tables are what the records say, their options exist."""

import json
import re
import runpy
import sys
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest

from aag import nets
from aag.cli import Bench, Evaluate
from aag.config import LOSSES_OF, METHODS, TrainConfig, recipe_config
from aag.paper import Results
from aag.paper.plan import Reproduce
from aag.recipes import RECIPES

ROOT = Path(__file__).parent.parent
PATHS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
PAGES = {path.relative_to(ROOT).as_posix(): path.read_text() for path in PATHS}
README, METHODS_PAGE = PAGES["README.md"], PAGES["docs/methods.md"]
BLOCKS = {name: re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE) for name, page in PAGES.items()}
DEMO_RUN = "runs/sample-resnet18-demo-seed0"  # the run that `make demo` makes and the pages use


@pytest.mark.parametrize("name", [name for name, blocks in BLOCKS.items() if blocks])
def test_python_blocks_run_in_order(name, tmp_path, monkeypatch):
    """All blocks of a page share one namespace and start in a folder that holds nothing but the demo's run."""
    monkeypatch.chdir(tmp_path)
    Path(DEMO_RUN).mkdir(parents=True)
    nets.save(nets.build(nets.EncoderSpec(width=4)), Path(DEMO_RUN, "encoder.safetensors"))
    module = ModuleType("page")  # dataclasses look up their module
    monkeypatch.setitem(sys.modules, "page", module)
    for number, block in enumerate(BLOCKS[name], 1):
        exec(compile(block, f"{name}, block {number}", "exec"), module.__dict__)


def test_pages_use_the_run_of_the_demo():
    assert f"runs/{recipe_config('demo', 'sample').run_name()}" == DEMO_RUN
    assert DEMO_RUN in README


@pytest.fixture(scope="module")
def tables():
    return runpy.run_path(str(ROOT / "tools" / "make_tables.py"))


@pytest.mark.parametrize("name", ["README.md", "docs/methods.md", "docs/benchmarks.md"])
def test_the_tables_are_what_the_records_say(tables, name):
    assert tables["filled"](PAGES[name], name) == PAGES[name]


@pytest.mark.parametrize("name", ["README.md", "docs/images.md", "docs/methods.md"])
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
    pages = "".join(PAGES[name] for name in tables["PAGES"])
    for name in tables["TABLES"]:
        assert f"<!-- {name} -->\n" in pages
    assert len(re.findall(r"<!-- \w+ -->", "".join(PAGES.values()))) == len(re.findall(r"<!-- \w+ -->", pages))


@pytest.mark.parametrize("name", PAGES)
def test_every_option_exists(name):
    options = [field for command in (TrainConfig, Evaluate, Bench, Reproduce) for field in fields(command)]
    known = {"--" + field.name.replace("_", "-") for field in options} | {"--help", "--version"}
    known |= {"--no-" + field.name for field in options if field.type is bool}
    page = PAGES[name]
    assert set(re.findall(r"(--[a-z][a-z-]*)", page)) <= known
    for recipe in re.findall(r"--recipe ([\w-]+)", page):
        assert recipe in RECIPES
    for method in re.findall(r"--method ([a-z-]+)(?![\w.-])", page):
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
    headings = re.findall(r"^### (.+)$", METHODS_PAGE, re.MULTILINE)
    assert tuple(headings) == METHODS
    rows = re.findall(r"^\| `(\S+)` \| (.*) \|$", METHODS_PAGE, re.MULTILINE)
    told = {method: re.findall(r"`([\w-]+)`", losses) for method, losses in rows}
    assert told.keys() == LOSSES_OF.keys()
    for method, losses in told.items():
        assert set(losses) == set(LOSSES_OF[method])
        assert losses[0] == recipe_config("auto", "cifar10", method).loss


def test_every_make_target_that_a_page_names_exists():
    makefile = (ROOT / "Makefile").read_text()
    targets = [target for page in PAGES.values() for target in re.findall(r"(?:^|`)make (\w+)", page, re.MULTILINE)]
    assert targets
    for target in targets:
        assert f"\n{target}:" in makefile
