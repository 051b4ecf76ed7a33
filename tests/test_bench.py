"""The benchmark runs, and its record says what was measured, on what and how much of it."""

import contextlib
import io
import json
import runpy
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from rich.console import Console
from torchvision import transforms

from aag import data, kernels, losses, nets
from aag.bench import SECTIONS, augmentation, ceiling, first_step, machine, methods, startup, training, usual
from aag.bench.plan import MEASURED, make_plan
from aag.bench.rivals import FAMILIES, KINDS, equivalent
from aag.bench.run import show
from aag.bench.timing import Timing, interleaved
from aag.cli import main
from aag.train.runtime import _without_kernels, decide

ROOT = Path(__file__).parents[1]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A quick run of all sections by the command line: the record's file and what was printed."""
    path = tmp_path_factory.mktemp("bench") / "new" / "record.json"
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
        patch.setattr(startup.subprocess, "run", _without_a_new_interpreter)
        assert main(["bench", "--device", "cpu", "--quick", "--save", str(path)]) == 0
    return path, out.getvalue()


def _without_a_new_interpreter(command: list[str], **options: Any) -> Any:
    """Training's first step in this process: importing torch once more would take longer than all tests here."""
    if "aag.bench.first_step" not in command:
        return RUN(command, **options)
    out = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
        patch.setattr(sys, "argv", command[2:])
        first_step.main()
    return SimpleNamespace(returncode=0, stdout=out.getvalue(), stderr="")


RUN = subprocess.run


@pytest.fixture(scope="module")
def record(saved: tuple[Path, str]) -> dict[str, Any]:
    return json.loads(saved[0].read_text())


# --- the record -------------------------------------------------------------------------------------------------------


def test_record_states_hardware_versions_and_threads(record: dict[str, Any]) -> None:
    assert record["kind"] == "benchmark"
    assert record["format"] == 2
    assert record["device"] == "cpu"
    assert record["quick"] is True
    assert record["threads"] >= 1
    for name in ("cpu", "cpu_model", "cores", "python", "torch", "torchvision", "pillow", "aag", "date"):
        assert record[name], name
    assert record["others_cpu"].keys() == {"before", "during", "after"}
    assert record["augmentation"]["threads"] == record["augmentation"]["torchvision_processes"] == record["threads"]
    assert record["augmentation"]["images"] > 0
    assert record["training"]["images"] > 0
    assert record["seconds"] == pytest.approx(sum(record[name]["section_seconds"] for name in SECTIONS))


def test_every_family_is_measured_beside_torchvision(record: dict[str, Any]) -> None:
    rows = record["augmentation"]["rows"]
    assert len({row["family"] for row in rows}) == len(rows) == 6
    for row in rows:
        for rival in ("pil", "tensor"):
            ratio = row["ours_cpu"]["per_second"] / row[f"torchvision_{rival}"]["per_second"]
            assert row[f"ours_cpu_over_{rival}"] == pytest.approx(ratio)
            assert row[f"torchvision_{rival}"]["count"] == record["augmentation"]["images"]
        assert row["ours_cpu"]["count"] == row["ours_cpu"]["chunk"]
        assert row["ours_cpu"]["per_core"] == pytest.approx(row["ours_cpu"]["per_second"] / record["threads"])


def test_the_stages_add_up_and_the_ceiling_is_theirs(record: dict[str, Any]) -> None:
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
    assert section["copy_bytes_per_second"] > 0


def test_the_usual_way_is_measured_and_compared(record: dict[str, Any]) -> None:
    section, (ours,) = record["usual"], record["training"]["rows"]
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


def test_methods_are_compared_with_the_plain_one(record: dict[str, Any]) -> None:
    section = record["methods"]
    rows = {row["method"]: row for row in section["rows"]}
    assert tuple(rows) == MEASURED
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


def test_evaluation_and_startup_are_measured(record: dict[str, Any]) -> None:
    names = [row["name"] for row in record["evaluation"]["rows"]]
    assert [name.split()[0] for name in names] == ["weighted", "linear", "features", "weighted", "linear"]
    assert [name for name in names if "with features" in name] == names[3:]
    *commands, first = record["startup"]["rows"]
    assert [row["name"] for row in commands] == ["python -c pass", "import aag", "aag --help"]
    assert first["name"] == "aag train --recipe demo, to its first step"
    assert first["runtime"] == "CPU, fp32, channels last"


def test_every_number_is_positive(record: dict[str, Any]) -> None:
    # Stages are differences of timings; the optimiser's of two steps may come out below nothing on a busy machine.
    # Most methods keep nothing, and have batch norm of the whole batch.
    signed = ("backward_ms", "optimiser_ms", "augmentation_ms", "warm_up_seconds", "keeps_bytes", "norm_images")
    numbers = [
        (path, value)
        for section in SECTIONS
        for path, value in _numbers(record[section], section)
        if not path.endswith(signed)
    ]
    assert len(numbers) > 100
    assert [path for path, value in numbers if not 0 < value < float("inf")] == []


