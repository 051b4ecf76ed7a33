"""Check the pages: their Python runs, their tables match the records, and their options, links and targets exist."""

import json
import re
import runpy
import sys
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import get_args, get_type_hints

import pytest

from aag import nets
from aag.cli import command_names
from aag.cli.parsing import ALIASES
from aag.methods import load_method, methods
from aag.nets import NetworkSettings
from aag.runs import differences
from aag.settings import TrainSettings, option
from aag.training import DataSettings, Execution, recipe_settings, recipes, run_name

ROOT = Path(__file__).parent.parent
PATHS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
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


def test_a_page_shows_the_example_as_it_is():
    assert BLOCKS["docs/add-a-method.md"][0] == (ROOT / "examples" / "vicreg.py").read_text()


def test_pages_use_the_run_of_the_demo():
    assert f"runs/{run_name(recipe_settings('demo', 'sample'), 'demo')}" == DEMO_RUN
    assert DEMO_RUN in README


def test_the_readme_stays_short():
    assert len(README.splitlines()) <= 160


# --- numbers ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tables():
    return runpy.run_path(str(ROOT / "tools" / "make_tables.py"))


@pytest.mark.parametrize("name", ["README.md", "docs/methods.md", "docs/benchmarks.md"])
def test_the_tables_are_what_the_records_say(tables, name):
    assert tables["filled"](PAGES[name], name) == PAGES[name]


def test_the_drawing_is_what_the_code_draws(tables):
    assert (ROOT / tables["DRAWING"]).read_text() == tables["draw_framework_file"](), "run make tables"


def test_every_table_has_its_place(tables):
    pages = "".join(PAGES[name] for name in tables["PAGES"])
    for name in tables["TABLES"]:
        assert f"<!-- {name} -->\n" in pages
    assert len(re.findall(r"<!-- \w+ -->", "".join(PAGES.values()))) == len(re.findall(r"<!-- \w+ -->", pages))


@pytest.mark.parametrize("name", ["README.md", "docs/images.md", "docs/methods.md"])
def test_a_number_that_names_a_record_is_in_it(name):
    found = re.findall(r"\[(\d+\.\d+)\]\(([^)]*results/[^)]*\.json)\)", PAGES[name])
    for number, path in found:
        record = json.loads((ROOT / name).parent.joinpath(path).read_text())
        known = [record["knn"]["last"], *(row["accuracy"] for row in record["evaluation"])]
        assert number in [f"{value:.2f}" for value in known]
    assert found or name == "README.md"


def test_the_readme_tells_the_speed_that_was_measured():
    (told,) = re.findall(r"^\*\*Speed:\*\*.*?(?=\n\n)", README, re.DOTALL | re.MULTILINE)
    numbers = re.findall(r"[\d,]+ views/s|[\d.]+ ×", told)
    assert len(numbers) == 3
    for number in numbers:
        assert number.removesuffix(" views/s") in PAGES["docs/benchmarks.md"]


@pytest.mark.parametrize("name", recipes())
def test_what_to_expect_of_a_recipe_is_what_its_records_say(name):
    method, recipe = recipes()[name]
    wanted = recipe_settings(name, "cifar10", method).resolve()
    records = [json.loads(path.read_text()) for path in sorted((ROOT / "results").glob("*.json"))]
    runs = [record for record in records if _same_run(record["settings"], wanted.to_json())]
    told = re.search(r"([\d.]+) here, in (\d+) minutes on one H200", recipe.expect)
    assert bool(told) == bool(runs)
    if told:
        assert told[1] == f"{sum(run['knn']['last'] for run in runs) / len(runs):.1f}"
        assert abs(int(told[2]) * 60 - runs[0]["seconds"]) <= 30


def _same_run(settings, wanted):
    """Whether two settings differ in nothing but seed and precision."""
    return differences(settings, wanted).keys() <= {"seed", "precision"}


# --- options, methods, links ------------------------------------------------------------------------------------------


OTHER_PROGRAMS = {"--benchmark", "--logdir"}  # an example's option, and TensorBoard's
OTHER_PROGRAMS |= {"--nproc-per-node", "--nnodes", "--rdzv-backend", "--rdzv-endpoint", "--max-restarts"}  # torchrun's
OTHER_PROGRAMS |= {"--limit"}  # tools/measure_training_memory.py


@pytest.fixture(scope="module")
def known_options():
    settings = [
        NetworkSettings,
        TrainSettings,
        DataSettings,
        Execution,
        *(kind.settings_type for kind in methods().values()),
        load_method(f"{ROOT / 'examples' / 'vicreg.py'}:VICReg").settings_type,
    ]
    for command in command_names():
        module = import_module(f"aag.cli.{command}")
        settings += [
            kind for kind in vars(module).values() if isinstance(kind, type) and hasattr(kind, "__dataclass_fields__")
        ]
    names = {field.name: get_type_hints(kind)[field.name] for kind in settings for field in fields(kind)}
    known = {option(name) for name in ("data", "recipe", "method", "help", "version", *names)} | ALIASES.keys()
    return known | {option(f"no_{name}") for name, kind in names.items() if kind is bool}


@pytest.mark.parametrize("name", PAGES)
def test_every_option_exists(known_options, name):
    page = PAGES[name]
    assert set(re.findall(r"(?<![\w-])(--[a-z][a-z-]*)", page)) <= known_options | OTHER_PROGRAMS
    for recipe in re.findall(r"--recipe ([\w-]+)", page):
        assert recipe in recipes()
    for method in re.findall(r"--method ([a-z-]+)(?![\w./-])", page):
        assert method in methods()


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name):
    for target in re.findall(r"\]\(([^)]+)\)", PAGES[name]):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        found = (ROOT / name).parent.joinpath(path) if path else ROOT / name
        assert found.exists(), target
        assert not anchor or anchor in _anchors(found.read_text()), target


def _anchors(page):
    headings = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_methods_page_tells_every_method_and_its_losses():
    assert set(re.findall(r"^### (.+)$", METHODS_PAGE, re.MULTILINE)) == set(methods())
    rows = re.findall(r"^\| `([\w-]+)` \| (`.*`) \|$", METHODS_PAGE, re.MULTILINE)
    told = {method: re.findall(r"`([\w-]+)`", losses) for method, losses in rows if method in methods()}
    with_losses = {
        name: kind.settings_type for name, kind in methods().items() if "loss" in kind.settings_type.__annotations__
    }
    assert told.keys() == with_losses.keys()
    for method, losses in told.items():
        assert set(losses) == set(get_args(get_type_hints(with_losses[method])["loss"]))
        assert losses[0] == with_losses[method].loss


def test_every_make_target_that_a_page_names_exists():
    makefile = (ROOT / "Makefile").read_text()
    targets = [target for page in PAGES.values() for target in re.findall(r"(?:^|`)make (\w+)", page, re.MULTILINE)]
    assert targets
    for target in targets:
        assert f"\n{target}:" in makefile
