"""`make soak` in its smallest form."""

import json
import os
import subprocess
import sys
from pathlib import Path

TOOLS = Path(__file__).parents[1] / "tools"
PARTS = ("kills", "targeted", "signals", "races", "flips", "reads", "full", "readonly", "outputs", "steps")


def test_soak_counts_its_cases(tmp_path):
    counts = {**dict.fromkeys(PARTS, 0), "targeted": 1, "flips": 1, "reads": 10}
    options = [f"--{name}={count}" for name, count in counts.items()]
    paths = os.pathsep.join([str(TOOLS), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "soak", *options, "--json", "soak.json"], cwd=tmp_path, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": paths}, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    parts = json.loads((tmp_path / "soak.json").read_text())
    assert [(part["name"], part["cases"], part["failures"]) for part in parts] == [
        ("SIGKILL at file operations", 1, []),
        ("bit flips, then resume", 1, []),
        ("bit flips and cuts, then read", 20, []),
    ]
