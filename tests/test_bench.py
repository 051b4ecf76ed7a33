"""The benchmark runs, and its record states what was measured, on what machine and how much of it."""

import contextlib
import io
import json
import re
import runpy
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from aag.bench import SECTIONS, first_step, startup, training
from aag.bench.plan import METHODS
from aag.bench.run import show
from aag.cli import main
from aag.cli.bench import Bench
from aag.cli.parsing import field_docs

ROOT = Path(__file__).parents[1]
QUICK = ["bench", "--device", "cpu", "--quick"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Run all sections by the command line; return the record's file and what was printed."""
    path = tmp_path_factory.mktemp("bench") / "new" / "record.json"
    out = io.StringIO()
    start_process = subprocess.run

    def run(command: list[str], **options: Any) -> Any:
        """Train the first step in this process: importing torch again would take longer than all tests here."""
        if "aag.bench.first_step" not in command:
            return start_process(command, **options)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            first_step.main(command[-1])
        return SimpleNamespace(returncode=0, stdout=printed.getvalue(), stderr="")

    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
        patch.setattr(startup.subprocess, "run", run)
        assert main([*QUICK, "--save", str(path)]) == 0
    return path, out.getvalue()


@pytest.fixture(scope="module")
def record(saved: tuple[Path, str]) -> dict[str, Any]:
    return json.loads(saved[0].read_text())


# --- the record -------------------------------------------------------------------------------------------------------


def test_record_states_hardware_versions_and_threads(record: dict[str, Any]) -> None:
    assert not {"NaN", "Infinity"} & set(re.findall(r"\w+", json.dumps(record)))
    assert record["kind"] == "benchmark"
    assert record["format"] == 2
    assert record["device"] == "cpu"
    assert record["quick"] is True
    assert record["threads"] >= 1
    for name in ("cpu", "cpu_model", "cores", "python", "torch", "torchvision", "pillow", "aag", "date"):
        assert record[name], name
    assert record["others_cpu"].keys() == {"before", "during", "after"}
    assert record["augmentation"]["threads"] == record["augmentation"]["torchvision_processes"] == record["threads"]
    assert record["seconds"] == pytest.approx(sum(record[name]["section_seconds"] for name in SECTIONS))


def test_every_augmentation_is_compared_with_torchvision(record: dict[str, Any]) -> None:
    rows = record["augmentation"]["rows"]
    assert len({row["family"] for row in rows}) == len(rows) == 6
    for row in rows:
        for kind in ("pil", "tensor"):
            ratio = row["ours_cpu"]["per_second"] / row[f"torchvision_{kind}"]["per_second"]
            assert row[f"ours_cpu_over_{kind}"] == pytest.approx(ratio)
            assert row[f"torchvision_{kind}"]["count"] == record["augmentation"]["images"]
        assert row["ours_cpu"]["count"] == row["ours_cpu"]["chunk"]


def test_stages_add_up_and_the_ceiling_is_stated(record: dict[str, Any]) -> None:
    section = record["training"]
    (row,) = section["rows"]
    assert row["views"] == 3
    assert row["sum_ms"] == pytest.approx(sum(row[f"{name}_ms"] for name in training.STAGES))
    assert row["views_per_second"]["count"] == row["steps"] * row["batch_size"] * 3
    seconds = row["views_per_second"]["seconds"][0]
    assert row["end_to_end_ms"] == pytest.approx(1000 * seconds / row["steps"])
    assert row["ceiling_views_per_second"] == pytest.approx(section["matmul_flops"] / row["flop_per_view"])
    share = row["views_per_second"]["per_second"] / row["ceiling_views_per_second"]
    assert row["share_of_ceiling"] == pytest.approx(share)
    assert 0 < share < 1


def test_the_pipeline_is_measured_and_compared(record: dict[str, Any]) -> None:
    section, (ours,) = record["pipeline"], record["training"]["rows"]
    torchvision, lightly = section["rows"]
    for row in [torchvision] + [lightly] * ("missing" not in lightly):
        for name in ("views_per_second", "loader_views_per_second"):
            rate = row[name]
            assert rate["per_second"] == pytest.approx(rate["count"] / sum(rate["seconds"]))
        assert row["views_per_second"]["count"] == row["steps"] * section["batch_size"] * row["views"]
        ratio = ours["views_per_second"]["per_second"] / row["views_per_second"]["per_second"]
        assert row["ours_over"] == pytest.approx(ratio)
    assert torchvision["views"] == 3
    assert lightly.get("missing", "").startswith("lightly") or lightly["views"] == 2


def test_methods_are_compared_with_the_first(record: dict[str, Any]) -> None:
    section = record["methods"]
    rows = {row["method"]: row for row in section["rows"]}
    assert tuple(rows) == METHODS
    assert {name: row["views"] for name, row in rows.items()} == {
        "isif": 2, "aag": 3, "instance": 1, "simclr": 2, "moco": 2, "and": 1, "deepcluster": 1
    }  # fmt: skip
    plain = rows["isif"]["end_to_end_ms"] / 2
    for row in rows.values():
        assert row["views_per_second"]["count"] == row["steps"] * section["batch_size"] * row["views"]
        assert row["view_over_plain"] == pytest.approx(row["end_to_end_ms"] / row["views"] / plain)
    bank = section["images"] * 128 * 4
    assert rows["instance"]["keeps_bytes"] == bank
    assert rows["and"]["keeps_bytes"] == bank + section["images"] * (8 + 1)
    assert rows["aag"]["keeps_bytes"] == rows["isif"]["keeps_bytes"] == 0
    assert [row["name"].split()[0] for row in section["between_epochs"]] == ["k-means,", "PCA-whitening", "neighbours"]
    assert [row["size"] for row in section["between_epochs"]] == ["200 × 8"] * 3


def test_the_use_of_an_encoder_is_measured(record: dict[str, Any]) -> None:
    decoding, embed, search, dedupe = record["serving"]["rows"]
    assert embed["share_of_decoding"] == pytest.approx(decoding["median_seconds"] / embed["median_seconds"])
    assert search["size"].startswith("500 ×")
    assert dedupe["per_second"] == pytest.approx(500 / dedupe["median_seconds"])


def test_evaluation_and_startup_are_measured(record: dict[str, Any]) -> None:
    names = [row["name"] for row in record["evaluation"]["rows"]]
    assert [name.split()[0] for name in names] == ["weighted", "linear", "features", "weighted", "linear"]
    assert [name for name in names if "with features" in name] == names[3:]
    *commands, first = record["startup"]["rows"]
    assert [row["name"] for row in commands] == ["python -c pass", "import aag", "aag --help"]
    assert first["name"] == "aag train --recipe demo, to its first step"
    assert first["runtime"] == "CPU, 1 thread, fp32, channels last"


def test_only_given_sections_are_measured_again(saved: tuple[Path, str], tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    before = json.loads(saved[0].read_text())
    path.write_text(json.dumps(before))
    command = [*QUICK, "--save", str(path), "--only", "evaluation,augmentation"]
    assert main(command) == 0
    after = json.loads(path.read_text())
    for name in SECTIONS:
        assert (after[name] == before[name]) is (name not in ("evaluation", "augmentation"))

    path.write_text(json.dumps(before | {"torch": "1.0", "threads": 99}))
    with contextlib.redirect_stderr(io.StringIO()) as err:
        assert main(command) == 2
    assert "was measured with another threads, torch" in err.getvalue()


def test_mistakes_are_reported_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--only", "training", "pipelin"]) == 2
    assert capsys.readouterr().err == "error: unknown section 'pipelin'; did you mean pipeline?\n"
    assert main(["bench", "--device", "tpu"]) == 2
    assert main([*QUICK, "--data", "no/such/folder"]) == 2
    assert "no/such/folder" in capsys.readouterr().err


# --- tables -----------------------------------------------------------------------------------------------------------


def on_a_gpu(record: dict[str, Any]) -> dict[str, Any]:
    """Return the record as if measured on an H200."""
    made = json.loads(json.dumps(record))
    made |= {"device": "cuda", "gpu": "NVIDIA H200", "quick": False, "others_cpu": {"before": 0.6, "after": None}}
    (row,) = made["training"]["rows"]
    row |= {"width": 64, "recipe": "paper", "peak_memory_besides_images": 3 * 2**30, "compile_cache": "empty"}
    made["training"]["rows"] += [row | {"network": "alexnet"}, row | {"network": "resnet50", "missing": "too large"}]
    made["training"]["matmul_dtype"] = "bfloat16"
    made["pipeline"]["width"] = made["methods"]["width"] = 64
    made["methods"]["rows"][3] = {"method": "simclr", "missing": "not enough GPU memory"}
    made["methods"]["rows"][4] |= {"peak_memory_besides_images": 7 * 2**30, "keeps_bytes": 47_100_000}
    made["pipeline"]["rows"][0]["peak_memory"] = 5 * 2**30
    made["pipeline"]["rows"][1] = made["pipeline"]["rows"][0] | {"name": "lightly: SimCLR, two views", "views": 2}
    for row in made["augmentation"]["rows"]:
        row |= {"ours_gpu_kernels": row["ours_cpu"], "ours_gpu_plain": row["ours_cpu"]}
        row |= {"ours_gpu_kernels_over_tensor": 77.0, "ours_gpu_plain_over_tensor": 66.0}
    gpu = {"ours_gpu_kernels": {"per_second": 3_456_789.0}, "ours_gpu_plain": {"per_second": 1e6}}
    made["augmentation"]["rows"].append({"family": "AAG's 3 views", **gpu})
    return made


def test_the_help_names_every_section() -> None:
    named = re.findall(r"\w+", field_docs(Bench)["only"].partition(":")[2].partition(".")[0])
    assert tuple(named) == SECTIONS


def test_the_terminal_shows_every_section(saved: tuple[Path, str]) -> None:
    path, printed = saved
    assert missing_headings(printed) == []
    assert "too small to mean anything" in printed
    assert "AAG's 3 views, 1 worker " in printed
    assert f"saved in {path}" in printed
    assert max(map(len, printed.splitlines())) <= 150 or str(path) in max(printed.splitlines(), key=len)


def missing_headings(printed: str) -> list[str]:
    headings = ("Training", "DataLoader", "Methods", "Between epochs", "Augmentation", "Evaluation", "Start-up")
    return [heading for heading in headings if f"\n{heading}" not in f"\n{printed}"]


def shown(record: dict[str, Any]) -> str:
    out = io.StringIO()
    show(Console(file=out, width=150), record)
    return out.getvalue()


def test_the_terminal_shows_a_gpus_record(record: dict[str, Any]) -> None:
    printed = shown(on_a_gpu(record))
    memory = ("3.0 GiB", "5.0 GiB", "7.0 GiB")
    words = ("NVIDIA H200", *memory, "not enough GPU memory", "too large", "3,456,789")
    assert [word for word in words if word not in printed] == []
    assert "77.0 ×" in printed  # as training makes views
    assert "66.0 ×" not in printed
    assert "warning: other processes used 0.60 cores before the run" in printed


@pytest.mark.parametrize("name", ["cpu-2026-11-15", "nvidia-h200-2026-11-15"])
def test_saved_records_are_shown(name: str) -> None:
    printed = shown(json.loads((ROOT / f"results/bench/{name}.json").read_text()))
    assert missing_headings(printed) == []
    assert "torchvision: AAG's 3 views" in printed


def test_the_readme_shows_both_kinds_of_record(record: dict[str, Any]) -> None:
    tables = runpy.run_path(str(ROOT / "tools" / "make_tables.py"))
    on_cpu = tables["speed_table"](record, "results/bench/cpu.json")
    on_gpu = tables["speed_table"](on_a_gpu(record), "results/bench/gpu.json")
    for text in (on_cpu, on_gpu):
        blocks = [block for block in text.split("\n\n") if block.startswith("|")]
        assert len(blocks) == (8 if text is on_gpu else 7)
        for block in blocks:
            assert len({line.count("|") for line in block.splitlines()}) == 1, block
    assert "| ResNet-18, width 4 | 32 |" in on_cpu
    assert "[record](results/bench/gpu.json)" in on_gpu
    assert "| AAG's 3 views | 3,456,789 | 1,000,000 | – | – | – | – |" in on_gpu
    assert "| simclr | – | – | not enough GPU memory | – | – |" in on_gpu
    assert "| k-means, k = 5, 20 iterations | 200 × 8 |" in on_gpu
    partial = {name: value for name, value in record.items() if name not in SECTIONS[1:]}
    assert tables["speed_table"](partial, "x").count("\n| ") == 2
