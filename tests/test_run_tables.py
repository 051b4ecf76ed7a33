"""Tables of runs: each record in its row, next to the published number of the same settings and no other."""

import json
from pathlib import Path
from typing import Any

import pytest

import run_tables
from aag.methods import methods
from aag.paper import Experiment, Results, make_experiment
from aag.paper.recorded import recorded_experiment
from synthetic import record, write


def run(method: str, data: str = "cifar10", **changes: Any) -> Experiment:
    return make_experiment(data, method=method, **changes)


def results(folder: Path, *runs: tuple[Experiment, float | None]) -> Results:
    """A folder of records: runs, and what kNN found of them."""
    for each, knn in runs:
        made = record(each, knn or 0.0, linear=81.0, seconds=125.0, views_per_second=1000.0)
        write(folder, made if knn else made | {"knn": {"last": None}})
    found = Results(folder)
    assert (len(found.all), found.damaged) == (len(runs), {})
    return found


def theirs(method: str, **changes: Any) -> float | None:
    found = run_tables.published(run(method, **changes))
    return found and found.accuracy


def test_every_method_of_the_package_is_described() -> None:
    assert set(run_tables.ABOUT) == set(methods())


def test_a_run_is_compared_with_the_number_of_its_settings() -> None:
    numbers = [88.3, None, None, None, None, 80.8, 83.6, 82.3, 82.6, 86.3, 89.2, 67.6, 91.2]
    assert [theirs(method) for method in run_tables.ABOUT] == numbers
    assert theirs("moco", symmetric=True) == 85.3
    assert theirs("isif", loss="gnt-xent") == 85.5
    assert theirs("simclr", loss="dcl", batch_size=128, temperature=0.1) == 85.8  # its source leaves these open
    assert theirs("aag", seed=3) == 88.3


@pytest.mark.parametrize(
    "changes",
    [{"epochs": 100}, {"network": "alexnet"}, {"loss": "gnt-xent"}, {"batch_size": 128}, {"data": "cifar100"}],
)
def test_a_run_of_other_settings_is_compared_with_nothing(changes: dict[str, Any]) -> None:
    assert theirs("simclr", **changes) is None


def test_options_are_written_as_one_types_them() -> None:
    settings = {"symmetric": True, "flip": False, "decay_at": [0.5, 0.9], "bn_group_size": 0}
    assert run_tables.typed(settings) == ["`--symmetric`", "`--no-flip`", "`--decay-at 0.5 0.9`", "`--bn-group-size 0`"]


def test_the_methods_table_has_a_row_for_every_method() -> None:
    bench = {"rows": [{"method": "isif", "view_over_plain": 1.0}, {"method": "moco", "view_over_plain": 0.756}]}
    lines = run_tables.methods_table(bench).splitlines()
    assert len(lines) == 2 + len(methods())
    (moco,) = (line.split(" | ") for line in lines if line.startswith("| [`moco`]"))
    assert moco[2:] == ["2", "47.1 MB: key encoder, queue", "0.76 × |"]
    assert "×" not in run_tables.methods_table(None)  # no benchmark


def test_the_table_of_runs_has_a_row_for_every_run_and_every_published_number(tmp_path: Path) -> None:
    found = results(
        tmp_path,
        (run("moco"), 82.0),
        (run("moco", epochs=20, bn_group_size=0, seed=1), 70.5),
        (run("and", data="svhn"), None),
    )
    lines = run_tables.method_runs_table(found).splitlines()
    assert len({line.count("|") for line in lines}) == 1
    unpublished = 4  # methods that nobody published numbers of
    assert len(lines) == 2 + len(run_tables.PUBLISHED_RESULTS) + unpublished + 1  # and one more run
    first, second, third = (line.split(" | ") for line in lines if "moco" in line)
    assert first[1:] == [
        "200 epochs",
        "2 min 05 s on one NVIDIA H200",
        "[82.00](../results/cifar10-resnet18-moco-seed0.json)",
        "[81.00](../results/cifar10-resnet18-moco-seed0.json)",
        "kNN 82.6 (its authors' demo) |",
    ]
    assert second[1:] == ["`--symmetric`, 200 epochs", "not run yet", "–", "–", "kNN 85.3 (its authors' demo) |"]
    assert third[1] == "`--bn-group-size 0`, 20 epochs, seed 1"
    assert third[-1] == "– |"
    assert all("not run yet" in line for line in lines[2:] if "moco" not in line)


