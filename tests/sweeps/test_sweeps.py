"""`aag.sweep` from Python, on tiny runs."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import aag
from aag.methods.isif import ISIF
from aag.methods.simclr import SimCLR
from aag.sweeps import SweepResult, runner

TINY_OPTIONS = {"recipe": "demo", "width": 4, "epochs": 1, "batch_size": 16, "device": "cpu"}


@pytest.fixture(scope="module")
def images() -> aag.ImageSet:
    return aag.data.load("sample", limit=48, image_size=8)


@pytest.fixture(autouse=True)
def freed(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Count calls of `free_memory` instead: the garbage collection takes as long as a tiny run."""
    calls: list[bool] = []
    monkeypatch.setattr(runner, "free_memory", lambda: calls.append(True))
    return calls


@pytest.fixture
def sweep(tmp_path: Path, images: aag.ImageSet):
    def run(grid: Any, source: Any = images, **options: Any) -> SweepResult:
        return aag.sweep(source, grid, out=tmp_path / "sweep", **{**TINY_OPTIONS, **options})

    return run


def test_rows_are_ranked_best_first_and_the_same_call_reuses_them(sweep, freed, monkeypatch):
    first = sweep({"lr": [0.03, 0.1], "temperature": [0.1]})
    assert first.is_complete
    assert [row.status for row in first.rows] == ["done", "done"]
    assert len(freed) == 2  # after each run
    assert first.rows[0].score >= first.rows[1].score
    assert first.best is first.rows[0]
    assert first.best.options == {"recipe": "demo", "method": "aag", "batch_size": 16, "epochs": 1,
                                  "lr": first.best.values["lr"], "temperature": 0.1, "width": 4}  # fmt: skip
    trained, real = [], runner.train_run
    monkeypatch.setattr(runner, "train_run", lambda *a, **k: trained.append(a) or real(*a, **k))
    more = sweep({"lr": [0.03, 0.1, 0.3], "temperature": [0.1]})
    assert len(trained) == 1
    known = {row.values["lr"]: row.score for row in more.rows}
    assert all(known[row.values["lr"]] == row.score for row in first.rows)
    stored = json.loads((more.folder / "sweep.json").read_text())
    assert stored["grid"] == ["lr=0.03,0.1,0.3", "temperature=0.1"]
    assert [row["values"] for row in stored["rows"]] == [row.values for row in more.rows]


def test_the_device_may_be_an_object_as_for_train(sweep):
    assert sweep({"lr": [0.03]}, device=torch.device("cpu")).is_complete


def test_runs_on_other_images_are_not_reused(sweep, images):
    sweep({"lr": [0.03]})
    with pytest.raises(aag.AAGError, match=r"the images of sample are not those .*; choose another --out"):
        sweep({"lr": [0.03]}, source=replace(images, images=images.images.flip(3)))


def test_test_images_are_never_used(sweep, images, tmp_path):
    plain = sweep({"lr": [0.03, 0.1]})
    garbage = aag.ImageSet(
        "other", torch.zeros(7, 3, 8, 8, dtype=torch.uint8), torch.zeros(7).long(), images.classes, split="test"
    )
    paired = aag.sweep((images, garbage), {"lr": [0.03, 0.1]}, out=tmp_path / "paired", **TINY_OPTIONS)
    assert [(row.values, row.score) for row in paired.rows] == [(row.values, row.score) for row in plain.rows]


def test_a_module_is_copied_for_each_run(sweep):
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    before = [each.clone() for each in network.parameters()]
    result = sweep({"lr": [0.03, 0.03001]}, network=network, width=64)
    assert [row.status for row in result.rows] == ["done", "done"]
    assert all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))
    assert result.command == ""


def test_methods_are_compared_by_name_or_as_classes(sweep):
    class Closer(SimCLR):
        """A method of the user's own."""

    result = sweep({"method": [ISIF, "simclr", Closer]}, lr=0.03)
    assert {row.values["method"]: row.status for row in result.rows} == dict.fromkeys(
        ("isif", "simclr", "closer"), "done"
    )
    stored = json.loads((result.folder / "sweep.json").read_text())
    assert stored["grid"] == ["method=isif,simclr,closer"]
    assert sweep({"method": ["isif", SimCLR, "closer"]}, lr=0.03).rows == result.rows  # the same runs


def test_a_stopped_sweep_resumes_to_the_same_result(sweep, tmp_path, images):
    calls = iter([False] + [True] * 1000)  # before the first run, and after its first step
    stopped = sweep({"lr": [0.03, 0.1]}, seeds=2, should_stop=lambda: next(calls))
    assert not stopped.is_complete
    assert "stopped" in {run.status for row in stopped.rows for run in row.runs}
    resumed = sweep({"lr": [0.03, 0.1]}, seeds=2)
    whole = aag.sweep(images, {"lr": [0.03, 0.1]}, seeds=2, out=tmp_path / "whole", **TINY_OPTIONS)
    assert resumed.is_complete
    assert [(row.values, row.score) for row in resumed.rows] == [(row.values, row.score) for row in whole.rows]
    assert all(len(row.runs) == 2 for row in resumed.rows)
    low, high = resumed.best.range("knn")
    assert low <= resumed.best.score <= high


