"""The benchmark runs, and its record says what was measured, on what and how much of it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module", autouse=True)
def checkout() -> Iterator[None]:
    """The benchmark is part of the checkout, not of the package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT)
        yield


@pytest.fixture(scope="module")
def record(checkout: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    from benchmarks.__main__ import main

    path = tmp_path_factory.mktemp("bench") / "record.json"
    assert main(["--device", "cpu", "--quick", "--save", str(path)]) == 0
    return json.loads(path.read_text())


def test_record_states_hardware_versions_and_threads(record: dict[str, Any]) -> None:
    assert record["device"] == "cpu"
    assert record["quick"] is True
    assert record["threads"] >= 1
    for name in ("cpu", "cpu_model", "python", "torch", "torchvision", "pillow", "aag", "date"):
        assert record[name], name
    assert record["augmentation"]["threads"] == record["augmentation"]["torchvision_processes"] == record["threads"]
    assert record["augmentation"]["images"] > 0
    assert record["training"]["images"] > 0


def test_every_family_is_measured_beside_torchvision(record: dict[str, Any]) -> None:
    rows = record["augmentation"]["rows"]
    assert len({row["family"] for row in rows}) == len(rows) == 6
    for row in rows:
        for rival in ("pil", "tensor"):
            ratio = row["ours_cpu"]["per_second"] / row[f"torchvision_{rival}"]["per_second"]
            assert row[f"ours_cpu_over_{rival}"] == pytest.approx(ratio)
            assert row[f"torchvision_{rival}"]["count"] == record["augmentation"]["images"]
        assert row["ours_cpu"]["count"] == row["ours_cpu"]["chunk"]


def test_training_evaluation_and_startup_are_measured(record: dict[str, Any]) -> None:
    (step,) = record["training"]["rows"]
    assert step["views"] == 3
    assert 0 < step["augmentation_share"] < 1
    assert step["views_per_second"]["count"] == step["steps"] * step["batch_size"] * 3
    names = [row["name"] for row in record["evaluation"]["rows"]]
    assert [name.split()[0] for name in names] == ["weighted", "linear", "features"]
    assert [row["name"] for row in record["startup"]["rows"]] == ["python -c pass", "import aag", "aag --help"]


def test_every_number_is_positive(record: dict[str, Any]) -> None:
    numbers = [
        (path, value)
        for section in ("augmentation", "training", "evaluation", "startup")
        for path, value in _numbers(record[section], section)
    ]
    assert len(numbers) > 100
    assert [path for path, value in numbers if not 0 < value < float("inf")] == []


def test_equivalents_do_to_an_image_what_their_names_say() -> None:
    """Same shape and type as ours, and really another picture."""
    import torch
    from benchmarks.rivals import FAMILIES, KINDS, equivalent
    from torchvision import transforms

    from aag import data

    image = data.load("sample").images[0]
    for family in FAMILIES.values():
        for kind, module in KINDS.items():
            start = transforms.functional.to_pil_image(image) if kind == "pil" else image
            changed = 0
            for seed in range(4):
                torch.manual_seed(seed)
                out = transforms.Compose(equivalent(family, module))(start)
                out = transforms.functional.pil_to_tensor(out) if kind == "pil" else out
                assert out.shape == image.shape
                assert out.dtype == torch.uint8
                changed += not torch.equal(out, image)
            assert changed


def _numbers(value: Any, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _numbers(inner, f"{path}.{name}")
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from _numbers(inner, f"{path}[{place}]")
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield path, value