def test_runs_of_the_reproduction_page_are_not_repeated(tmp_path: Path) -> None:
    ablation, own = run("aag", auxiliary="none", seed=2), run("aag", auxiliary_crop="padded")
    table = run_tables.method_runs_table(results(tmp_path, (ablation, 85.0), (own, 86.0)))
    assert "--auxiliary none" not in table
    assert "`--auxiliary-crop padded`, 200 epochs" in table


def test_a_record_of_unknown_settings_is_in_no_table(tmp_path: Path) -> None:
    results(tmp_path, (run("aag"), 88.0))
    (path,) = tmp_path.glob("*.json")
    record = json.loads(path.read_text())
    record["settings"]["method"]["hard"] = 1
    path.write_text(json.dumps(record))
    found = Results(tmp_path)
    assert len(found.all) == 1
    assert "88.00" not in run_tables.method_runs_table(found)
    assert len(run_tables.results_table(found).splitlines()) == 2


@pytest.mark.parametrize(
    "written",
    [
        run("simclr", batch_size=128),
        run("simclr", batch_size=128, warmup_epochs=0),
        run("aag", network="alexnet", epochs=20),  # which has no width
        run("aag", data="svhn", auxiliary_crop="resized", precision="fp32"),
        run("and", epochs=400, rounds=2, seed=3),
        run("aag", data="sample", width=4),
        make_experiment("cifar10", "paper-resnet50", epochs=10),
        run("simclr", batch_size=512, warmup_epochs=3),
    ],
)
def test_a_record_is_written_in_as_few_options_as_its_run(tmp_path: Path, written: Experiment) -> None:
    (result,) = results(tmp_path, (written, 88.0)).all
    found = recorded_experiment(result)
    assert found is not None
    assert (found.name, found.recipe) == (written.name.replace("-precision=fp32", ""), written.recipe)
    assert found.replace(precision="bf16").resolved == written.replace(precision="bf16").resolved


def test_a_record_without_times_and_under_another_name(tmp_path: Path) -> None:
    results(tmp_path, (run("aag"), 88.0))
    (path,) = tmp_path.glob("*.json")
    record = json.loads(path.read_text()) | {"seconds": None, "views_per_second": None}
    path.rename(tmp_path / "other.json").write_text(json.dumps(record))
    row = run_tables.results_table(Results(tmp_path)).splitlines()[2]
    assert row.endswith("| – | – | [0](results/other.json) |")
    assert "[88.00](../results/other.json)" in run_tables.method_runs_table(Results(tmp_path))


def test_the_readme_has_the_main_results_next_to_the_papers(tmp_path: Path) -> None:
    found = results(
        tmp_path,
        (run("simclr"), 80.0),
        (run("aag"), 88.0),
        (run("aag", seed=1), 89.0),
        (run("aag", network="alexnet"), 74.0),  # not the paper's AlexNet
        (run("aag", loss="nt-xent"), 87.0),  # not the recipe's own
        (run("aag", epochs=100), 86.0),
        (run("aag", epochs=1000), 91.0),  # Table 2's
        (run("aag", data="svhn"), None),
        (run("isif"), 83.0),
        (run("aag", data="sample"), 30.0),
    )
    rows = [row.split(" | ") for row in run_tables.results_table(found).splitlines()[2:]]
    assert [row[:7] for row in rows] == [
        ["| cifar10", "resnet18", "`paper`", "1000", "**91.00**", "91.2", "81.00"],
        [
            *("| cifar10", "resnet18", "`paper`", "200"),
            *("**88.50 (88.00–89.00, n = 2)**", "88.3", "81.00 (81.00–81.00, n = 2)"),
        ],
        ["| cifar10", "resnet18", "`simclr`", "200", "**80.00**", "82.3", "81.00"],
        ["| svhn", "resnet18", "`paper`", "200", "–", "95.3", "81.00"],
    ]
    assert rows[1][9] == (
        "[0](results/cifar10-resnet18-paper-seed0.json), [1](results/cifar10-resnet18-paper-seed1.json) |"
    )
