"""`aag reproduce` on a small paper: run what is missing, skip what is recorded, resume, and report failures."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_paper import RESULTS, RUNS, counts, experiment, install, recorded, reproduce, start_run, starts

import aag
from aag.paper import runner
from aag.runs import Run
from aag.signals import SAVE_SECONDS
from aag.training.progress import Progress

paper = pytest.fixture(install)


# --- running ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("paper")
def test_what_is_missing_is_run_recorded_and_then_skipped(npz):
    assert counts("table1") == [4, 0, 0, 0, 4]
    ran = reproduce("table1", "--column", "low")
    assert (ran.code, ran.err) == (0, "")
    ours, theirs = (experiment(npz, **change).name for change in ({}, {"loss": "nt-xent"}))
    assert ran.out.startswith("2 runs, 0 recorded; time left: ?\n")
    assert f"[1/2] {ours} (table1)\n" in ran.out
    assert f"[2/2] {theirs} (table1)\n" in ran.out
    assert f"recorded in results/{ours}.json\n" in ran.out
    assert re.search(r"^kNN \(embedding\) [\d.]+ %, kNN \(features\) [\d.]+ %, linear \(features\)", ran.out, re.M)
    assert ran.out.endswith("\n2 recorded\n")
    assert recorded() == sorted([ours, theirs])
    record = json.loads((RESULTS / f"{ours}.json").read_text())
    assert record["settings"] == experiment(npz, image_size=32).settings.resolve("fp32").to_json()
    assert "positive_gradient" in record["curves"]
    assert (RESULTS / "tsne" / f"{theirs}.json").exists()  # figure 2 needs it, and here was the run
    assert counts("table1") == [4, 2, 0, 0, 2]

    again = reproduce("table1", "--column", "low", "--knn-every", 1)  # does not change the numbers: the same run
    assert (again.code, again.err, again.out) == (0, "", "2 runs, 2 recorded\n")
    assert starts(ours) == 1
    assert reproduce("figure1", "figure2").out == "2 runs, 2 recorded\n"


@pytest.mark.usefixtures("paper")
def test_missing_data_is_reported_once_before_training():
    ran = reproduce("table1", "--column", "high", "--seeds", 2)
    assert ran.code == 2
    assert re.fullmatch(r"error: cifar10 is not in [^\n]*aag data fetch cifar10; needed by 2 runs\n", ran.err)
    assert "[1/2] " in ran.out
    assert ran.out.endswith("\n2 recorded, 2 without data\n")

    rest = reproduce("table1", "--row", "theirs", "--column", "high")
    assert rest.code == 2
    assert rest.err.endswith("; needed by 1 run\n")
    assert rest.out.endswith("\n1 without data\n")


def test_a_failed_run_does_not_stop_the_others(paper, npz):
    first, second = paper["table1"].rows
    damaged = Path("damaged.npz").resolve()
    damaged.write_bytes(b"")
    broken = replace(second[1], experiment=experiment(damaged))
    paper["table1"] = replace(paper["table1"], rows=(first, (second[0], broken)))
    ran = reproduce("table1", "--column", "high")
    assert ran.code == 2
    assert re.fullmatch(r"error: damaged-[^\n]*: [^\n]*\n", ran.err)
    assert ran.out.endswith("\n1 recorded, 1 failed\n")
    assert len(recorded()) == 1


@pytest.mark.usefixtures("paper")
def test_an_unexpected_error_prints_a_traceback_and_does_not_stop_the_others(monkeypatch):
    real, calls = runner.train_run, []

    def fail_once(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 1:
            raise RuntimeError("cuDNN error")
        return real(*arguments, **options)

    monkeypatch.setattr(runner, "train_run", fail_once)
    ran = reproduce("table1", "--column", "low")
    assert ran.code == 2
    assert "Traceback" in ran.err
    assert ": RuntimeError: cuDNN error\n" in ran.err
    assert ran.out.endswith("\n1 failed, 1 recorded\n")


@pytest.mark.usefixtures("paper")
def test_images_are_loaded_once_for_training_evaluation_and_the_next_run(monkeypatch):
    real, seen = aag.data.load_pair, []

    def load_pair(source: str, **options: Any) -> Any:
        seen.append(source)
        return real(source, **options)

    for module in ("aag.data.loading", "aag.data"):
        monkeypatch.setattr(sys.modules[module], "load_pair", load_pair, raising=False)
    assert reproduce("table1", "figure2", "--column", "low").code == 0
    assert len(recorded()) == 2
    assert len(seen) == 1


@pytest.mark.usefixtures("paper")
@pytest.mark.parametrize("damage", [True, False])
def test_a_run_folder_is_checked_before_images_are_loaded(npz, monkeypatch, damage):
    run = start_run(experiment(npz), temperature=0.7)
    if damage:
        run.config_file.write_text("{")
    monkeypatch.setattr(runner, "load_sets", lambda *_: pytest.fail("loaded"))
    ran = reproduce("figure1")
    assert ran.code == 2
    message = "is damaged" if damage else "(temperature 0.7 there, 0.1 here); move it or use another --runs"
    assert message in ran.err


@pytest.mark.usefixtures("paper")
def test_nothing_to_run():
    ran = reproduce("figure3")
    assert (ran.code, ran.out) == (0, "nothing to run for figure3\n")
    planned = reproduce("figure3", "--plan")
    assert (planned.code, planned.out, planned.err) == (0, "", "nothing to run in this selection\n")


def stop_at(monkeypatch: pytest.MonkeyPatch, number: int, signum: signal.Signals = signal.SIGINT) -> None:
    count = 0

    def on_step(*_: object) -> None:
        nonlocal count
        count += 1
        if count == number:
            signal.raise_signal(signum)

    monkeypatch.setattr(Progress, "on_step", on_step)


@pytest.mark.usefixtures("paper")
@pytest.mark.parametrize("step", [1, 4])  # of two epochs of two steps: in an epoch, and after the very last
def test_stopping_saves_and_the_same_command_resumes(npz, monkeypatch, step):
    with monkeypatch.context() as patched:
        stop_at(patched, step)
        stopped = reproduce("table1", "--column", "low")
    assert stopped.code == 130
    name = experiment(npz).name
    assert "Stopped and saved. The same command resumes from the last checkpoint, in runs/" in stopped.out
    assert "[2/2]" not in stopped.out
    assert recorded() == []
    assert counts("table1") == [4, 0, 1, 0, 3]

    again = reproduce("table1", "--column", "low")
    assert (again.code, again.err) == (0, "")
    assert len(recorded()) == 2
    assert starts(name) == (1 if step == 4 else 2)
    assert [row["epoch"] for row in Run(RUNS / name).metrics() if row["kind"] == "epoch"] == [1, 2]


@pytest.mark.usefixtures("paper")
def test_a_time_limit_stops_saves_and_the_same_command_continues(npz, monkeypatch):
    left = []

    def on_step(*_: object) -> None:
        left.append(signal.getitimer(signal.ITIMER_REAL)[0])
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        while signal.getitimer(signal.ITIMER_REAL)[0]:
            time.sleep(0.001)

    with monkeypatch.context() as patched:
        patched.setattr(Progress, "on_step", on_step)
        stopped = reproduce("figure1", "--minutes", 9)
    assert stopped.code == 75
    assert "Stopped and saved. The same command resumes from the last checkpoint, in runs/" in stopped.out
    assert len(left) == 1
    assert 0 < left[0] <= 9 * 60 - SAVE_SECONDS
    assert recorded() == []

    again = reproduce("figure1", "--minutes", 1e5)
    assert (again.code, again.err) == (0, "")
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert starts(experiment(npz).name) == 2
    assert recorded() == [experiment(npz).name]


@pytest.mark.usefixtures("paper")
@pytest.mark.parametrize("minutes", [0, -1, "nan", 1e9])
def test_impossible_time_limits_are_refused(minutes):
    assert "--minutes must be above 0" in reproduce("figure1", "--minutes", minutes).err


@pytest.mark.usefixtures("paper")
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_a_signal_outside_training_stops_with_a_message(monkeypatch, signum, code):
    monkeypatch.setattr(runner, "evaluate_run", lambda *_, **__: signal.raise_signal(signum))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
    ran = reproduce("figure1")
    signal.signal(signal.SIGINT, before)
    assert ran.code == code
    assert "\nStopped. The same command resumes from the last checkpoint, in runs/" in ran.out


# --- others at the same time ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("paper")
def test_a_run_that_another_process_trains_is_skipped(npz):
    run = start_run(experiment(npz))
    with run.lock():
        ran = reproduce("table1", "--column", "low")
    assert (ran.code, ran.err) == (0, "")
    assert f"skipped: another process is training into {run.folder}\n" in ran.out
    assert ran.out.endswith("\n1 skipped, 1 recorded; run the same command again for the skipped ones\n")
    assert recorded() == [experiment(npz, loss="nt-xent").name]


def test_two_processes_at_once_share_the_work(npz):
    here = Path(__file__).parent
    code = (
        f"import sys; sys.path.insert(0, {str(here)!r}); import small_paper as t; from aag.cli import main\n"
        f"t.PAPER.clear(); t.PAPER.update(t.small_paper({str(npz)!r}))\n"
        "sys.exit(main(['reproduce', 'table1', 'figure1', '--row', 'ours', '--device', 'cpu']))"
    )
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        for _ in range(2)
    ]  # fmt: skip
    said = [process.communicate(timeout=300) for process in both]
    assert [(process.returncode, err) for process, (_, err) in zip(both, said, strict=True)] == [(0, "")] * 2
    assert recorded() == sorted(experiment(npz, **change).name for change in ({}, {"lr": 0.3}))
    for name in recorded():
        assert json.loads((RESULTS / f"{name}.json").read_text())["name"] == name
        assert [row["epoch"] for row in Run(RUNS / name).metrics() if row["kind"] == "epoch"] == [1, 2]


# --- what is recorded and does not count ------------------------------------------------------------------------------


@pytest.mark.usefixtures("paper")
def test_damaged_records_are_reported_and_replaced(npz):
    RESULTS.mkdir()
    path = RESULTS / f"{experiment(npz).name}.json"
    path.write_text('{"name": ')
    listed = reproduce()
    assert listed.code == 0
    assert re.fullmatch(rf"warning: skipped {re.escape(str(path))}: [^\n]+\n", listed.err)
    saved = reproduce("figure1", "--save", "x.pdf")
    assert saved.err.startswith(f"{listed.err}error: results has no record for figure1")
    ran = reproduce("figure1")
    assert ran.code == 0
    assert str(path) in ran.err
    assert json.loads(path.read_text())["name"] == path.stem
    assert reproduce().err == ""


@pytest.mark.usefixtures("paper")
def test_stale_records_are_replaced(npz):
    assert reproduce("figure1").code == 0
    (path,) = RESULTS.glob("*.json")
    record = json.loads(path.read_text())
    record["settings"]["method"]["temperature"] = 0.7
    path.write_text(json.dumps(record))
    shutil.rmtree(RUNS)
    assert counts("table1") == [4, 0, 0, 1, 3]
    assert reproduce("figure1", "--list").out.endswith(" (figure1); temperature 0.7, now 0.1\n")
    assert reproduce("figure1").code == 0
    assert json.loads(path.read_text())["settings"]["method"]["temperature"] == 0.1


@pytest.mark.usefixtures("paper")
def test_a_short_version_is_labelled_and_is_not_the_run(npz):
    ran = reproduce("figure1", "--epochs-scale", 0.5)
    assert (ran.code, ran.err) == (0, "")
    short = experiment(npz, epochs=1).name
    assert f"[1/1] {short} (figure1; short version, 1 of 2 epochs)\n" in ran.out
    assert recorded() == [short]
    assert counts("figure1") == [1, 0, 0, 0, 1]
    assert counts("figure1", "--epochs-scale", 0.5) == [1, 1, 0, 0, 0]
    assert "Short versions: 0.5 of each run's epochs" in reproduce("--epochs-scale", 0.5).out
