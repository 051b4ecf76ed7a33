"""The README is true: its Python runs, its tables are what the records say, its options exist."""

import re
import runpy
from dataclasses import fields
from pathlib import Path

import torch

from aag import nets
from aag.config import RECIPES, TrainConfig, recipe_config

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


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


def test_the_tables_are_what_the_records_say():
    tables = runpy.run_path(str(ROOT / "tools" / "make_tables.py"))
    assert tables["filled"](README) == README


def test_every_option_in_the_readme_exists():
    known = {"--" + field.name.replace("_", "-") for field in fields(TrainConfig)} | {"--help"}
    assert set(re.findall(r"(--[a-z][a-z-]*)", README)) <= known
    for name in re.findall(r"--recipe ([\w-]+)", README):
        assert name in RECIPES


def test_every_command_in_the_makefile_that_the_readme_names_exists():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", README, re.MULTILINE):
        assert f"\n{target}:" in makefile
