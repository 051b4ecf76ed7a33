"""Records: one file with a run's settings, numbers and provenance, all of them those of the run folder."""

import json
from pathlib import Path
from typing import Any

import pytest

from aag import AAGError
from aag.files import write_json
from aag.paper import Experiment, Results, make_experiment
from aag.provenance import provenance
from aag.records import make_record, write_record
from aag.runs import Run

EVALUATION = [{"name": "kNN (embedding)", "accuracy": 41.23, "protocol": {"evaluation": "knn", "k": 200}}]
SHORT = make_experiment("sample", epochs=3)


def make_run(folder: Path, experiment: Experiment, knn: dict[int, float], *, without: tuple[int, ...] = ()) -> Run:
    """A run folder as training and evaluation leave it, with these kNN accuracies; some epochs are not logged."""
    run, epochs = Run(folder), experiment.settings.train.epochs
    folder.mkdir()
    run.start(experiment.settings.resolve("fp32").to_json(), experiment.name)
    rows: list[dict[str, Any]] = [{"kind": "start", "epoch": 0, "step": 0, **provenance(), "runtime": "CPU, fp32"}]
    for epoch in range(epochs + 1):
        at = {"epoch": epoch, "step": 10 * epoch}
        if epoch and epoch not in without:
            speed = {"seconds": 2.0 * epoch, "views_per_second": 100.0 * epoch}
            rows.append({"kind": "steps", **at, "loss": 0.0})
            rows.append({"kind": "epoch", **at, "loss": 20 - epoch / 7, **speed})
        if epoch in knn:
            rows.append({"kind": "knn", **at, "knn": knn[epoch]})
    run.log(rows)
    write_json(run.evaluation_file, {"data": "sample", "epoch": epochs, "results": EVALUATION})
    return run


@pytest.fixture
def finished(tmp_path) -> Run:
    return make_run(tmp_path / "run", SHORT, {0: 20.0, 1: 30.005, 2: 44.444, 3: 41.234})


def test_the_numbers_are_those_of_the_run(finished):
    record = make_record(finished)
    assert record["knn"] == {"last": 41.23, "best": 44.44, "best_epoch": 2, "reported": "last"}
    assert record["knn_by_epoch"] == [(0, 20.0), (1, 30.0), (2, 44.44), (3, 41.23)]
    assert record["loss_by_epoch"] == [(epoch, round(20 - epoch / 7, 4)) for epoch in (1, 2, 3)]
    assert record["evaluation"] == EVALUATION
    assert record["seconds"] == 6.0
    assert record["views_per_second"] == 200.0  # the median epoch's
    assert record["settings"] == SHORT.settings.resolve("fp32").to_json()
    assert "missing" not in record
    (session,) = record["sessions"]
    assert provenance().items() <= session.items()
    assert session["runtime"] == "CPU, fp32"
    write_json(finished.evaluation_file, {"epoch": 3, "results": []})  # without labels
    assert make_record(finished)["knn"]["last"] is None


def test_the_best_is_not_that_of_the_untrained_network(tmp_path):
    run = make_run(tmp_path / "run", SHORT, {0: 90.0, 3: 10.0})
    assert make_record(run)["knn"] == {"last": 41.23, "best": 10.0, "best_epoch": 3, "reported": "last"}


def test_damaged_metrics_do_not_change_the_final_number(tmp_path):
    run = make_run(tmp_path / "run", SHORT, {1: 30.0}, without=(2, 3))
    record = make_record(run)
    assert (record["knn"]["last"], record["seconds"]) == (41.23, None)
    assert record["missing"] == "2 epochs of 3 not in metrics.jsonl"
    run.metrics_file.unlink()
    assert make_record(run)["knn"] == {"last": 41.23, "best": None, "best_epoch": None, "reported": "last"}


@pytest.mark.parametrize("epochs", [1, 49, 50, 99, 999])
def test_a_long_curve_is_thinned_to_its_shape(tmp_path, epochs):
    run = make_run(tmp_path / "run", SHORT.replace(epochs=epochs), {})
    shown = [epoch for epoch, _ in make_record(run)["loss_by_epoch"]]
    assert shown[0] == 1
    assert shown[-1] == epochs
    assert min(epochs, 49) <= len(shown) <= 101