def test_only_some_sections_are_measured_anew_and_the_others_stay(saved: tuple[Path, str], tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    before = json.loads(saved[0].read_text())
    path.write_text(json.dumps(before))
    quick = ["bench", "--device", "cpu", "--quick", "--save", str(path), "--only", "evaluation"]
    assert main(quick) == 0
    after = json.loads(path.read_text())
    for name in SECTIONS:
        assert (after[name] == before[name]) is (name != "evaluation")

    path.write_text(json.dumps(before | {"torch": "1.0", "threads": 99}))
    with contextlib.redirect_stderr(io.StringIO()) as err:
        assert main(quick) == 2
    assert "was measured with another threads, torch" in err.getvalue()


def test_mistakes_are_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--only", "traning"]) == 2
    assert capsys.readouterr().err == "error: unknown section 'traning'; did you mean training?\n"
    assert main(["bench", "--device", "tpu"]) == 2
    assert main(["bench", "--quick", "--device", "cpu", "--data", "no/such/folder"]) == 2
    assert "no/such/folder" in capsys.readouterr().err


# --- tables -----------------------------------------------------------------------------------------------------------


def on_a_gpu(record: dict[str, Any]) -> dict[str, Any]:
    """The record as an H200 would have left it, its numbers aside."""
    made = json.loads(json.dumps(record))
    made |= {"device": "cuda", "gpu": "NVIDIA H200", "quick": False, "others_cpu": {"before": 0.6, "after": None}}
    (row,) = made["training"]["rows"]
    row |= {"width": 64, "recipe": "paper", "peak_memory_besides_images": 3 * 2**30, "compile_cache": "empty"}
    made["training"]["rows"] += [row | {"network": "alexnet"}, row | {"network": "resnet50", "missing": "too large"}]
    made["training"]["matmul_dtype"] = "bfloat16"
    made["usual"]["width"] = made["methods"]["width"] = 64
    made["methods"]["rows"][3] = {"method": "simclr", "runtime": "NVIDIA H200", "missing": "not enough GPU memory"}
    made["methods"]["rows"][4] |= {"peak_memory_besides_images": 7 * 2**30, "keeps_bytes": 47_100_000}
    made["usual"]["rows"][0]["peak_memory"] = 5 * 2**30
    made["usual"]["rows"][1] = made["usual"]["rows"][0] | {"name": "lightly: SimCLR, two views", "views": 2}
    for row in made["augmentation"]["rows"]:
        row |= {"ours_gpu_kernels": row["ours_cpu"], "ours_gpu_plain": row["ours_cpu"]}
        row |= {"ours_gpu_kernels_over_tensor": 77.0, "ours_gpu_plain_over_tensor": 66.0}
    gpu = {"ours_gpu_kernels": {"per_second": 3_456_789.0}, "ours_gpu_plain": {"per_second": 1e6}}
    made["augmentation"]["rows"].append({"family": "AAG's 3 views", **gpu})
    for state in ("cold", "warm"):
        made["startup"]["rows"].append({"name": f"aag train, to its first step, {state}", "median_seconds": 12.34})
    return made


def test_the_terminal_shows_every_section(saved: tuple[Path, str]) -> None:
    path, said = saved
    for heading in ("Training", "The usual way", "Methods", "Between epochs", "Augmentation", "Evaluation", "Start-up"):
        assert f"\n{heading}" in f"\n{said}"
    assert "too small to mean anything" in said
    assert f"saved in {path}" in said
    assert max(map(len, said.splitlines())) <= 150 or str(path) in max(said.splitlines(), key=len)


def test_the_terminal_shows_a_gpus_record(record: dict[str, Any]) -> None:
    out = io.StringIO()
    show(Console(file=out, width=150), on_a_gpu(record))
    said = out.getvalue()
    for words in (
        "NVIDIA H200",
        "3.00 GiB",
        "5.00 GiB",
        "7.00 GiB",
        "not enough GPU memory",
        "too large",
        "3,456,789",
        "first step, cold",
        "12.340",
    ):
        assert words in said
    assert "77.0 ×" in said  # as training makes views
    assert "66.0 ×" not in said
    assert "warning: other processes took 0.60 of a core before the run" in said


def test_the_readme_shows_both_kinds_of_record(record: dict[str, Any]) -> None:
    tables = runpy.run_path(str(ROOT / "tools" / "make_tables.py"))
    on_cpu = tables["speed_table"](record, "results/bench/cpu.json")
    on_gpu = tables["speed_table"](on_a_gpu(record), "results/bench/gpu.json")
    for text in (on_cpu, on_gpu):
        blocks = [block for block in text.split("\n\n") if block.startswith("|")]
        assert len(blocks) == (5 if text is on_gpu else 4)
        for block in blocks:
            assert len({line.count("|") for line in block.splitlines()}) == 1, block
    assert "| ResNet-18, width 4 | 32 |" in on_cpu
    assert "[record](results/bench/gpu.json)" in on_gpu
    assert "| AAG's 3 views | 3,456,789 | 1,000,000 | – | – | – |" in on_gpu
    assert "3.0 GiB" in on_gpu
    assert "| a step, ResNet-18, batch 32 | views |" in on_gpu
    assert "| simclr | – | – | not enough GPU memory | – | – |" in on_gpu
    assert "| 47.1 MB |" in on_gpu
    assert "| k-means, k = 5, 20 iterations | 200 × 8 |" in on_gpu
    partial = {name: value for name, value in record.items() if name not in SECTIONS[1:]}
    assert tables["speed_table"](partial, "x").count("\n| ") == 2


def test_a_record_from_before_the_methods_is_shown(record: dict[str, Any]) -> None:
    old = {name: value for name, value in record.items() if name != "methods"}
    tables = runpy.run_path(str(ROOT / "tools" / "make_tables.py"))
    assert "k-means" not in tables["speed_table"](old, "x")
    out = io.StringIO()
    show(Console(file=out, width=150), old)
    assert "Evaluation" in out.getvalue()
    assert "Methods" not in out.getvalue()


# --- what is measured -------------------------------------------------------------------------------------------------


def test_the_flop_of_a_view_are_those_of_the_networks_layers() -> None:
    forward, both = ceiling.flop_per_view(nets.EncoderSpec("resnet18"))
    assert forward == pytest.approx(1.111e9, rel=1e-3)
    # Each convolution once more for the weights and once more for its input; the first one has no gradient to pass on.
    first_convolution = 2 * 32 * 32 * 64 * 3 * 9
    assert both == 3 * forward - first_convolution
    assert ceiling.flop_per_view(nets.EncoderSpec("alexnet"))[0] == pytest.approx(0.3446e9, rel=1e-3)


@pytest.mark.parametrize("workers", [0, 1])
def test_the_usual_loader_hands_out_normalised_views(workers: int) -> None:
    images = data.load("sample", limit=8).images
    spec = nets.EncoderSpec()
    same = usual.ManyViews((), spec)
    same.views = [transforms.Compose([transforms.ToTensor(), transforms.Normalize(spec.mean, spec.std)])] * 3
    loader: Any = torch.utils.data.DataLoader(usual.Photographs(images, same), 4, num_workers=workers)
    views = next(iter(loader))[0]
    expected = nets.build(spec).normalise(images[:4])
    assert len(views) == 3
    for view in views:
        torch.testing.assert_close(view, expected, rtol=1e-5, atol=1e-5)


def test_the_usual_network_and_loss_are_ours() -> None:
    plan = make_plan(CPU, quick=True)
    way = usual._torchvision(plan, plan.training[0])
    images = plan.photographs(8)
    encoder = nets.build(nets.EncoderSpec(width=4, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)))
    encoder.backbone, encoder.head = way.network[0], way.network[1]  # type: ignore[index]
    x, y, z = encoder(images.repeat(3, 1, 1, 1))[1].chunk(3)
    found = way.loss(way.network, [images / 255] * 3)
    torch.testing.assert_close(found, losses.gnt_xent(x, y, z, temperature=0.1))
    assert [view.shape for view in way.dataset[0][0]] == [(3, 32, 32)] * 3


