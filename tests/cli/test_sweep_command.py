"""`aag sweep` on tiny runs: what it runs, prints, refuses and resumes."""

import json
import re
import shlex
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import Ran, aag_, refused
from PIL import Image

from aag.data import loading
from aag.locks import LockedError
from aag.runs import Run
from aag.signals import SAVE_SECONDS
from aag.sweeps import runner
from aag.training.progress import Progress

TINY = ["--recipe", "demo", "--width", 4, "--device", "cpu"]


@pytest.fixture(scope="module")
def npz(make_npz) -> Path:
    """48 + 8 photographs with labels: two steps per epoch."""
    return make_npz(48, 8)


@pytest.fixture(autouse=True)
def _without_garbage_collection(monkeypatch) -> None:
    """It takes as long as a tiny run. tests/sweeps counts the calls."""
    monkeypatch.setattr(runner, "free_memory", lambda: None)


@pytest.fixture
def sweep(npz):
    def run(*words: object) -> Ran:
        return aag_("sweep", "--data", npz, "--epochs", 1, *TINY, *words)

    return run


def folder_of(ran: Ran) -> str:
    """Return the folder that a sweep prints."""
    return re.findall(r"^sweep    (.+)$", ran.out, re.M)[-1]


def folders(out: str) -> list[str]:
    return sorted(path.name for path in Path(out).iterdir() if path.is_dir())


def scores(out: str) -> list[tuple[dict, float]]:
    rows = json.loads(Path(out, "sweep.json").read_text())["rows"]
    return [(row["values"], row["knn"]) for row in rows]


