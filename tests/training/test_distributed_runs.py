"""Whole runs by several processes: commands, run folders, stops, deaths and resuming with another number of them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from distributed_worker import free_port, run_processes

from aag.runs import Run

FAULTY = Path(__file__).parent / "faulty_method.py"
OPTIONS = [
    "--width", "4", "--epochs", "2", "--batch-size", "16", "--checkpoint-minutes", "0", "--device", "cpu",
    "--no-report", "--lr", "1e-4",  # a low rate: the order of sums must not matter
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from aag import data

    folder = tmp_path_factory.mktemp("runs")
    pixels = data.load("sample", split="test").images[:136].permute(0, 2, 3, 1).numpy()
    labels = np.arange(136) % 4
    np.savez(
        folder / "tiny.npz",
        train_images=pixels[:96], train_labels=labels[:96], test_images=pixels[96:], test_labels=labels[96:],
    )  # fmt: skip
    return folder


def train(folder: Path, size: int, out: str, *more: str) -> list[tuple[int, str]]:
    words = ["-m", "aag", "train", "--data", "tiny.npz", "--out", out, *OPTIONS, *more]
    return run_processes(size, words, folder)


def epochs(run: Run) -> list[dict]:
    return [row for row in run.metrics() if row["kind"] == "epoch"]


@pytest.fixture(scope="module")
def alone(folder):
    (ended,) = train(folder, 1, "alone")
    assert ended.code == 0, ended
    return Run(folder / "alone")


def test_two_processes_make_one_run_like_that_of_one(folder, alone):
    main, other = train(folder, 2, "two")
    assert (main.code, other.code, other.output) == (0, 0, ""), (main, other)
    assert "2 processes (gloo), each with 8 images of every batch; batch norm synchronised\n" in main.output
    two = Run(folder / "two")
    assert two.settings() == alone.settings()
    for row, expected in zip(epochs(two), epochs(alone), strict=True):
        assert row["loss"] == pytest.approx(expected["loss"], rel=1e-3)  # float32
    knn = [[row["knn"] for row in run.metrics() if row["kind"] == "knn"] for run in (two, alone)]
    assert knn[0] == pytest.approx(knn[1], abs=5.1)  # two of the 40 test images

    ended = run_processes(2, ["-m", "aag", "evaluate", "two", "--linear-epochs", "3", "--device", "cpu"], folder)
    assert [each.code for each in ended] == [0, 0], ended
    assert ended[1].output == ""
    together = {row["name"]: row["accuracy"] for row in two.evaluation()["results"]}
    (ended,) = run_processes(1, ["-m", "aag", "evaluate", "two", "--linear-epochs", "3", "--device", "cpu"], folder)
    assert ended.code == 0, ended
    assert together == {row["name"]: row["accuracy"] for row in two.evaluation()["results"]}


def test_a_group_of_one_process_can_be_forced(folder, alone, monkeypatch):
    monkeypatch.setenv("AAG_FORCE_DISTRIBUTED", "1")
    (forced,) = train(folder, 1, "forced")
    assert forced.code == 0, forced
    assert "1 process (gloo), each with 16 images of every batch; batch norm synchronised\n" in forced.output
    for row, expected in zip(epochs(Run(folder / "forced")), epochs(alone), strict=True):
        assert row["loss"] == pytest.approx(expected["loss"], rel=1e-3)  # float32


def test_a_signal_to_one_process_saves_and_another_number_of_them_resumes(folder):
    stopped = train(folder, 2, "stopped", "--method", f"{FAULTY}:Preempted")
    assert [each.code for each in stopped] == [75, 75], stopped
    run = Run(folder / "stopped")
    assert len(epochs(run)) == 1
    (resumed,) = train(folder, 1, "stopped", "--method", f"{FAULTY}:Preempted")
    assert resumed.code == 0, resumed
    assert "(resumes in epoch 2)" in resumed.output
    assert len(epochs(run)) == 2


def test_torchrun_restarts_a_process_that_dies(folder):
    port = str(free_port())  # by default 29500, which other tests on this machine use as well
    launcher = ["torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1", "--master-port", port]
    words = ["train", "--data", "tiny.npz", "--out", "dies", *OPTIONS, "--method", f"{FAULTY}:Dying"]
    torchrun = [sys.executable, "-m", *launcher, "-m", "aag", *words]
    ran = subprocess.run(torchrun, cwd=folder, capture_output=True, text=True, timeout=300, env=dict(os.environ))
    assert ran.returncode == 0, ran.stderr
    run = Run(folder / "dies")
    assert len([row for row in run.metrics() if row["kind"] == "start"]) == 2
    assert [row["epoch"] for row in epochs(run)] == [1, 2]


def test_nan_in_one_process_takes_all_back_to_the_checkpoint(folder):
    method = ["--method", f"{FAULTY}:Diverging"]
    main, other = train(folder, 2, "stops", *method)
    assert (main.code, other.code, other.output) == (2, 2, ""), (main, other)
    assert "no longer finite (epoch 2, step 1)" in main.output
    main, other = train(folder, 2, "retries", *method, "--on-nan", "retry")
    assert (main.code, other.code, other.output) == (0, 0, ""), (main, other)
    run = Run(folder / "retries")
    (retry,) = (row for row in run.metrics() if row["kind"] == "retry")
    assert (retry["epoch"], retry["lr_factor"]) == (1, 0.5)
    assert [row["epoch"] for row in epochs(run)] == [1, 2]


@pytest.mark.parametrize("dense_bytes", [2**30, 0])
def test_a_process_that_cannot_compile_kernels_does_not_block_others(folder, dense_bytes):
    code = f"""