@pytest.mark.parametrize(("rows", "points"), [(0, 0), (1, 1), (200, 200), (201, 101), (1600, 200)])
def test_curves_over_the_steps_are_means_of_equal_windows(tmp_path, rows, points):
    run = make_run(tmp_path / "run", SHORT.replace(epochs=1), {})
    run.filter_metrics(lambda row: row["kind"] != "steps")
    logged = [{"step": 50 * n, "loss": 1 / n, "positive_gradient": n / 3} for n in range(1, rows + 1)]
    run.log([{"kind": "steps", "epoch": 1, **row} for row in logged])
    curves = make_record(run)["curves"]
    assert list(curves) == (["step", "loss", "positive_gradient"] if rows else ["step"])
    assert {len(curve) for curve in curves.values()} == {points}
    if rows:
        window = -(-rows // 200)
        assert (curves["step"][0], curves["step"][-1]) == (50 * window, 50 * rows)
        assert curves["positive_gradient"][0] == pytest.approx((window + 1) / 6, rel=1e-4)
        last = logged[(points - 1) * window :]
        assert curves["loss"][-1] == pytest.approx(sum(row["loss"] for row in last) / len(last), rel=1e-4)


def test_a_statistic_that_was_logged_in_a_part_of_the_run_has_no_curve(finished):
    finished.log([{"kind": "steps", "epoch": 3, "step": 30, "loss": 0.5, "positive_similarity": 0.9}])
    assert list(make_record(finished)["curves"]) == ["step", "loss"]


def test_the_file_is_named_after_the_settings_and_read_by_the_paper(finished, tmp_path):
    path = write_record(finished, tmp_path / "new" / "results")
    assert path == tmp_path / "new" / "results" / f"{SHORT.name}.json"
    assert json.loads(path.read_text()) == json.loads(json.dumps(make_record(finished)))
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    results = Results(path.parent)
    assert not results.damaged
    assert results.find_result(SHORT)


def test_a_run_on_other_data_does_not_replace_a_record(finished, tmp_path):
    """A file named sample.npz gives a run the name that the sample does."""
    path = write_record(finished, tmp_path / "results")
    write_record(finished, tmp_path / "results")  # again: the same run
    record = json.loads(path.read_text())
    record["settings"]["data"]["source"] = "elsewhere/sample.npz"
    path.write_text(json.dumps(record))
    with pytest.raises(AAGError, match=r"of a run on other data \(elsewhere/sample.npz\)"):
        write_record(finished, tmp_path / "results")
    record["settings"]["data"] = 5
    for damaged in ("{", "[" * 200_000, json.dumps(record)):
        path.write_text(damaged)
        assert write_record(finished, tmp_path / "results") == path


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [{"results": EVALUATION}, {"epoch": 2, "results": EVALUATION}])
def test_numbers_of_an_unfinished_encoder_are_not_recorded(finished, content):
    write_json(finished.evaluation_file, content)
    with pytest.raises(AAGError, match=r"was evaluated at epoch [02] of 3: finish its training, then run aag evaluate"):
        make_record(finished)


def test_a_run_without_evaluation_is_not_recorded(finished):
    finished.evaluation_file.unlink()
    with pytest.raises(AAGError, match=r"is not evaluated; run aag evaluate .*run"):
        make_record(finished)


def test_a_folder_that_cannot_be_made_is_named(finished, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(AAGError, match=r"cannot write .*file.*: Not a directory"):
        write_record(finished, tmp_path / "file" / "results")


# --- the file format --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["photos [ old ]", ["a [ b ]", "c"], [[1, 2], [3, [4]]], {"a": []}, "τ\n[ x\t]"])
def test_json_is_read_as_it_was_written(tmp_path, content):
    write_json(tmp_path / "x.json", {"content": content})
    assert json.loads((tmp_path / "x.json").read_text()) == {"content": content}
