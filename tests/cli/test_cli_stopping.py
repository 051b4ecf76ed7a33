"""Stopping a run from outside, and resuming it by the same command."""

import io
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from commands import QUICK, aag_

import aag
from aag.cli import main
from aag.runs import Run
from aag.training import checkpoint
from aag.training.progress import Progress

STOPPING = "\nstopping after this step …\n"
WAITS = """
import sys, time
from aag import cli
from aag.training.progress import Progress, StopRequest

def handle(self, *arguments, real=StopRequest.handle):
    real(self, *arguments)
    stops.append(self)

def on_step(self, trainer, loss, real=Progress.on_step):
    real(self, trainer, loss)
    if trainer.position()["step"] == 16:
        print("waiting for a signal", flush=True)
        while not stops:
            time.sleep(0.01)

stops, StopRequest.handle, Progress.on_step = [], handle, on_step
sys.exit(cli.main(sys.argv[1:]))
"""


def test_ctrl_c_saves_and_the_same_command_resumes(npz, tmp_path):
    run = Run(tmp_path / "run")
    words = ["train", "--data", npz, *QUICK, "--epochs", 3, "--batch-size", 8, "--knn-every", 0, "--out", run.folder]
    process = subprocess.Popen(
        [sys.executable, "-c", WAITS, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        while process.stdout.readline() not in ("waiting for a signal\n", ""):
            pass
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert err == STOPPING
    assert f"Stopped and saved. The same command resumes from the last checkpoint, in {run.folder}\n" in out
    assert "Next:" not in out
    state = checkpoint.load(run.checkpoint)[1]
    assert (state["epoch"], state["step"]) == (1, 4)

    again = aag_(*words)
    assert (again.code, again.err) == (0, "")
    assert "Next:" in again.out
    starts = [row["step"] for row in run.metrics() if row["kind"] == "start"]
    assert starts == [0, 16]
    assert [row["epoch"] for row in run.metrics() if row["kind"] == "epoch"] == [1, 2, 3]
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

        monkeypatch.setattr(Progress, "on_step", step)

    return plan


@pytest.mark.parametrize("signum", [signal.SIGUSR1, signal.SIGHUP])
def test_a_warning_of_pre_emption_and_a_closed_terminal_save_the_run(npz, signals_at_step, signum):
    signals_at_step(6, signum, signum)  # closing a terminal sends two
    stopped = aag_("train", "--data", npz, *QUICK, "--epochs", 3, "--batch-size", 24, "--out", "run")
    assert (stopped.code, stopped.err) == (75, STOPPING)
    saved = checkpoint.load(Path("run/last.ckpt"))[1]
    assert (saved["epoch"], saved["step"]) == (1, 2)


def test_a_run_under_nohup_ignores_the_closed_terminal(npz, signals_at_step):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signals_at_step(2, signal.SIGHUP)
    ran = aag_("train", "--data", npz, *QUICK, "--epochs", 1, "--batch-size", 24, "--out", "run", "--no-report")
    signal.signal(signal.SIGHUP, before)
    assert (ran.code, ran.err) == (0, "")


def test_a_scheduler_can_stop_a_run_and_evaluate_says_it_is_unfinished(npz, tmp_path, signals_at_step):
    words = ["train", "--data", npz, *QUICK, "--epochs", 3, "--batch-size", 24, "--out", "run"]
    signals_at_step(6, signal.SIGTERM)  # in the second epoch of four steps
    stopped = aag_(*words)
    assert (stopped.code, stopped.err) == (75, STOPPING)  # which tells a scheduler to try again
    assert "Stopped and saved" in stopped.out

    early = aag_("evaluate", "run", "--no-linear")
    assert early.code == 0
    assert "training is unfinished: these are the numbers of epoch 1 of 3\n" in early.out
    unrecorded = aag_("evaluate", "run", "--record", "records")
    assert unrecorded.code == 2
    assert "run was evaluated at epoch 1 of 3: finish its training" in unrecorded.err
    assert not Path("records").exists()

    again = aag_(*words)
    assert again.code == 0
    assert "run      run (resumes in epoch 2)\n" in again.out
    assert "unfinished" not in aag_("evaluate", "run", "--no-linear").out


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


STARTED = """
import sys
from aag import cli

def import_module(name, load=cli.import_module):
    print("started", flush=True)  # earlier, a signal could reach the interpreter before the program
    return load(name)

cli.import_module = import_module
"""


@pytest.mark.parametrize("delay", [0.0, 0.2, 0.8, 2.0])
def test_ctrl_c_while_the_program_starts_is_one_word(npz, tmp_path, delay):
    """While libraries are imported they swallow the signal or print tracebacks of their own."""
    words = ["train", "--data", npz, *QUICK, "--epochs", 400, "--batch-size", 8, "--out", tmp_path / "run"]
    code = STARTED + "sys.exit(cli.main(sys.argv[1:]))"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout.readline() == "started\n"
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert err in ("stopped\n", STOPPING)
