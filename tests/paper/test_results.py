"""Records matched with the runs that the tables ask for."""

from pathlib import Path
from typing import Any

import pytest

from aag.errors import AAGError
from aag.files import write_json
from aag.paper import PAPER as THE_PAPER
from aag.paper import Results, make_experiment
from aag.paper.recorded import recorded_experiment
from run_tables import ROOT
from synthetic import PAPER, record, settings_of, write


def test_a_run_is_found_with_all_its_seeds(tmp_path):
    for seed in (2, 0, 1):
        write(tmp_path, record(PAPER.replace(seed=seed)))
    write(tmp_path, record(PAPER.replace(epochs=100)))
    results = Results(tmp_path)
    assert [result.seed for result in results.all_seeds(PAPER)] == [0, 1, 2]
    found = results.find_result(PAPER.replace(seed=1))
    assert found is not None
    assert found.seed == 1
    assert results.find_result(PAPER.replace(seed=3)) is None
    assert [[result.epochs for result in alike] for alike in results.short_versions(PAPER)] == [[100]]
    assert not results.damaged


def test_fewer_rounds_are_a_short_version_and_other_rounds_are_not(tmp_path):
    rounds = make_experiment("cifar10", method="and")
    assert (rounds.options["epochs"], rounds.options["rounds"]) == (1000, 5)
    for other in ({"epochs": 400, "rounds": 2}, {"epochs": 500}, {"epochs": 300, "rounds": 2}):
        write(tmp_path, record(rounds.replace(**other)))
    assert [[found.epochs for found in alike] for alike in Results(tmp_path).short_versions(rounds)] == [[500], [400]]


def test_short_versions_are_together_if_only_their_seeds_differ(tmp_path):
    for other in ({"epochs": 100, "warmup_epochs": 5}, {"epochs": 100}, {"epochs": 100, "seed": 1}, {"epochs": 20}):
        write(tmp_path, record(PAPER.replace(**other)))
    found = [
        [(result.epochs, result.options["warmup_epochs"], result.seed) for result in alike]
        for alike in Results(tmp_path).short_versions(PAPER)
    ]
    assert found == [[(100, 0, 0), (100, 0, 1)], [(100, 5, 0)], [(20, 0, 0)]]


def test_the_precision_counts_only_where_a_run_chooses_one(tmp_path):
    write(tmp_path, record(PAPER, settings=PAPER.settings.resolve("fp32").to_json()), "fp32")
    assert Results(tmp_path).find_result(PAPER)
    assert Results(tmp_path).find_result(PAPER.replace(precision="bf16")) is None
    path = write(tmp_path, record(PAPER))
    assert [result.path for result in Results(tmp_path).all_seeds(PAPER)] == [path]  # one per seed, bf16 first


def test_a_record_of_an_earlier_recipe_keeps_its_content_under_the_name_of_its_settings(tmp_path):
    earlier = record(PAPER.replace(momentum=0.5), name=PAPER.name)
    path = write(tmp_path, earlier, PAPER.name)
    (stale,) = Results(tmp_path).stale_records(PAPER)  # a new run would replace it
    assert str(stale) == "momentum 0.5, now 0.9"
    path.rename(tmp_path / f"{PAPER.replace(momentum=0.5).name}.json")
    results = Results(tmp_path)
    assert results.stale_records(PAPER) == []
    assert [result.name for result in results.all_seeds(PAPER.replace(momentum=0.5))] == [
        "cifar10-resnet18-paper-seed0-momentum=0.5"
    ]
    assert not results.damaged


def test_no_record_of_ours_stands_where_a_run_would_replace_it():
    results = Results(ROOT / "results")
    for part in THE_PAPER.values():
        for experiment in part.experiments:
            assert results.stale_records(experiment) == []
            for result in results.all_seeds(experiment):
                assert result.name == experiment.replace(seed=result.seed).name


def test_measures(tmp_path):
    write(tmp_path, record(PAPER, knn_by_epoch=[[0, 30.0], [100, 85.0], [200, 88.0]]))
    (result,) = Results(tmp_path).all
    measures = [result.measure(name) for name in ("knn", "linear", "knn@100", "knn@150")]
    assert measures == [88.0, 89.0, 85.0, None]


@pytest.mark.parametrize(
    ("section", "name", "value", "now"),
    [("method", "temperature", 0.2, 0.1), ("method", "hard_negatives", True, None), ("train", "epochs", 100, 200)],
)
def test_a_record_with_other_settings_is_stale_and_says_which(tmp_path, section, name, value, now):
    settings = settings_of(PAPER)
    settings[section][name] = value
    write(tmp_path, record(PAPER, settings=settings))
    results = Results(tmp_path)
    assert results.all_seeds(PAPER) == []
    (stale,) = results.stale_records(PAPER)
    assert (stale.result.name, str(stale)) == (PAPER.name, f"{name} {value}, now {now}")
    write(tmp_path, record(PAPER))
    assert Results(tmp_path).stale_records(PAPER) == []


