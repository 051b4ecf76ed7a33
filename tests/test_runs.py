"""Run folders: where a run may start, what is read from one that is damaged, and what its record says."""

import json
from pathlib import Path
from typing import Any

import pytest

from aag import AAGError
from aag.records import make_record, write_record
from aag.runs import Run, extends, summarize
from aag.training import RunSettings, recipe_settings

EPOCHS = 4
SETTINGS = recipe_settings("paper", "cifar10").replace(epochs=EPOCHS).resolve("fp32")


def made(folder: Path, settings: RunSettings = SETTINGS, evaluated: bool = True) -> Run:
    """A run as training and evaluation leave it, without its weights."""
    run = Run(folder)
    with run.lock():
        run.start(settings.to_json(), "a-name")
    start = {"kind": "start", "epoch": 0, "step": 0, "gpu": None}
    rows: list[dict[str, Any]] = [start, {"kind": "knn", "epoch": 0, "step": 0, "knn": 20.0}]
    for epoch in range(1, settings.train.epochs + 1):
        at = {"epoch": epoch, "step": 10 * epoch}
        rows.append({"kind": "steps", **at, "loss": 5.0 - epoch})
        rows.append({"kind": "epoch", **at, "loss": 5.0 - epoch, "seconds": 2.0 * epoch, "views_per_second": 100.0})
        rows.append({"kind": "knn", **at, "knn": 30.0 + epoch})
    run.log(rows)
    results = [{"name": "kNN (embedding)", "accuracy": 34.0, "protocol": {}}]
    if evaluated:
        run.evaluation_file.write_text(json.dumps({"epoch": settings.train.epochs, "results": results}))
    return run


# --- where a run may start --------------------------------------------------------------------------------------------


def test_a_run_starts_in_a_new_or_empty_folder_and_resumes_in_its_own(tmp_path):
    for folder in (tmp_path / "new" / "deep", tmp_path / "empty"):
        if folder.name == "empty":
            folder.mkdir()
        run = made(folder)
        assert run.settings() == SETTINGS.to_json()
        assert run.name == "a-name"
        before = run.config_file.read_bytes()
        run.check(SETTINGS.to_json())
        run.start(SETTINGS.to_json(), "another-name")
        assert run.config_file.read_bytes() == before


@pytest.mark.parametrize("name", ["encoder.safetensors", "metrics.jsonl", "photo.jpg", ".hidden"])
def test_a_folder_of_other_files_is_refused_and_left_alone(tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(AAGError, match=f"is not empty and not a run: it holds '{name}'; choose another --out"):
        Run(tmp_path).check(SETTINGS.to_json())
    (tmp_path / "zebra").write_text("mine")
    with pytest.raises(AAGError, match=f"'{name}' and 1 more"):
        Run(tmp_path).start(SETTINGS.to_json())
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "zebra"])
    assert (tmp_path / name).read_text() == "mine"


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(AAGError, match="is a file, not a run folder; choose another --out"):
        Run(tmp_path / "file").check(SETTINGS.to_json())


def test_other_settings_are_named_with_both_values(tmp_path):
    run = made(tmp_path / "run")
    with pytest.raises(AAGError, match=r"\(seed 0 there, 1 here; temperature 0.1 there, 0.2 here\)|\(temperature"):
        run.check(SETTINGS.replace(seed=1, temperature=0.2).to_json())
    with pytest.raises(AAGError, match=r"epochs 4 there, 9 here.*; to train on from its weights use --from .*run"):
        run.check(SETTINGS.replace(epochs=9).to_json())


@pytest.mark.parametrize(
    ("there", "here", "allowed"),
    [
        ({}, {"epochs": 9}, True),
        ({}, {"epochs": 3}, False),
        ({}, {"epochs": 9, "seed": 1}, False),
        ({"schedule": "cosine"}, {"epochs": 9}, False),
        ({"schedule": "step"}, {"epochs": 9}, False),
        ({"rounds": 2}, {"epochs": 8}, False),
        ({"low_res_size": 16}, {"epochs": 8}, False),  # for half of the epochs
        ({}, {}, False),
    ],
)
def test_only_more_epochs_at_a_constant_rate_extend_a_run(there, here, allowed):
    before = SETTINGS.replace(**{"schedule": "constant"} | there)
    assert extends(before.to_json(), before.replace(**here).to_json()) == allowed


def test_a_method_with_a_fraction_of_the_epochs_is_not_extended():
    before = recipe_settings("aag-nn", "cifar10").replace(schedule="constant")
    assert not extends(before.to_json(), before.replace(epochs=300).to_json())


# --- opening ----------------------------------------------------------------------------------------------------------


