"""A run outlives its output: a full disk, a reader that goes away."""

import contextlib
import os
import subprocess
import sys
from typing import TextIO

import pytest
from commands import QUICK

from aag.cli import main
from aag.cli.streams import FaultTolerantStream
from aag.runs import Run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="special files")


def full_disk() -> TextIO:
    return open("/dev/full", "w")


def closed_pipe() -> TextIO:
    reader, writer = os.pipe()
    os.close(reader)
    return open(writer, "w")


@pytest.mark.parametrize(
    ("make", "reason"), [(full_disk, "No space left on device"), (closed_pipe, "Broken pipe")], ids=["full", "pipe"]
)
def test_training_goes_on_without_output(npz, capsys, make, reason):
    with make() as lost, contextlib.redirect_stdout(lost):
        words = ["train", "--data", str(npz), *QUICK, "--epochs", "1", "--batch-size", "48", "--out", "run"]
        assert main(words) == 0
    assert [row["epoch"] for row in Run("run").metrics() if row["kind"] == "epoch"] == [1]
    assert capsys.readouterr().err == f"warning: cannot print ({reason}); continuing without output\n"


@pytest.mark.parametrize("words", [["--help"], ["methods"], ["recipes"], ["data"]], ids=lambda words: words[0])
def test_lost_results_are_one_line_of_error(words):
    with full_disk() as lost:
        done = subprocess.run([sys.executable, "-m", "aag", *words], stdout=lost, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (2, "error: cannot print the results: No space left on device\n")


def test_other_streams_are_written_as_they_are(capsys):
    stream = FaultTolerantStream(sys.stdout)
    assert stream.write("text\n") == 5
    stream.flush()
    assert capsys.readouterr().out == "text\n"
    assert stream.isatty() == sys.stdout.isatty()
