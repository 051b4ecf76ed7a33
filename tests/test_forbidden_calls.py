"""No code of ours unpickles freely, runs text as code, or unpacks to paths that an archive names."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "aag"
RUNS_CODE = {
    "exec", "eval", "os.system", "os.popen", "torch.hub.load", "torch.jit.load", "torch.export.load", "runpy.run_path",
    "pickle.load", "pickle.loads", "pickle.Unpickler", "marshal.load", "marshal.loads", "shelve.open", "joblib.load",
    "dill.load", "dill.loads", "cloudpickle.load", "cloudpickle.loads", "yaml.load", "yaml.unsafe_load",
    "pandas.read_pickle", "importlib.util.spec_from_file_location", "shutil.unpack_archive",
}  # fmt: skip
UNPACKS = {"extract", "extractall"}  # methods of tarfile and zipfile
ALLOWED = {
    ("methods/__init__.py", "importlib.util.spec_from_file_location"): "--method FILE.py, which the user trusts",
    ("serving/export_check.py", "exec"): "the standalone loader that the export has just written",
    ("serving/formats.py", "torch.jit.load"): "the TorchScript file that the export has just written",
    ("data/workers.py", "pickle.loads"): "messages between a process and the workers that it started",
}


def forbidden(code: str) -> Iterator[tuple[str, int]]:
    """Yield the name and line of each call in Python code that could run what a file says."""
    tree = ast.parse(code)
    names = {}  # what an imported name stands for
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {one.asname or one.name: one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        first, dot, rest = ast.unparse(node.func).partition(".")
        name = names.get(first, first) + dot + rest
        given = {one.arg: ast.unparse(one.value) for one in node.keywords}
        if (
            name in RUNS_CODE
            or rest.rpartition(".")[2] in UNPACKS
            or (name == "torch.load" and given.get("weights_only") != "True")
            or (name == "numpy.load" and given.get("allow_pickle", "False") != "False")
            or given.get("shell", "False") != "False"
            or given.get("trust_remote_code", "False") != "False"
        ):
            yield name, node.lineno


def test_no_file_can_make_us_run_code():
    found = [
        f"{file.relative_to(SOURCE)}:{line}: {name}"
        for file in sorted(SOURCE.rglob("*.py"))
        for name, line in forbidden(file.read_text(encoding="utf-8"))
        if (file.relative_to(SOURCE).as_posix(), name) not in ALLOWED
    ]
    assert found == []


@pytest.mark.parametrize(
    "code",
    [
        "import pickle\npickle.loads(data)",
        "import pickle as p\np.load(file)",
        "from pickle import load as read\nread(file)",
        "import torch\ntorch.load(path)",
        "import torch\ntorch.load(path, weights_only=False)",
        "import numpy as np\nnp.load(path, allow_pickle=True)",
        "import numpy as np\nnp.load(path, allow_pickle=allow)",
        "eval(text)",
        "import subprocess\nsubprocess.run(command, shell=True)",
        "archive.extractall(folder)",
        "from torch import jit\njit.load(path)",
        "Model.from_pretrained(name, trust_remote_code=True)",
    ],
)
def test_the_scan_finds_it(code):
    assert list(forbidden(code))


def test_the_scan_lets_harmless_calls_pass():
    code = "import numpy as np, torch\nnp.load(f)\nnp.load(f, allow_pickle=False)\ntorch.load(f, weights_only=True)"
    assert list(forbidden(code + "\nmodel.eval()\nsubprocess.run(['git'])\nre.compile(x)")) == []
