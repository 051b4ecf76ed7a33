"""Which encoders our kernels train, and why others do without; how many threads a CPU uses."""

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from aag import AAGError, data, nets
from aag.training import Trainer, build_encoder, recipe_settings, runtime
from aag.training.deterministic import deterministic_algorithms
from aag.training.runtime import choose_precision, choose_runtime, choose_threads, find_device

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ({}, ""),
        ({"network": "resnet50", "width": 16}, ""),
        ({"network": "alexnet-ip"}, ""),
        ({"network": "resnet18-edges"}, ""),
        ({"network": "resnet18-edges", "width": 8}, "a width of 8 is not a multiple of 16"),
        ({"network": "resnet18+sobel"}, ""),
        ({"network": "amdim-edges", "width": 4}, "the backbone AMDIMNet is not supported"),
        ({"network": "mobilenetv3_small_050"}, "timm's networks are not supported"),
    ],
    ids=str,
)
def test_a_gpu_trains_our_networks_by_kernels(spec, reason, monkeypatch):
    monkeypatch.setattr(runtime, "unavailable_reason", lambda device: "")
    encoder = nets.build(nets.EncoderSpec(**{"width": 16} | spec))
    chosen = choose_runtime(encoder, GPU, "bf16")
    assert chosen.reason == (f"no kernels: {reason}" if reason else "")
    assert (chosen.kernels, chosen.compile, chosen.graph) == (not reason, bool(reason), True)
    assert choose_runtime(encoder, GPU, "fp32", "off").is_plain
    assert choose_runtime(encoder, CPU, "fp32").is_plain
    repeatable = choose_runtime(encoder, GPU, "bf16", deterministic=True)
    assert (repeatable.kernels, repeatable.compile, repeatable.graph) == (not reason, False, True)
    assert not repeatable.fallback("broken").fallback("broken").compile


def test_without_triton_a_gpu_still_replays_graphs(monkeypatch):
    monkeypatch.setattr(runtime, "unavailable_reason", lambda device: "no triton here")
    chosen = choose_runtime(nets.build(nets.EncoderSpec(width=16)), GPU, "fp32")
    assert (chosen.kernels, chosen.compile, chosen.graph) == (False, False, True)
    assert "no triton here" in chosen.reason


def test_a_hook_that_is_set_late_turns_the_kernels_off():
    pytest.importorskip("triton")
    images = data.load("sample", limit=64)
    settings = recipe_settings("demo", "sample").replace(width=16).resolve("fp32")
    trainer = Trainer(build_encoder(settings, images), settings.new_method(), images, settings.train, device="cpu")
    trainer.runtime = runtime.Runtime(CPU, torch.float32, kernels=True, fused_step=True)
    trainer.encoder.head.weight.register_hook(lambda grad: grad)
    trainer.prepare()
    trainer.close()
    assert (trainer.runtime.kernels, trainer.runtime.compile) == (False, True)
    assert trainer.runtime.reason.endswith("head.weight has gradient hooks")


def test_each_fallback_is_simpler_and_the_last_is_plain(monkeypatch):
    monkeypatch.setattr(runtime, "unavailable_reason", lambda device: "")
    chosen = choose_runtime(nets.build(nets.EncoderSpec(width=16)), GPU, "bf16")
    reasons = []
    while not chosen.is_plain:
        chosen = chosen.fallback("broken")
        reasons.append(chosen.reason)
    assert reasons == ["no update inside backward: broken", "kernels failed: broken", "compilation failed: broken"]
    assert chosen.precision == "bf16"


def test_deterministic_algorithms_are_used_inside_the_block_only(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    with deterministic_algorithms():
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.backends.cudnn.deterministic
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert not torch.are_deterministic_algorithms_enabled()
    assert not torch.backends.cudnn.deterministic
    told = "--deterministic: put_ does not have a deterministic implementation; leave it out"
    with pytest.raises(AAGError, match=told), deterministic_algorithms():
        raise RuntimeError("put_ does not have a deterministic implementation, but you set …")
    with pytest.raises(RuntimeError, match="another"), deterministic_algorithms():
        raise RuntimeError("another problem")
    assert not torch.are_deterministic_algorithms_enabled()


def test_unknown_modes_and_devices_are_refused():
    with pytest.raises(AAGError, match="--compile must be one of auto, on, off, not 'yes'"):
        choose_runtime(nets.build(nets.EncoderSpec(width=4)), CPU, "fp32", "yes")
    for name in ("gpu", "cuda:", "cuda:x", "CPU", ""):
        with pytest.raises(AAGError, match=f"unknown device '{name}'; use auto, cpu, cuda or cuda:N"):
            find_device(name)
    assert choose_precision(CPU) == "fp32"
    with pytest.raises(AAGError, match="bf16 needs a GPU"):
        choose_precision(CPU, "bf16")


@pytest.mark.parametrize("per_core", [1, 2])  # with two threads per core, PyTorch uses half of them
@pytest.mark.parametrize(("seconds", "chosen"), [({4: 1.0, 1: 2.0}, 4), ({4: 2.0, 1: 1.0}, 1)])
def test_all_cores_or_one_are_used_whichever_is_faster(seconds, chosen, per_core, monkeypatch):
    now, threads, seconds = [0.0], [4], dict(seconds)

    def clock() -> float:
        now[0] += seconds[threads[0]] / 2
        return now[0]

    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(4 * per_core))
    monkeypatch.setattr(Path, "read_text", lambda file: str(int(file.parts[-3][3:]) // per_core))
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads[0])
    monkeypatch.setattr(torch, "set_num_threads", lambda count: threads.__setitem__(0, count))
    monkeypatch.setattr(runtime, "time", SimpleNamespace(perf_counter=clock))
    monkeypatch.setattr(runtime, "_replaced_threads", 0)
    choose_threads(CPU)
    assert threads == [chosen]
    seconds.update({4: 1.0, 1: 2.0})  # the other cores are idle again
    choose_threads(CPU)
    assert threads == [4]
    threads[0] = 1  # by the user, with torch.set_num_threads
    choose_threads(CPU)
    assert threads == [1]
    monkeypatch.setenv("OMP_NUM_THREADS", "4")  # the user has chosen
    threads[0] = 4
    choose_threads(CPU)
    assert threads == [4]
