"""Stopping a run from outside, and going on by the same command."""

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from aag.training.reporter import Terminal
from commands import QUICK, aag_

import aag
from aag.cli import main
from aag.training import Run, checkpoint

# --- stopping and going on --------------------------------------------------------------------------------------------


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)


STOPPING = "\nstopping after this step …\n"


def test_ctrl_c_saves_and_the_same_command_goes_on(npz, tmp_path):
    run = Run(tmp_path / "run")
    words = ["train", "--data", npz, *QUICK, "--epochs", 40, "--batch-size", 8, "--knn-every", 0, "--out", run.folder]
    process = subprocess.Popen(
        [sys.executable, "-m", "aag", *map(str, words)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    with process:
        wait_for(lambda: any(row["kind"] == "epoch" for row in run.metrics()), process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert err == STOPPING
    assert f"Stopped and saved. The same command goes on where this one stopped; the run is in {run.folder}" in out
    assert "Next:" not in out
    state = checkpoint.load(run.checkpoint)[1]
    reached = state["epoch"] * 12 + state["step"]
    assert 12 <= reached < 480

    again = aag_(*words)
    assert (again.code, again.err) == (0, "")
    assert "Next:" in again.out
    starts = [row["step"] for row in run.metrics() if row["kind"] == "start"]
    assert starts == [0, reached]
    assert [row["epoch"] for row in run.metrics() if row["kind"] == "epoch"] == list(range(1, 41))
    encoder, final = aag.load(run.folder).state_dict(), checkpoint.load(run.checkpoint)[0]
    assert all(torch.equal(value, final[f"encoder.{name}"]) for name, value in encoder.items())


@pytest.fixture
def signals_at_step(monkeypatch) -> Callable[..., None]:
    """Sends this process signals after the training step with this number."""

    def plan(number: int, *signals: signal.Signals) -> None:
        count = 0

        def step(*_: object) -> None:
            nonlocal count
            count += 1
            if count == number:
                for sent in signals:
                    signal.raise_signal(sent)

        monkeypatch.setattr(Terminal, "step", step)

    return plan


def test_a_scheduler_can_stop_a_run_and_evaluate_says_it_is_unfinished(npz, tmp_path, signals_at_step):
    words = ["train", "--data", npz, *QUICK, "--epochs", 3, "--batch-size", 24, "--out", "run"]
    signals_at_step(6, signal.SIGTERM)  # in the second epoch of four steps
    stopped = aag_(*words)
    assert (stopped.code, stopped.err) == (130, STOPPING)
    assert "Stopped and saved" in stopped.out

    early = aag_("evaluate", "run", "--no-linear")
    assert early.code == 0
    assert "note: run is not finished: this is its encoder after epoch 1 of 3\n" in early.out
    unrecorded = aag_("evaluate", "run", "--record", "records")
    assert unrecorded.code == 2
    assert unrecorded.err == "error: run is not finished: run its aag train command again, then record it\n"
    assert not Path("records").exists()

    again = aag_(*words)
    assert again.code == 0
    assert "run      run (going on in epoch 2)\n" in again.out
    assert "not finished" not in aag_("evaluate", "run", "--no-linear").out


def test_a_stop_is_saved_though_nobody_reads_the_output_any_more(npz, signals_at_step, monkeypatch):
    """As with `aag train 2>&1 | tee log`, where the same Ctrl-C ends tee."""

    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Broken())
    signals_at_step(6, signal.SIGINT)
    main(["train", "--data", str(npz), *map(str, QUICK), "--epochs", "3", "--batch-size", "24", "--out", "run",
          "--checkpoint-minutes", "60"])  # fmt: skip
    saved = checkpoint.load(Path("run/last.ckpt"))[1]
    assert (saved["epoch"], saved["step"]) == (1, 2)


def test_a_second_ctrl_c_stops_at_once_and_keeps_the_last_checkpoint(npz, signals_at_step):
    words = ["train", "--data", npz, *QUICK, "--epochs", 2, "--batch-size", 24, "--out", "run"]
    signals_at_step(2, signal.SIGINT, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    ran = aag_(*words)
    assert ran.code == 130
    assert ran.err == STOPPING + "stopped\n"
    assert {number: signal.getsignal(number) for number in before} == before
    assert checkpoint.load(Path("run/last.ckpt"))[1]["step"] == 0