def test_a_run_is_opened_by_its_folder_or_a_file_in_it(tmp_path):
    folder = made(tmp_path / "run").folder
    assert Run.open(folder).folder == Run.open(folder / "metrics.jsonl").folder == folder
    (tmp_path / "file.safetensors").write_text("")
    for path, message in (
        (tmp_path / "nowhere", "no such run folder"),
        (tmp_path, "is not a run folder: it holds no config.json"),
        (tmp_path / "file.safetensors", "is a file; give a run folder"),
    ):
        with pytest.raises(AAGError, match=message):
            Run.open(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[]", r"config\.json is damaged: it holds '\[\]', not settings by name"),
        (b"{", r"config\.json is damaged: it is not JSON"),
        (b"\xff", r"config\.json is damaged"),
        (b"[" * 100_000, r"config\.json is damaged"),
        (b'{"name": "' + b"x" * 1_000_000 + b'"}', r"cannot read .*config\.json: it has more than 1 MB$"),
        (b'{"epochs": 3}', "does not hold the settings of a run of this version; train again"),
        (b'{"data": {}, "encoder": {}, "method": 3, "train": {}}', "does not hold the settings"),
    ],
)
def test_a_damaged_config_is_one_line(tmp_path, content, message):
    run = made(tmp_path / "run")
    run.config_file.write_bytes(content)
    for use in (run.settings, lambda: run.check(SETTINGS.to_json()), lambda: make_record(run)):
        with pytest.raises(AAGError, match=message):
            use()
    assert run.config_file.read_bytes() == content


def test_an_evaluation_that_is_missing_or_damaged_is_one_line(tmp_path):
    run = made(tmp_path / "run", evaluated=False)
    with pytest.raises(AAGError, match=r"is not evaluated; run aag evaluate"):
        make_record(run)
    result = {"name": "kNN (embedding)", "accuracy": 34.0, "protocol": {}}
    wrong = ({}, {**result, "accuracy": "34"}, {**result, "protocol": []}, 3)
    contents = [3, {}, {"results": 3}, {"epoch": "4", "results": []}, *({"results": [row]} for row in wrong)]
    for content in contents:
        run.evaluation_file.write_text(json.dumps(content))
        with pytest.raises(AAGError, match=r"evaluation\.json is damaged"):
            make_record(run)


# --- metrics and records ----------------------------------------------------------------------------------------------


def test_whole_metrics_give_curves_and_nothing_is_missing(tmp_path):
    run = made(tmp_path / "run")
    summary = summarize(run, EPOCHS)
    assert (summary.knn_untrained, summary.knn_last, summary.knn_best_epoch) == (20.0, 34.0, 4)
    assert (summary.seconds, summary.views_per_second, summary.missing) == (8.0, 100.0, "")
    record = make_record(run)
    assert "missing" not in record
    assert record["knn"] == {"last": 34.0, "best": 34.0, "best_epoch": 4, "reported": "last"}
    assert record["settings"] == SETTINGS.to_json()
    assert write_record(run, tmp_path / "records").name == "a-name.json"


def test_damaged_lines_of_the_metrics_are_passed_over(tmp_path):
    run = made(tmp_path / "run")
    before = run.metrics()
    lines = run.metrics_file.read_bytes().splitlines(keepends=True)
    run.metrics_file.write_bytes(b"".join([lines[0], b"3\n", b"\xff{\n", *lines[1:], b'{"kind": "ep']))
    assert run.metrics() == before


def test_a_record_of_damaged_metrics_takes_the_evaluation_s_number_and_says_what_is_missing(tmp_path):
    """The last epochs are lost: an earlier epoch's kNN must not be reported as the last."""
    run = made(tmp_path / "run")
    run.filter_metrics(lambda row: row["epoch"] <= 2)
    assert summarize(run, EPOCHS).missing == "2 epochs of 4 not in metrics.jsonl"
    record = make_record(run)
    assert record["knn"]["last"] == 34.0
    assert record["missing"] == "2 epochs of 4 not in metrics.jsonl"
    assert record["seconds"] is None
    assert [epoch for epoch, _ in record["loss_by_epoch"]] == [1, 2]
    run.metrics_file.unlink()
    record = make_record(run)
    assert record["knn"] == {"last": 34.0, "best": None, "best_epoch": None, "reported": "last"}
    assert record["missing"] == "4 epochs of 4 not in metrics.jsonl"


def test_a_record_of_other_data_is_not_overwritten(tmp_path):
    write_record(made(tmp_path / "one"), tmp_path / "records")
    other = made(tmp_path / "two", SETTINGS.replace(data="elsewhere/cifar10.npz"))
    with pytest.raises(AAGError, match=r"is the record of a run on other data \(cifar10\)"):
        write_record(other, tmp_path / "records")