import torch
from aag import data, large_batch
from aag.distributed import process_group, rank
from aag.training import Trainer, build_encoder, recipe_settings

def make_batch():
    if rank() == 1:
        raise RuntimeError("no compiler")
    return trainer.batches.first_batch(0)

large_batch.DENSE_BYTES = {dense_bytes}
with process_group(torch.device("cpu")):
    images = data.load("tiny.npz")
    settings = recipe_settings("demo", "sample", "aag").replace(width=4, batch_size=16).resolve("fp32")
    trainer = Trainer(build_encoder(settings, images), settings.new_method(), images, settings.train, device="cpu")
    trainer.prepare()
    try:
        trainer.step._compile_kernels(make_batch)
    except Exception as error:
        print(error)
    trainer.train_step(0, 0, 1e-3)  # the processes can still communicate
    trainer.close()
"""
    main, other = run_processes(2, ["-c", code], folder)
    expected = ["another process could not compile the kernels\n", "no compiler\n"]
    assert [each.output for each in (main, other)] == expected, (main, other)


def test_processes_use_a_group_that_exists_and_leave_it(folder):
    code = (
        "import aag, torch.distributed as dist\n"
        "from aag.distributed import world_size\n"
        "dist.init_process_group('gloo')\n"
        "out = None if dist.get_rank() else 'group'\n"  # only the main process has a run folder
        "result = aag.train('tiny.npz', out=out, width=4, epochs=1, batch_size=16, lr=1e-4, device='cpu')\n"
        "assert result.complete and world_size() == 2\n"
        "assert not any(each._post_accumulate_grad_hooks for each in result.encoder.parameters())\n"
        "dist.destroy_process_group()\n"
    )
    ended = run_processes(2, ["-c", code], folder)
    assert [each.code for each in ended] == [0, 0], ended
    assert len(epochs(Run(folder / "group"))) == 1


@pytest.mark.parametrize(
    ("own_code", "message"),
    [
        ("zero_init = rank == 1", "--zero-init-residual is False in process 0 and True in process 1; start all with"),
        ("knn_every = rank + 1", "--knn-every is 1 in process 0 and 2 in process 1; start all with the same command"),
        (
            "images = images[: 96 - 16 * rank]",
            "the hash of the training images is [0-9a-f]+ in process 0 and .*; give ",
        ),
        ("images[95] += rank", "the hash of the training images is [0-9a-f]+ in process 0 and .*; give all processes"),
    ],
)
def test_processes_with_other_data_or_settings_stop_at_once(folder, own_code, message):
    """They would wait for each other forever, or train on different images."""
    code = (
        "import os, numpy as np, aag\n"
        "from aag.distributed import ReportedByMainError\n"
        "rank, knn_every, zero_init, images = int(os.environ['RANK']), 1, False, np.load('tiny.npz')['train_images']\n"
        f"{own_code}\n"
        "options = dict(width=4, epochs=2, batch_size=16, lr=1e-4, device='cpu', knn_every=knn_every)\n"
        "options['zero_init_residual'] = zero_init\n"
        "try:\n"
        "    aag.train(images, out='differs', **options)\n"
        "except aag.AAGError as error:\n"
        "    print(isinstance(error, ReportedByMainError), error)\n"
    )
    main, other = run_processes(2, ["-c", code], folder, timeout=60)
    assert re.search(f"^False {message}", main.output), main
    assert re.search(f"^True {message}", other.output), other
    assert not (folder / "differs").exists()


def test_a_mistake_is_said_once_per_machine(folder):
    """The file of a method may be missing on one machine."""
    environment = os.environ | {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    words = [sys.executable, "-m", "aag", "train", "--method", "missing.py:Mine"]
    ended = subprocess.run(words, capture_output=True, text=True, cwd=folder, env=environment)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert ended.stderr.startswith("error (process 1): no such file: missing.py")


@pytest.mark.parametrize(
    ("size", "words", "message"),
    [
        (2, ["--batch-size", "128"], "batch size 128 exceeds the 96 training images; use --batch-size 64"),
        (2, ["--batch-size", "15"], "batch size 15 cannot be divided among 2 processes; use --batch-size 16"),
        (2, ["--bn-group-size", "16"], "the 8 images per process cannot be divided into batch norm groups of 16"),
        (2, ["--method", "nothing"], "unknown method 'nothing'"),
        (2, ["--data", "missing.npz"], "missing.npz"),
    ],
)
def test_mistakes_are_one_line_of_the_main_process(folder, size, words, message):
    main, other = train(folder, size, "mistake", *words)
    assert (main.code, other.code) == (2, 2), (main, other)
    assert re.fullmatch(rf"error( \(process 0\))?: .*{re.escape(message)}.*\n", main.output)
    assert other.output == ""