def test_a_grid_is_trained_ranked_and_reused(sweep, npz, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    ran = sweep("--batch-size", 16, "--grid", "lr=0.03,0.1", "temperature=0.1,0.2")
    assert (ran.code, ran.err) == (0, "")
    assert "\n4 runs of 1 epoch\n[1/4] lr=0.03 temperature=0.1\n      kNN " in ran.out
    assert re.search(r"┃ lr +┃ temperature ┃ kNN % ┃ time +┃ status ┃", ran.out)
    assert max(map(len, ran.out.partition("The best")[0].splitlines())) <= 80
    assert re.search(
        r"^ranked   by kNN of \d+ held-out training images \(± [\d.]+, one standard error\)$", ran.out, re.M
    )
    out = folder_of(ran)
    assert re.fullmatch(r"sweeps/tiny-demo-epochs=1-lr-temperature-[0-9a-f]{8}", out)
    best, *_ = scores(out)
    command = shlex.split(ran.out.splitlines()[-1])
    assert command[:2] == ["aag", "train"]
    assert "--holdout" not in command  # on all images
    for name, value in best[0].items():
        assert command[command.index(f"--{name}") + 1] == str(value)
    assert Path(out, "sweep.md").read_text().startswith(f"# {Path(out).name}\n\nRanked by kNN")
    assert Run(Path(out, folders(out)[0])).settings()["data"]["holdout"] == 0.1

    again = sweep("--batch-size", 16, "--grid", "lr=0.03,0.1", "temperature=0.1,0.2")
    assert "[1/" not in again.out
    assert shlex.split(again.out.splitlines()[-1]) == command
    more = sweep("--batch-size", 16, "--grid", "lr=0.03,0.1,0.3", "temperature=0.1,0.2", "--list")
    assert "left     2 runs" in more.out
    assert folder_of(more) == out
    other = sweep("--batch-size", 16, "--grid", "lr=0.03,0.1", "temperature=0.1,0.2", "--holdout", 0.3, "--out", out)
    assert other.code == 2
    assert "holdout 0.1 there, 0.3 here); choose another --out" in other.err


def test_the_folder_depends_on_shared_options_not_on_values(npz):
    def folder(*words: object) -> str:
        return folder_of(aag_("sweep", "--data", npz, "--recipe", "demo", *words, "--list"))

    grid = ["--grid", "lr=0.03,0.1"]
    assert folder(*grid) == folder(*grid, "--epochs", 9) == "sweeps/tiny-demo-lr"  # 9 are the recipe's
    assert folder(*grid, "--epochs", 3, "--device", "cpu") == "sweeps/tiny-demo-epochs=3-lr"
    narrow, seeded, wide = (folder(*grid, *words) for words in (["--width", 4], ["--seed", 1], ["--width", 16]))
    assert len({narrow, seeded, wide, "sweeps/tiny-demo-lr"}) == 4
    assert all(re.fullmatch(r"sweeps/tiny-demo-lr-[0-9a-f]{8}", each) for each in (narrow, seeded, wide))
    assert folder("--grid", "lr=0.01,0.03,0.1", "--width", 4) == narrow
    assert folder("--grid", "lr=0.01..1", "--random", 2, "--width", 4) == narrow
    assert folder("--one-at-a-time", "--lr", 0.5, *grid) != folder("--one-at-a-time", *grid) == "sweeps/tiny-demo-lr"


def test_the_folder_is_the_same_with_more_recipes_and_methods(npz):
    def folder(*words: object) -> str:
        return folder_of(aag_("sweep", "--data", npz, *words, "--list"))

    assert folder("--grid", "recipe=demo,paper") == folder("--grid", "recipe=paper,demo") == "sweeps/tiny-recipe"
    words = ["--epochs", 9, "--recipe", "demo"]  # the recipe's for AAG
    assert folder(*words, "--grid", "method=aag,moco") == folder(*words, "--grid", "method=moco,aag,simclr")


def test_long_folder_names_are_cut_and_stay_different(npz):
    grid = ["lr=0.1", "temperature=0.1", "weight_decay=0.1", "momentum=0.5", "batch_size=16", "width=4", "min_crop=0.5",
            "jitter_strength=0.5", "bn_group_size=0"]  # fmt: skip
    found = {
        folder_of(aag_("sweep", "--data", npz, "--recipe", "demo", "--grid", *grid, more, "--list"))
        for more in ("warmup_epochs=1", "warmup_epochs=1,2", "grayscale=0.1", "grayscale=0.1,0.2")
    }
    assert len(found) == 2
    assert {len(Path(each).name) for each in found} == {100}


def test_test_images_are_never_read(npz, tmp_path, monkeypatch):
    with np.load(npz) as content:
        arrays = dict(content)
    rng = np.random.default_rng(0)
    poisoned = {"test_images": rng.integers(0, 256, (8, 32, 32, 3), np.uint8), "test_labels": np.arange(8) % 2}
    np.savez(tmp_path / "tiny.npz", **{**arrays, **poisoned})
    words = ["--epochs", 1, *TINY, "--batch-size", 16, "--grid", "lr=0.03,0.1"]
    for data, out in ((npz, "one"), (tmp_path / "tiny.npz", "two")):
        assert aag_("sweep", "--data", data, *words, "--out", out).code == 0
    assert scores("one") == scores("two")

    real, seen = loading.read_dataset, []
    monkeypatch.setattr(
        loading, "read_dataset", lambda dataset, splits, root: seen.append(splits) or real(dataset, splits, root)
    )
    assert aag_("sweep", "--data", "sample", *words, "--plan").code == 0
    assert aag_("sweep", "--data", "sample", *words, "--labels", "none", "--plan").code == 0
    assert seen == [["train"], ["train"]]


def test_random_draws_halving_and_seeds(sweep):
    words = ["--grid", "lr=0.01..1", "batch_size=16..20", "--random", 4, "--halving", 2, "--epochs", 4, "--out", "out"]
    listed = sweep(*words, "--list")
    assert listed.out.count("to do") == 4
    assert "rungs    4 settings for 1 epoch, 2 settings for 2 epochs, 1 setting for 4 epochs; now rung 1" in listed.out
    assert not Path("out").exists()
    ran = sweep(*words)
    assert (ran.code, ran.err) == (0, "")
    assert re.findall(r"^rung . of 3: . runs? of . epochs?", ran.out, re.M) == [
        "rung 1 of 3: 4 runs of 1 epoch", "rung 2 of 3: 2 runs of 2 epochs", "rung 3 of 3: 1 run of 4 epochs",
    ]  # fmt: skip
    assert sorted(len(re.findall(rf"-epochs={epochs}-", " ".join(folders("out")))) for epochs in (1, 2, 4)) == [1, 2, 4]
    assert "--epochs 4" in ran.out.splitlines()[-1]
    assert "left     0 runs" in sweep(*words, "--list").out


def test_one_at_a_time_with_settings_that_fail(sweep):
    words = ["--lr", 0.03, "--batch-size", 16, "--one-at-a-time", "--seeds", 2]
    ran = sweep(*words, "--grid", "lr=0.1,1e6", "batch_size=500", "flip=false")
    assert (ran.code, ran.err) == (0, "")
    assert "10 runs of 1 epoch" in ran.out
    table = {line.split()[1]: line for line in ran.out.splitlines() if line.startswith("│")}
    assert table.keys() == {"baseline", "lr=0.1", "lr=1e+06", "batch_size=500", "flip=false"}
    assert "not finite" in table["lr=1e+06"]
    assert re.search(r" [+-]\d+\.\d\d ", table["lr=0.1"])  # the difference to the baseline
    assert not re.search(r" [+-]\d", table["baseline"])
    assert re.search(r"[\d.]+ │ [\d.]+–[\d.]+ ", table["baseline"])
    assert "failed: batch_size=500: batch size 500 exceeds the 4" in ran.out
    again = sweep(*words, "--grid", "lr=0.1,1e6", "batch_size=500", "flip=false")
    assert "[1/" not in again.out


def test_stopping_saves_and_the_same_command_resumes(sweep, monkeypatch):
    words = ["--batch-size", 16, "--epochs", 2, "--grid", "lr=0.03,0.1"]
    assert sweep(*words, "--out", "whole").code == 0
    steps = 0

    def on_step(*_: object) -> None:
        nonlocal steps
        steps += 1
        if steps == 5:  # the first of the second run
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patched:
        patched.setattr(Progress, "on_step", on_step)
        stopped = sweep(*words, "--out", "parts")
    assert stopped.code == 75
    assert "Not all runs are done. The same command resumes." in stopped.out
    listed = sweep(*words, "--out", "parts", "--list")
    assert "stopped" in listed.out
    assert "left     1 run\n" in listed.out
    resumed = sweep(*words, "--out", "parts")
    assert resumed.code == 0
    assert "\n1 run of 2 epochs" in resumed.out
    assert scores("parts") == scores("whole")


def test_a_time_limit_is_set_for_the_whole_sweep(sweep, monkeypatch):
    left: list[float] = []
    monkeypatch.setattr(Progress, "on_step", lambda *_: left.append(signal.getitimer(signal.ITIMER_REAL)[0]))
    assert sweep("--batch-size", 16, "--grid", "lr=0.03,0.1", "--minutes", 9).code == 0
    assert 0 < left[-1] < left[0] <= 9 * 60 - SAVE_SECONDS
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_the_planned_commands_give_the_runs_of_the_sweep(sweep):
    words = ["--batch-size", 16, "--grid", "lr=0.03,0.1", "--rank-by", "linear", "--out", "my sweep"]
    words += ["--data-root", "my sets"]
    planned = sweep(*words, "--plan")
    assert (planned.code, planned.err) == (0, "")
    for line in planned.out.splitlines():
        evaluate = shlex.split(line.partition(" && ")[2])
        assert evaluate[:2] == ["aag", "evaluate"]
        assert evaluate[3:] == ["--device", "cpu", "--data-root", "my sets"]
    for line in planned.out.splitlines():
        for command in line.split(" && "):
            ran = aag_(*shlex.split(command)[1:], *(["--no-report"] if " train " in command else []))
            assert ran.code == 0, ran.err
    done = sweep(*words, "--json")
    assert done.err.startswith("data     tiny: ")  # all text but the table
    rows = json.loads(done.out)
    assert [row["status"] for row in rows] == ["done", "done"]
    assert rows[0]["linear"] >= rows[1]["linear"]
    assert all(row["knn"] is not None for row in rows)
    assert sweep(*words, "--plan").err == "nothing to run: everything is done\n"


def test_a_folder_without_labels_is_ranked_by_agreement(npz):
    with np.load(npz) as content:
        for number, image in enumerate(content["train_images"]):
            Path("photos").mkdir(exist_ok=True)
            Image.fromarray(image).save(f"photos/{number}.png")
    assert "needs the --epochs" in refused("sweep", "--data", "photos", "--grid", "lr=0.1,0.2")
    words = ["sweep", "--data", "photos/", "--epochs", 1, "--width", 4, "--device", "cpu"]
    ran = aag_(*words, "--grid", "lr=0.1,0.2")
    assert (ran.code, ran.err) == (0, "")
    assert "ranked   by two-view agreement (there are no labels): a hint, not an accuracy" in ran.out
    assert re.fullmatch(r"sweeps/photos-auto-epochs=1-lr-[0-9a-f]{8}", folder_of(ran))
    assert "\nchosen   image size  32 " in ran.out
    assert "\ndata     photos: 48 training images, no labels\n" in ran.out
    assert "[1/" not in aag_(*words, "--grid", "lr=0.1,0.2").out
    assert "changes the views" in aag_(*words, "--grid", "jitter_strength=0.1,1").err
    command = ran.out.splitlines()[-1].split()
    trained = aag_(*command[1:], "--device", "cpu", "--no-report", "--out", "whole")
    assert trained.code == 0, trained.err


def test_methods_and_their_options_are_swept(sweep):
    ran = sweep("--batch-size", 16, "--grid", "method=aag,simclr", "temperature=0.1", "decay_at=0.5 0.8", "--list")
    assert "error: --decay-at has no effect" in ran.err
    ran = sweep("--batch-size", 16, "--grid", "method=aag,simclr", "temperature=0.1")
    assert (ran.code, ran.err) == (0, "")
    assert {values["method"] for values, _ in scores(folder_of(ran))} == {"aag", "simclr"}
    listed = sweep("--batch-size", 16, "--schedule", "step", "--grid", "decay_at=0.5 0.8,0.6 0.9", "--list")
    assert "0.5, 0.8" in listed.out


def test_another_process_may_train_a_run_of_the_same_sweep(sweep, monkeypatch):
    words = ["--batch-size", 16, "--grid", "lr=0.03,0.1", "--out", "out"]
    real = runner.train_run

    def train(settings: Any, execution: Any, **options: Any) -> Any:
        if settings.train.lr == 0.03:
            raise LockedError("another process is using it")
        return real(settings, execution, **options)

    monkeypatch.setattr(runner, "train_run", train)
    ran = sweep(*words)
    assert ran.code == 75
    assert "lr=0.03\n      another process trains it\n" in ran.out
    monkeypatch.setattr(runner, "train_run", real)
    assert "\n1 run of 1 epoch" in sweep(*words).out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "nothing to sweep; give --grid"),
        (["--grid", "lr=0.1,-1"], "--lr must be at least 0"),
        (["--grid", "lr=0.1,fast"], "--lr takes a number, not 'fast'"),
        (["--grid", "lrr=1,2"], "did you mean --lr"),
        (["--grid", "seed=1,2"], "use --seeds N"),
        (["--grid", "data=a,b"], "images that are evaluated"),
        (["--grid", "device=cpu,cuda"], "give --device once"),
        (["--grid", "queue=1,2"], "--queue is an option of aag-relational or moco"),
        (["--grid", "flip=1,2"], "flip takes true or false, not '1'"),
        (["--grid", "lr=0.1..1"], "add --random N"),
        (["--grid", "lr=1,2", "--lr", "3"], "lr is in --grid; leave out --lr"),
        (["--grid", "weight_decay=0,1", "--weight_decay=0"], "is in --grid; leave out --weight-decay"),
        (["--grid", "lr=1,2", "--halving", "3"], "needs at least 3 settings; the grid has 2"),
        (["--grid", "lr=1,2", "--haling", "3"], "did you mean --halving"),
        (["--grid", "lr=1,2", "--random", "3"], "only 2 combinations"),
        (["--grid", "lr=1,2", "--minutes", "0"], "--minutes must be above 0"),
        (["--grid", "lr=1,2", "--plan", "--json"], "--plan prints commands only"),
        (["--grid", "lr=1,2", "--labels", "none", "--rank-by", "knn"], "has no labels, which --rank-by knn needs"),
        (["--grid", "lr=1,2", "--labels", "none", "--holdout", "0.1"], "--holdout needs labels"),
    ],
)
def test_mistakes_are_refused_before_anything_runs(npz, words, said):
    assert said in refused("sweep", "--data", npz, "--epochs", 1, *TINY, *words)
    assert not Path("sweeps").exists()
