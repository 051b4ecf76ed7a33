"""The parts of the benchmark: plan, DataLoader pipeline, ceiling, methods, and how times are taken."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torchvision import transforms

from aag import data, kernels, losses, nets
from aag.bench import ceiling, machine, pipeline, startup, training
from aag.bench.peers import AUGMENTATIONS, KINDS, torchvision_transforms
from aag.bench.plan import METHODS, make_plan
from aag.bench.timing import Timing, measure_interleaved
from aag.nets import unsupported_reason

CPU = torch.device("cpu")


def test_flop_per_view_are_those_of_the_networks_layers() -> None:
    forward, both = ceiling.count_flop(nets.EncoderSpec("resnet18"))
    assert forward == pytest.approx(1.111e9, rel=1e-3)
    # The gradients of weights and of inputs cost as much each; the first convolution has no gradient of its input.
    first_convolution = 2 * 32 * 32 * 64 * 3 * 9
    assert both == 3 * forward - first_convolution
    assert ceiling.count_flop(nets.EncoderSpec("alexnet"))[0] == pytest.approx(0.3446e9, rel=1e-3)


@pytest.mark.parametrize("workers", [0, 1])
def test_pipeline_loads_normalised_views(workers: int) -> None:
    images = data.load("sample", limit=8).images
    spec = nets.EncoderSpec()
    unchanged = pipeline.MultiView((), spec)
    unchanged.transforms = [transforms.Compose([transforms.ToTensor(), transforms.Normalize(spec.mean, spec.std)])] * 3
    loader: Any = torch.utils.data.DataLoader(pipeline.MemoryDataset(images, unchanged), 4, num_workers=workers)
    views = next(iter(loader))[0]
    expected = nets.build(spec).normalise(images[:4])
    assert len(views) == 3
    for view in views:
        torch.testing.assert_close(view, expected, rtol=1e-5, atol=1e-5)


def test_pipeline_has_our_network_and_loss() -> None:
    plan = make_plan(CPU, quick=True)
    ours = pipeline._torchvision(plan)
    images = plan.images(8)
    encoder = nets.build(nets.EncoderSpec(width=4, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)))
    encoder.backbone, encoder.head = ours.network[0], ours.network[1]  # type: ignore[index]
    x, y, z = encoder(images.repeat(3, 1, 1, 1))[1].chunk(3)
    loss = ours.loss(ours.network, [images / 255] * 3)
    torch.testing.assert_close(loss, losses.gnt_xent(x, y, z, temperature=0.1))
    assert [view.shape for view in ours.dataset[0][0]] == [(3, 32, 32)] * 3


def test_pipeline_is_plain_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")  # kernels could be used
    plan = replace(make_plan(CPU, quick=True), workers=0)
    ours = pipeline._torchvision(plan)

    def loss(network: torch.nn.Module, views: list[torch.Tensor]) -> torch.Tensor:
        assert not kernels.enabled(views[0])
        return ours.loss(network, views)

    assert kernels.enabled(torch.zeros(1))
    assert pipeline._measure(plan, replace(ours, loss=loss))["steps"] == plan.pipeline_steps


def test_a_plain_runtime_turns_kernels_off_only_while_it_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    plan, states = make_plan(CPU, quick=True), []

    def numbers(timed: training.TimedTraining) -> dict[str, Any]:
        states.append(kernels.enabled(torch.zeros(1)))
        return {}

    row = training.measure_case(plan, plan.training[0], ("recipe", "width", "queue"), numbers)
    assert row == {"recipe": "demo", "width": 4, "runtime": "CPU, 1 thread, fp32, channels last"}
    assert [*states, kernels.enabled(torch.zeros(1))] == [False, True]


def test_a_case_that_does_not_fit_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise torch.cuda.OutOfMemoryError

    monkeypatch.setattr(training, "TimedTraining", fail)
    plan = make_plan(CPU, quick=True)
    row = training.measure_case(plan, plan.methods[0], ("method",), lambda timed: {})
    assert row == {"method": "isif", "missing": "not enough GPU memory"}


def test_a_cold_start_has_an_empty_compile_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = startup.compile_cache(tmp_path)
    assert own.keys() == {"TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"}
    for name, folder in own.items():
        monkeypatch.setenv(name, folder)
    assert training._describe_compile_cache() == "empty"
    kernel = Path(own["TRITON_CACHE_DIR"]) / "HASH" / "kernel.cubin"
    kernel.parent.mkdir(parents=True)
    kernel.touch()
    assert training._describe_compile_cache() != "empty"


@pytest.mark.parametrize(
    ("module", "why"), [("lightly", "is not installed"), ("lightly.data", "cannot be imported: import of lightly.data")]
)
def test_without_lightly_the_row_says_so(monkeypatch: pytest.MonkeyPatch, module: str, why: str) -> None:
    def fail(*_: Any) -> None:
        raise ModuleNotFoundError(f"import of {module} halted", name=module)

    monkeypatch.setattr(pipeline, "_measure", lambda *_: {})
    monkeypatch.setattr(pipeline, "_lightly", fail)
    row = pipeline.run(make_plan(CPU, quick=True))["rows"][1]
    assert row["missing"].startswith(f"lightly {why}")


def test_ratios_are_to_the_row_with_the_same_network_and_batch_size() -> None:
    same = {"network": "resnet18", "width": 64, "batch_size": 128}
    rows = [
        same | {"batch_size": 512, "views_per_second": {"per_second": 900.0}},
        same | {"views_per_second": {"per_second": 800.0}},
    ]
    section = same | {"rows": [{"views_per_second": {"per_second": 100.0}}, {"missing": "lightly is not installed"}]}
    pipeline.compare(section, {"rows": rows})
    assert section["rows"][0]["ours_over"] == 8.0
    assert "ours_over" not in section["rows"][1]


def test_kernels_support_the_methods_of_a_gpus_plan() -> None:
    cases = make_plan(torch.device("cuda", 0)).methods
    assert tuple(case.settings.method for case in cases) == METHODS
    for case in cases:
        assert case.options("network", "width", "batch_size") == {"network": "resnet18", "width": 64, "batch_size": 128}
        assert unsupported_reason(nets.build(nets.EncoderSpec(**vars(case.settings.resolve().encoder)))) == ""


def test_too_few_images_are_repeated() -> None:
    images = make_plan(CPU, quick=True).images(3001)
    assert images.shape == (3001, 3, 32, 32)
    assert torch.equal(images[3000], images[0])


def test_several_timings_take_turns() -> None:
    turns: list[str] = []
    timings = measure_interleaved([lambda: turns.append("a"), lambda: turns.append("b")], repeats=2, warm_up=1)
    assert "".join(turns) == "ababab"
    assert [len(timing.seconds) for timing in timings] == [2, 2]
    assert Timing((3.0, 1.0, 2.0)).rate(4)["per_second"] == 2.0


def test_a_busy_machine_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.load_warning({"before": 0.05, "after": None}) is None
    assert "0.40 cores after the run" in str(machine.load_warning({"before": 0.1, "after": 0.4}))
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        load = machine.other_load(0.4)
        other.kill()
    assert load is None or load > machine.BUSY_CORES


def test_peers_change_images_and_keep_their_type() -> None:
    image = data.load("sample").images[0]
    for augmentation_ in AUGMENTATIONS.values():
        for kind, module in KINDS.items():
            start: Image.Image | torch.Tensor = transforms.functional.to_pil_image(image) if kind == "pil" else image
            changed = 0
            for seed in range(4):
                torch.manual_seed(seed)
                out = transforms.Compose(torchvision_transforms(augmentation_, module))(start)
                out = transforms.functional.pil_to_tensor(out) if kind == "pil" else out
                assert out.shape == image.shape
                assert out.dtype == torch.uint8
                changed += not torch.equal(out, image)
            assert changed