def test_the_usual_way_is_plain_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # kernels could be used
    plan = replace(make_plan(CPU, quick=True), workers=0)
    config = plan.training[0]
    way = usual._torchvision(plan, config)

    def loss(network: torch.nn.Module, views: list[torch.Tensor]) -> torch.Tensor:
        assert not kernels.usable(views[0])
        return way.loss(network, views)

    assert kernels.usable(torch.zeros(1))
    assert usual._measure(plan, config, decide(config), replace(way, loss=loss))["steps"] == plan.usual_steps


def test_on_a_gpu_views_are_made_by_kernels_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(augmentation, "_ours", lambda *_: kernels.usable(torch.zeros(1)))
    monkeypatch.setattr(kernels, "reason_against", lambda _: "")
    plan = make_plan(CPU, quick=True)
    assert augmentation._on_gpu(plan, (), torch.zeros(1)) == {"ours_gpu_kernels": True, "ours_gpu_plain": False}
    monkeypatch.setattr(kernels, "reason_against", lambda _: "no Triton")
    assert augmentation._on_gpu(plan, (), torch.zeros(1)) == {"ours_gpu_plain": False}


def test_a_cold_start_finds_nothing_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = startup.compile_cache(tmp_path)
    assert own.keys() == {"TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"}
    for name, folder in own.items():
        monkeypatch.setenv(name, folder)
    assert training._compile_cache() == "empty"
    kernel = Path(own["TRITON_CACHE_DIR"]) / "HASH" / "kernel.cubin"
    kernel.parent.mkdir(parents=True)
    kernel.touch()
    assert training._compile_cache() != "empty"


