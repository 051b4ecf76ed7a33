"""Two processes that share a GPU, by gloo, train like one process with kernels."""

import pytest
import torch
from distributed_worker import run_processes
from small_runs import state

from aag.runs import Run

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
OPTIONS = ["--width", "16", "--epochs", "2", "--batch-size", "32", "--lr", "1e-5", "--precision", "fp32", "--no-report"]
GROUPS = ("--bn-group-size", "16")


@pytest.mark.parametrize("more", [(), GROUPS, (*GROUPS, "--method", "moco", "--queue", "64")], ids=str)
def test_two_processes_on_one_gpu_train_like_one(tiny, more, monkeypatch):
    # cuDNN's TF32 products have 10 bits. In a network as small as this, they change the gradient of the first layer by
    # a tenth, in one process too.
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    for size in (1, 2):
        words = ["-m", "aag", "train", "--data", str(tiny.data), "--out", f"run{size}", "--device", "cuda", *OPTIONS]
        ended = run_processes(size, [*words, *more], tiny.folder, timeout=90)
        assert not any(each.code for each in ended), ended
    alone, two = (Run(tiny.folder / f"run{size}") for size in (1, 2))
    assert "Triton kernels" in two.metrics()[0]["runtime"]
    for found, expected in zip(two.metrics(), alone.metrics(), strict=True):
        assert found["kind"] == expected["kind"]
        if found["kind"] == "epoch":
            assert found["loss"] == pytest.approx(expected["loss"], rel=1e-2)
    (found, _), (expected, _) = state(two), state(alone)
    # Sums of gradients. Rounding grows on its way back: noise in the last bit of each activation changes the first
    # layer's by 0.7 %, the head's by 0.001 %. A wrong factor of the number of processes would change both by half.
    for name, bound in (("momentum.head.weight", 1e-3), ("momentum.backbone.stem.0.weight", 0.05)):
        assert torch.dist(found[name], expected[name]) <= bound * expected[name].norm()