def test_failures_are_rows_and_are_not_repeated(sweep, monkeypatch, capsys):
    real = runner.train_run

    def train(settings: Any, *arguments: Any, **options: Any) -> Any:
        if settings.train.lr == 0.5:
            raise torch.OutOfMemoryError("CUDA out of memory")
        if settings.train.lr == 0.6:
            raise RuntimeError("cuDNN error")
        return real(settings, *arguments, **options)

    monkeypatch.setattr(runner, "train_run", train)
    grid = {"lr": [0.5, 0.6, 1e6, 0.1], "batch_size": [16]}
    result = sweep(grid)
    found = {row.values["lr"]: row.status for row in result.rows}
    assert found == {0.5: "out of memory", 0.6: "failed", 1e6: "not finite", 0.1: "done"}
    assert result.best.values["lr"] == 0.1
    assert "cuDNN error" in capsys.readouterr().err
    monkeypatch.setattr(runner, "train_run", real)
    assert {row.values["lr"]: row.status for row in sweep(grid).rows} == found
    again = {row.values["lr"]: row.status for row in sweep(grid, retry_failed=True).rows}
    assert again == {0.5: "done", 0.6: "done", 1e6: "not finite", 0.1: "done"}
    assert {row.values["lr"]: row.status for row in sweep(grid).rows} == again


def test_a_run_without_its_last_numbers_is_a_failure_not_an_endless_loop(sweep):
    first = sweep({"lr": [0.03, 0.1]})
    folder = first.best.runs[0].folder
    (folder / "metrics.jsonl").write_text("")
    again = sweep({"lr": [0.03, 0.1]})
    assert [row.status for row in again.rows] == ["done", "failed"]
    assert f"delete {folder}" in again.rows[1].message


def test_collapsed_settings_come_after_all_others(sweep):
    first = sweep({"lr": [0.03, 0.1]})
    run = aag.Run(first.best.runs[0].folder)
    rows = run.metrics()
    collapse = {"rank": 1.0, "step": 1000}
    run.filter_metrics(lambda row: False)
    run.log(row | collapse if row["kind"] == "health" and row["epoch"] == 1 else row for row in rows)
    again = sweep({"lr": [0.03, 0.1]})
    assert [row.status for row in again.rows] == ["done", "collapsed"]
    assert again.best.values != first.best.values


def test_combinations_that_exclude_each_other_are_rows(sweep):
    result = sweep({"batch_size": [16, 24], "bn_group_size": [0, 16]})
    bad = [row for row in result.rows if row.status == "invalid"]
    assert [row.values for row in bad] == [{"batch_size": 24, "bn_group_size": 16}]
    assert "not a multiple" in bad[0].message
    assert sum(row.is_done for row in result.rows) == 3


def test_without_labels_agreement_ranks_and_views_must_be_the_same(sweep, images):
    pixels = images.images
    result = sweep({"lr": [0.03, 0.1]}, pixels)
    assert (result.measure, result.held_out_count) == ("agreement", None)
    assert [row.score for row in result.rows] == sorted((row.score for row in result.rows), reverse=True)
    with pytest.raises(aag.AAGError, match="changes the views"):
        sweep({"min_crop": [0.1, 0.5]}, pixels)
    with pytest.raises(aag.AAGError, match="no labels"):
        sweep({"lr": [0.03, 0.1]}, pixels, rank_by="knn")


@pytest.mark.parametrize(
    ("grid", "options", "said"),
    [
        ({"lr": [0.1, -1.0]}, {}, "at least 0"),
        ({"speed": [1, 2]}, {}, "unknown option"),
        ({"holdout": [0.1, 0.2]}, {}, "images that are evaluated"),
        ({"lr": [0.1, 0.2]}, {"minutes": 3}, "takes no minutes"),
        ({"lr": [0.1, 0.2]}, {"halving": 2, "epochs": 1}, "at least --epochs 2"),
        ({"lr": 0.1}, {}, "must be a list"),
        ({"lr": [0.1, 0.2]}, {"seeds": 0}, "at least 1"),
        ({"method": ["aag", SimCLR()]}, {}, "a new method for each run; give the class SimCLR"),
        ({"method": ["aag", nn.Module]}, {}, "or a subclass of Method, not <class"),
        ({"method": ["aag", 3]}, {}, "or a subclass of Method, not 3"),
        ({"lr": [0.1, 0.2]}, {"method": SimCLR()}, "a new method for each run; give the class SimCLR"),
        ({"lr": [0.1, 0.2]}, {"method": 3}, "or a subclass of Method, not 3"),
        ({"network": [nn.Identity()]}, {}, "network must be"),
    ],
)
def test_mistakes_are_refused_before_anything_runs(sweep, tmp_path, grid, options, said):
    with pytest.raises(aag.AAGError, match=said):
        sweep(grid, **options)
    assert not (tmp_path / "sweep").exists()
