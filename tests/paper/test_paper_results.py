"""Records matched with the runs that the tables ask for."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aag.config import recipe_config

from aag.errors import AAGError
from aag.files import write_json
from aag.paper import Results
from synthetic import record, write

CONFIG = recipe_config("paper", "cifar10")


def test_a_run_is_found_with_all_its_seeds(tmp_path):
    for seed in (2, 0, 1):
        write(tmp_path, record(replace(CONFIG, seed=seed)))
    write(tmp_path, record(replace(CONFIG, epochs=100)))
    results = Results(tmp_path)
    assert [result.config.seed for result in results.of(CONFIG)] == [0, 1, 2]
    found = results.seed(replace(CONFIG, seed=1))
    assert found is not None
    assert found.config.seed == 1
    assert results.seed(replace(CONFIG, seed=3)) is None
    assert [[result.config.epochs for result in alike] for alike in results.short(CONFIG)] == [[100]]
    assert not results.damaged


def test_fewer_rounds_are_a_short_version_and_other_rounds_are_not(tmp_path):
    rounds = recipe_config("auto", "cifar10", "and")
    assert (rounds.epochs, rounds.rounds) == (1000, 5)
    for other in ({"epochs": 400, "rounds": 2}, {"epochs": 500}, {"epochs": 300, "rounds": 2}):
        write(tmp_path, record(replace(rounds, **other)))
    assert [[found.config.epochs for found in alike] for alike in Results(tmp_path).short(rounds)] == [[500], [400]]


def test_short_versions_are_together_if_only_their_seeds_differ(tmp_path):
    for other in ({"epochs": 100, "warmup_epochs": 5}, {"epochs": 100}, {"epochs": 100, "seed": 1}, {"epochs": 20}):
        write(tmp_path, record(replace(CONFIG, **other)))
    found = [
        [(result.config.epochs, result.config.warmup_epochs, result.config.seed) for result in alike]
        for alike in Results(tmp_path).short(CONFIG)
    ]
    assert found == [[(100, None, 0), (100, None, 1)], [(100, 5, 0)], [(20, None, 0)]]


def test_where_it_ran_and_how_it_was_watched_make_no_other_run(tmp_path):
    write(tmp_path, record(CONFIG))
    elsewhere = replace(CONFIG, out=Path("x"), device="cpu", data_root=Path("y"), knn_every=0)
    assert Results(tmp_path).seed(elsewhere)


def test_measures(tmp_path):
    write(tmp_path, record(CONFIG, knn_by_epoch=[[0, 30.0], [100, 85.0], [200, 88.0]]))
    (result,) = Results(tmp_path).all
    measures = [result.measure(name) for name in ("knn", "linear", "knn@100", "knn@150")]
    assert measures == [88.0, 89.0, 85.0, None]


def test_a_record_of_former_settings_is_stale_and_not_the_run(tmp_path):
    write(tmp_path, record(CONFIG, settings=replace(CONFIG, temperature=0.2).identity()))
    results = Results(tmp_path)
    assert results.of(CONFIG) == []
    assert [result.name for result in results.stale(CONFIG)] == [CONFIG.run_name()]
    write(tmp_path, record(CONFIG))
    assert Results(tmp_path).stale(CONFIG) == []


def test_a_record_with_settings_unknown_here_is_stale(tmp_path):
    write(tmp_path, record(CONFIG, settings=CONFIG.identity() | {"hard_negatives": True}))
    results = Results(tmp_path)
    assert results.of(CONFIG) == results.short(replace(CONFIG, epochs=1000)) == []
    assert [result.name for result in results.stale(CONFIG)] == [CONFIG.run_name()]


@pytest.mark.parametrize("copy", ["a copy", "z copy"])
def test_a_second_record_of_a_run_does_not_count(tmp_path, copy):
    path = write(tmp_path, record(CONFIG))
    other = path.with_name(f"{copy}.json")
    other.write_bytes(path.read_bytes())
    results = Results(tmp_path)
    assert [result.path for result in results.of(CONFIG)] == [path]
    assert results.damaged == {other: f"it is of the same run as {path.name}"}


def test_records_lie_in_a_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(AAGError, match=r"file is no folder of records that can be read"):
        Results(tmp_path / "file")
    assert Results(tmp_path / "none").all == []


def test_time_is_that_of_the_nearest_record(tmp_path):
    write(tmp_path, record(CONFIG))
    write(tmp_path, record(replace(CONFIG, batch_size=512), seconds=200.0))
    results = Results(tmp_path)
    assert results.seconds(CONFIG) == pytest.approx(300)
    write(tmp_path, record(replace(CONFIG, auxiliary="none"), seconds=250.0))  # of two views, not three
    assert Results(tmp_path).seconds(replace(CONFIG, auxiliary="randaugment")) == pytest.approx(300)
    assert results.seconds(replace(CONFIG, batch_size=1024)) == pytest.approx(200)
    assert results.seconds(replace(CONFIG, epochs=1000, data="svhn")) == pytest.approx(1500 * 73_257 / 50_000)
    assert results.seconds(replace(CONFIG, network="alexnet")) is None


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda text: text[:100], "it is empty, cut off, or no JSON"),
        (lambda text: "[]", "it is no record"),
        (lambda text: "[" * 200_000, "it is no record"),
        (lambda text: text.replace('"batch_size": 128', '"batch_size": null', 1), "its setting batch_size is None"),
        (lambda text: text.replace('"epochs": 200', '"epochs": 1' + "0" * 400, 1), "--epochs must be at least 1"),
        (lambda text: "", "it is empty, cut off, or no JSON"),
        (lambda text: text.replace('"settings"', '"set"'), "it has no 'settings'"),
        (lambda text: text.replace('"paper"', '"papre"', 1), "unknown recipe 'papre'"),
        (lambda text: text.replace("88.0", '"88"'), "its kNN is '88'"),
        (lambda text: text.replace('"sessions": [', '"sessions": [], "x": ['), "it has no sessions"),
        (lambda text: text.replace('"sessions": [', '"sessions": [null, '), "it is no record"),
        (lambda text: text.replace('"NVIDIA H200"', "5"), "its GPU is 5"),
        (lambda text: text.replace('"cifar10"', "[]", 1), r"its data are \[\]"),
        (lambda text: text.replace("300.0", "1" + "0" * 400), "it is no record"),
        (lambda text: text.replace('"dimensions": 512', '"dimensions": "x"'), "dimensions are no number"),
        (lambda text: text.replace('"seconds"', '"curves": 5, "seconds"'), "it is no record"),
        (lambda text: text.replace('"seconds"', '"curves": {"step": [1], "loss": []}, "seconds"'), "differ in length"),
        (lambda text: text.replace('"seconds"', '"curves": {"step": ["x"]}, "seconds"'), "curves over .* are broken"),
    ],
)
def test_a_damaged_record_is_passed_over_and_told_of(tmp_path, damage, why):
    write(tmp_path, record(replace(CONFIG, seed=1)))
    path = write(tmp_path, record(CONFIG))
    path.write_text(damage(path.read_text()))
    results = Results(tmp_path)
    assert [result.config.seed for result in results.all] == [1]
    assert list(results.damaged) == [path]
    assert re.search(why, results.damaged[path])
    assert "\n" not in results.damaged[path]


def test_the_records_of_this_project_are_whole():
    results = Results(Path(__file__).parents[2] / "results")
    assert results.all
    assert not results.damaged
    # Under another name it would be in the way of a run that has this one now.
    assert all(result.path.stem == result.name == result.config.run_name() for result in results.all)


# --- projections ------------------------------------------------------------------------------------------------------


CLOUD: dict[str, Any] = {"x": [1.0, 2.0], "y": [1.0, 2.0], "labels": [0, 1], "classes": ["cat", "dog"]}


def test_a_projection_is_found_where_it_is_of_this_run(tmp_path):
    path = tmp_path / "tsne" / f"{CONFIG.run_name()}.json"
    results = Results(tmp_path)
    assert results.projection(CONFIG) is None
    path.parent.mkdir()
    content = CLOUD | {"settings": CONFIG.identity()}
    write_json(path, content)
    assert results.projection(replace(CONFIG, device="cpu")) == content
    write_json(path, content | {"settings": replace(CONFIG, temperature=0.2).identity()})
    assert results.projection(CONFIG) is None
    assert not results.damaged


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        *(
            json.dumps(CLOUD | {"settings": CONFIG.identity()} | damage)
            for damage in (
                {"x": [1]},
                {"x": [1, "2"]},
                {"y": [1, float("nan")]},
                {"labels": [0, 2]},
                {"classes": [1, 2]},
            )
        ),
    ],
)
def test_a_damaged_projection_is_told_of(tmp_path, text):
    path = tmp_path / "tsne" / f"{CONFIG.run_name()}.json"
    path.parent.mkdir()
    path.write_text(text)
    results = Results(tmp_path)
    assert results.projection(CONFIG) is None
    assert list(results.damaged) == [path]
