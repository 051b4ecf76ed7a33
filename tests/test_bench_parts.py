"""What a benchmark measures: the plan, the usual way beside ours, the ceiling, and how times are taken."""

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
from aag.bench import augmentation, ceiling, machine, methods, startup, training, usual
from aag.bench.plan import MEASURED, make_plan
from aag.bench.rivals import FAMILIES, KINDS, equivalent
from aag.bench.timing import Timing, interleaved
from aag.training.runtime import _without_kernels, decide

CPU = torch.device("cpu")


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
        assert not kernels.enabled(views[0])
        return way.loss(network, views)

    assert kernels.enabled(torch.zeros(1))
    assert usual._measure(plan, config, decide(config), replace(way, loss=loss))["steps"] == plan.usual_steps


def test_on_a_gpu_views_are_made_by_kernels_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(augmentation, "_ours", lambda *_: kernels.enabled(torch.zeros(1)))
    monkeypatch.setattr(kernels, "unavailable_reason", lambda _: "")
    plan = make_plan(CPU, quick=True)
    assert augmentation._on_gpu(plan, (), torch.zeros(1)) == {"ours_gpu_kernels": True, "ours_gpu_plain": False}
    monkeypatch.setattr(kernels, "unavailable_reason", lambda _: "no Triton")
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
