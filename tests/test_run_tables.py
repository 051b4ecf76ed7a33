"""Tables of runs: each record in its row, beside the published number of the same settings and no other."""

from typing import Any

import pytest

import run_tables
from aag.config import METHODS, recipe_config


def record(method: str, *, knn: float = 80.0, **changes: Any) -> dict[str, Any]:
    settings = recipe_config("auto", "cifar10", method).identity() | changes
    return {
        "name": f"{method}-{len(changes)}",
        "settings": settings,
        "knn": {"last": knn},
        "evaluation": [{"accuracy": 81.0, "protocol": {"evaluation": "linear"}}],
        "seconds": 125.0,
        "views_per_second": 1000.0,
        "sessions": [{"gpu": "NVIDIA H200", "cpu": ""}],
    }


def theirs(method: str, **changes: Any) -> float | None:
    found = run_tables.published(record(method, **changes)["settings"])
    return found and found.accuracy


def test_a_run_is_compared_with_the_number_of_its_settings() -> None:
    assert [theirs(method) for method in METHODS] == [88.3, 80.8, 83.6, 82.3, 82.6, 86.3, 89.2, 67.6, 91.2]
    assert theirs("moco", symmetric=True) == 85.3
    assert theirs("isif", loss="gnt-xent") == 85.5
    assert theirs("simclr", loss="gnt-xent", batch_size=128, temperature=0.1) == 85.8  # its source leaves these open
    assert theirs("aag", seed=3) == 88.3


@pytest.mark.parametrize(
    "changes",
    [{"epochs": 100}, {"network": "alexnet"}, {"loss": "dcl"}, {"batch_size": 128}, {"data": "cifar100"}],
)
def test_a_run_of_other_settings_is_compared_with_nothing(changes: dict[str, Any]) -> None:
    assert theirs("simclr", **changes) is None


def test_options_are_as_one_types_them() -> None:
    settings = {"symmetric": True, "flip": False, "decay_at": [0.5, 0.9], "norm_images": 0}
    assert run_tables.options(settings) == ["`--symmetric`", "`--no-flip`", "`--decay-at 0.5 0.9`", "`--norm-images 0`"]


def test_the_methods_table_has_a_row_for_every_run_and_every_published_number() -> None:
    bench = {"rows": [{"method": "isif", "view_over_plain": 1.0}, {"method": "moco", "view_over_plain": 0.756}]}
    records = [
        record("moco", knn=82.0),
        record("moco", knn=70.5, epochs=20, norm_images=0, seed=1),
        record("and", knn=None, data="svhn"),
    ]
    lines = run_tables.methods_table(bench, records).splitlines()
    assert len({line.count("|") for line in lines}) == 1
    assert len(lines) == 2 + len(run_tables.THEIRS) + 1
    first, second, third = (
        line.split(" | ") for line in lines if "--norm-images" in line or "moco" in line or "--symm" in line
    )
    assert first[2:5] == ["2", "47.1 MB: key encoder, queue", "0.76 ×"]
    assert first[5:8] == [
        "200 epochs; 2 min 05 s on one NVIDIA H200",
        "[82.00](../results/moco-0.json)",
        "[81.00](../results/moco-0.json)",
    ]
    assert first[8] == "kNN 82.6 (its authors' demo) |"
    assert second[5:] == ["`--symmetric`, 200 epochs: not run yet", "–", "–", "kNN 85.3 (its authors' demo) |"]
    assert third[5].startswith("`--norm-images 0`, 20 epochs, seed 1; 2 min")
    assert third[-1] == "– |"
    assert all("not run yet" in line for line in lines[2:] if "moco" not in line)


def test_without_a_benchmark_the_costs_are_open() -> None:
    table = run_tables.methods_table(None, [])
    assert "×" not in table
    assert table.count("not run yet") == len(run_tables.THEIRS)


def test_the_readme_names_the_method_and_its_own_number() -> None:
    demo = record("moco") | {"settings": recipe_config("demo", "sample", "moco").identity()}
    table = run_tables.results_table([record("simclr"), demo, record("amdim", knn=None)])
    assert "| [cifar10, resnet18, `simclr`](results/simclr-0.json) | 200 | **80.00** | 82.3 | 81.00 |" in table
    assert "[sample, resnet18, `demo`, `--method moco`]" in table
    assert "| [cifar10, amdim, `amdim`](results/amdim-0.json) | 300 | – | – | 81.00 |" in table


def test_only_the_papers_numbers_stand_under_paper() -> None:
    rows = run_tables.results_table([record("isif"), record("moco")]).splitlines()[2:]
    assert [row.split(" | ")[3] for row in rows] == ["83.6", "–"]