def test_without_lightly_the_row_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usual, "find_spec", lambda name: None)
    assert usual._missing() == "lightly is not installed"
    monkeypatch.setattr(usual, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "lightly", None)
    assert str(usual._missing()).startswith("lightly can't be imported")


def test_ratios_are_to_the_row_of_the_same_network_and_batch() -> None:
    same = {"network": "resnet18", "width": 64, "batch_size": 128}
    rows = [
        same | {"batch_size": 512, "views_per_second": {"per_second": 900.0}},
        same | {"views_per_second": {"per_second": 800.0}},
    ]
    section = same | {"rows": [{"views_per_second": {"per_second": 100.0}}, {"missing": "lightly is not installed"}]}
    usual.compare(section, {"rows": rows})
    assert section["rows"][0]["ours_over"] == 8.0
    assert "ours_over" not in section["rows"][1]


def test_a_gpus_plan_holds_the_four_networks() -> None:
    plan = make_plan(torch.device("cuda", 0))
    found = [(config.network, config.batch_size, config.recipe, config.width) for config in plan.training]
    assert found == [
        ("resnet18", 128, "paper", 64),
        ("resnet18", 512, "paper", 64),
        ("alexnet", 128, "paper", 64),
        ("resnet50", 64, "paper-resnet50", 64),
    ]
    assert plan.training_images == 50_000
    assert plan.workers <= 16
    assert plan.photographs(4000).shape == (4000, 3, 32, 32)


def test_a_gpus_plan_trains_the_methods_that_kernels_can_run() -> None:
    plan = make_plan(torch.device("cuda", 0))
    found = {config.method: config.validate() for config in plan.methods}
    assert tuple(found) == MEASURED
    for config in found.values():
        assert (config.network, config.width, config.batch_size) == ("resnet18", 64, 128)
        assert _without_kernels(config) == ""
    assert found["simclr"].optimizer == "sgd"
    assert (found["moco"].queue, found["moco"].norm_images) == (4096, 64)
    assert (plan.kmeans, plan.whitening, plan.bank) == ((50_000, 256, 1000), (50_000, 512, 256), (50_000, 128))


def test_without_the_plain_method_there_are_no_ratios() -> None:
    rows: list[dict[str, Any]] = [{"missing": "not enough GPU memory"}, {"views_per_second": {"per_second": 2.0}}]
    methods.compare(rows)
    assert "view_over_plain" not in rows[1]


def test_timings_of_several_works_take_turns() -> None:
    turns: list[str] = []
    timings = interleaved([lambda: turns.append("a"), lambda: turns.append("b")], repeats=2, warm_up=1)
    assert "".join(turns) == "ababab"
    assert [len(timing.seconds) for timing in timings] == [2, 2]
    assert Timing((3.0, 1.0, 2.0)).rate(4)["per_second"] == 2.0


def test_a_busy_machine_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.warning({"before": 0.05, "after": None}) is None
    assert "0.40 of a core after the run" in str(machine.warning({"before": 0.1, "after": 0.4}))
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        found = machine.others(0.4)
        other.kill()
    assert found is None or found > machine.BUSY


def test_equivalents_do_to_an_image_what_their_names_say() -> None:
    """Same shape and type as ours, and really another picture."""
    image = data.load("sample").images[0]
    for family in FAMILIES.values():
        for kind, module in KINDS.items():
            start: Image.Image | torch.Tensor = transforms.functional.to_pil_image(image) if kind == "pil" else image
            changed = 0
            for seed in range(4):
                torch.manual_seed(seed)
                out = transforms.Compose(equivalent(family, module))(start)
                out = transforms.functional.pil_to_tensor(out) if kind == "pil" else out
                assert out.shape == image.shape
                assert out.dtype == torch.uint8
                changed += not torch.equal(out, image)
            assert changed


def test_a_set_that_is_too_small_is_repeated() -> None:
    plan = replace(make_plan(CPU, quick=True), data="sample")
    images = plan.photographs(3001)
    assert torch.equal(images[3000], images[0])


def _numbers(value: Any, path: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _numbers(inner, f"{path}.{name}")
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from _numbers(inner, f"{path}[{place}]")
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield path, value