@pytest.mark.parametrize("copy", ["a copy", "z copy"])
def test_a_second_record_of_a_run_does_not_count(tmp_path, copy):
    path = write(tmp_path, record(PAPER))
    other = path.with_name(f"{copy}.json")
    other.write_bytes(path.read_bytes())
    results = Results(tmp_path)
    assert [result.path for result in results.all_seeds(PAPER)] == [path]
    assert results.damaged == {other: f"it is a second record of the run in {path.name}"}


def test_results_must_be_a_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(AAGError, match=r"file is not a folder of records that can be read"):
        Results(tmp_path / "file")
    assert Results(tmp_path / "none").all == []


def test_time_is_that_of_the_nearest_record(tmp_path):
    write(tmp_path, record(PAPER))
    write(tmp_path, record(PAPER.replace(batch_size=512), seconds=200.0))
    results = Results(tmp_path)
    assert results.estimate_seconds(PAPER) == pytest.approx(300)
    write(tmp_path, record(PAPER.replace(auxiliary="none"), seconds=250.0))  # of two views, not three
    assert Results(tmp_path).estimate_seconds(PAPER.replace(auxiliary="randaugment")) == pytest.approx(300)
    assert results.estimate_seconds(PAPER.replace(batch_size=1024)) == pytest.approx(200)
    assert results.estimate_seconds(make_experiment("svhn", epochs=1000)) == pytest.approx(1500 * 73_257 / 50_000)
    assert results.estimate_seconds(PAPER.replace(network="alexnet")) is None


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ('"sessions"', "", "it is empty, cut off, or not JSON"),
        ("{", "[" * 200_000, "it is empty, cut off, or not JSON"),
        ('"settings"', '"set"', "it has no 'settings'"),
        ('"knn": {', '"knn": [], "x": {', "it is not a record"),
        ('"epochs": 200', '"epochs": "200"', "its settings.train.epochs is '200'"),
        ('"epochs": 200', '"epochs": 1' + "0" * 400, "its settings.train.epochs is"),
        ('"source": "cifar10"', '"source": []', "its settings.data.source is '[]'"),
        ('"last": 88.0', '"last": true', "its knn.last is 'True'"),
        ('"knn_by_epoch": [', '"knn_by_epoch": [[1, "x"], ', "its knn_by_epoch is 'x'"),
        ('"knn_by_epoch": [', '"knn_by_epoch": [[1, NaN], ', "its knn_by_epoch is 'nan'"),
        ('"evaluation": [', '"evaluation": [{"accuracy": 5.0}, ', "it has no 'protocol'"),
        ('"accuracy": 89.0', '"accuracy": null', "its evaluation.accuracy is 'None'"),
        ('"sessions": [', '"sessions": [null, ', "it is not a record"),
        ('"seconds"', '"curves": {"step": ["x"]}, "seconds"', "its curves is 'x'"),
    ],
)
def test_damaged_records_are_skipped_and_reported(tmp_path, before, after, why):
    write(tmp_path, record(PAPER.replace(seed=1)))
    path = write(tmp_path, record(PAPER))
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))
    results = Results(tmp_path)
    assert [result.seed for result in results.all] == [1]
    assert list(results.damaged) == [path]
    assert results.damaged[path].startswith(why)


def test_a_record_whose_metrics_were_lost_counts(tmp_path):
    write(tmp_path, record(PAPER, sessions=[], seconds=None, knn_by_epoch=[], loss_by_epoch=[], curves={"step": []}))
    results = Results(tmp_path)
    (result,) = results.all
    assert (result.measure("knn"), result.machine, results.damaged) == (88.0, "an unknown machine", {})


def test_the_records_of_this_project_are_whole():
    results = Results(Path(__file__).parents[2] / "results")
    assert results.all
    assert not results.damaged
    assert all(result.path.stem == result.name for result in results.all)
    # Typed again, the options of each record give its name.
    assert [result.name for result in results.all] == [
        getattr(recorded_experiment(result), "name", "") for result in results.all
    ]


# --- projections ------------------------------------------------------------------------------------------------------


CLOUD: dict[str, Any] = {"x": [1.0, 2.0], "y": [1.0, 2.0], "labels": [0, 1], "classes": ["cat", "dog"]}


def test_a_projection_is_found_where_it_is_of_this_run(tmp_path):
    path = tmp_path / "tsne" / f"{PAPER.name}.json"
    results = Results(tmp_path)
    assert results.projection(PAPER) is None
    path.parent.mkdir()
    content = CLOUD | {"settings": settings_of(PAPER)}
    write_json(path, content)
    assert results.projection(PAPER) == content
    write_json(path, content | {"settings": settings_of(PAPER, temperature=0.2)})
    assert results.projection(PAPER) is None
    assert not results.damaged


@pytest.mark.parametrize(
    "damage", [{"x": [1]}, {"y": [1, "2"]}, {"labels": [0, 2]}, {"labels": [0, -1]}, {"classes": 5}]
)
def test_damaged_projections_are_reported(tmp_path, damage):
    path = tmp_path / "tsne" / f"{PAPER.name}.json"
    path.parent.mkdir()
    write_json(path, CLOUD | {"settings": settings_of(PAPER)} | damage)
    results = Results(tmp_path)
    assert results.projection(PAPER) is None
    assert list(results.damaged) == [path]
