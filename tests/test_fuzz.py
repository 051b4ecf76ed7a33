"""Damaged files: a short run of every target, each case that was found, and what the runner reports."""

import importlib
import sys
import warnings
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuzz import runner
from fuzz.mutate import make_input
from fuzz.target import read_input
from fuzz.targets import TARGETS
from fuzz.worker import measure, peak_bytes, reset_peak

CASES = Path(__file__).parent / "fuzz_cases"  # TARGET-what.suffix


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_files_are_read_or_refused(name, tmp_path):
    target = TARGETS[name]
    seeds = target.seeds()
    path = tmp_path / f"input{target.suffix}"

    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(st.randoms(use_true_random=False))
    def check(rng):
        path.write_bytes(make_input(target, seeds, rng))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            read_input(target, path)

    check()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TARGETS)
def test_seeds_are_read(name, tmp_path):
    """A target whose seeds are all refused tests nothing."""
    path = tmp_path / f"input{TARGETS[name].suffix}"
    outcomes = []
    for content in TARGETS[name].seeds():
        path.write_bytes(content)
        outcomes.append(read_input(TARGETS[name], path))
    assert "read" in outcomes


@pytest.mark.parametrize("case", sorted(CASES.glob("*")), ids=lambda case: case.name)
def test_found_cases_stay_harmless(case, tmp_path):
    name = max((each for each in TARGETS if case.name.startswith(each)), key=len)
    path = tmp_path / f"input{TARGETS[name].suffix}"
    path.write_bytes(case.read_bytes())
    reset_peak()
    before = peak_bytes()  # of the tests before it
    line = measure(TARGETS[name], path)
    assert line["outcome"] in ("read", "refused"), line["detail"]
    assert line["peak"] - before < 1_500_000_000


DANGERS = """
import os, signal, time
from fuzz.target import Target

class Refusal(Exception):
    pass

def two_lines(path):
    raise Refusal("one\\ntwo")

READERS = {
    "crash": lambda path: os.kill(os.getpid(), signal.SIGSEGV),
    "hang": lambda path: time.sleep(60),
    "memory": lambda path: len(b"x" * 300_000_000),
    "traceback": lambda path: path.no_such_attribute,
    "two lines": two_lines,
    "good": lambda path: None,
}
TARGETS = {name: Target(lambda: [b"abc"], read, refusals=(Refusal,)) for name, read in READERS.items()}
"""


@pytest.mark.skipif(sys.platform != "linux", reason="measures memory by /proc")
@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("crash", "exit code -11"),
        ("hang", "hang"),
        ("memory", "GB of memory"),
        ("traceback", "no_such_attribute"),
        ("two lines", "several lines"),
        ("good", None),
    ],
)
def test_runner_saves_what_breaks_a_limit(tmp_path, monkeypatch, name, problem):
    (tmp_path / "dangers.py").write_text(DANGERS)
    monkeypatch.syspath_prepend(tmp_path)
    target = importlib.import_module("dangers").TARGETS[name]
    limits = runner.Limits(seconds=0.3 if name == "hang" else 30.0, bytes=250_000_000)
    report = runner.run(name, target, 2, 0, tmp_path / "out", limits, module="dangers")
    if problem is None:
        assert (report.outcomes["read"], report.findings) == (2, [])
        return
    assert len(report.findings) == 2
    assert all(problem in finding for finding in report.findings), report.findings
    assert len(list((tmp_path / "out").glob("*.txt"))) == 2
