"""Settings that somebody else's run folder holds: they are read, and nothing that they name is run."""

import pytest

from aag.errors import AAGError
from aag.methods import load_method
from aag.training import RunSettings, recipe_settings

CODE = """
from pathlib import Path
from aag.methods.simclr import SimCLR

Path(__file__).with_suffix(".ran").touch()

class Mine(SimCLR):
    pass
"""


def test_a_file_that_a_run_names_is_not_run(tmp_path):
    file = tmp_path / "others_method.py"
    file.write_text(CODE)
    name = f"{file}:Mine"
    settings = recipe_settings("auto", "sample", "simclr").to_json()
    settings["method"]["name"] = name
    with pytest.raises(AAGError, match=r"runs no file that a run folder names; if you trust it, add --method .*Mine"):
        RunSettings.from_json(settings)
    assert not file.with_suffix(".ran").exists()
    load_method(name)  # what --method does
    assert file.with_suffix(".ran").exists()
    assert RunSettings.from_json(settings).method_type.__name__ == "Mine"


@pytest.mark.parametrize("name", [None, 3, [], "simclr\0", "no such method"])
def test_a_strange_method_is_one_line(name):
    settings = recipe_settings("auto", "sample", "simclr").to_json()
    settings["method"]["name"] = name
    with pytest.raises(AAGError, match="method"):
        RunSettings.from_json(settings)
