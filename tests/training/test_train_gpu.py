"""Training on a GPU: the CUDA graph computes what plain eager steps compute, and resumes."""

from dataclasses import replace

import pytest
import torch

from aag.training import checkpoint, train

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


def losses(result) -> list[float]:
    return [row["loss"] for row in result.run.metrics() if row["kind"] == "epoch"]


def test_a_graph_of_a_compiled_step_computes_what_eager_steps_compute(tiny, tmp_path):
    tiny = replace(tiny, device="cuda", precision="fp32", width=16, batch_size=96, epochs=2)  # one step an epoch
    eager = train(replace(tiny, compile="off", out=tmp_path / "eager"))
    graph = train(replace(tiny, compile="on"))
    assert "CUDA graph" in graph.run.metrics()[0]["runtime"]
    assert losses(graph)[0] == pytest.approx(losses(eager)[0], rel=1e-3)
    assert losses(graph)[1] == pytest.approx(losses(eager)[1], rel=1e-2)  # float32 gradients are a percent apart


def test_the_gpu_and_the_cpu_learn_alike(tiny, tmp_path):
    tiny = replace(tiny, precision="fp32", width=16, batch_size=96, epochs=2)
    cpu = train(replace(tiny, out=tmp_path / "cpu"))
    gpu = train(replace(tiny, device="cuda", compile="off"))
    assert losses(gpu) == pytest.approx(losses(cpu), rel=1e-2)


def test_a_run_on_the_gpu_goes_on_after_a_stop(tiny):
    tiny = replace(tiny, device="cuda", width=16)
    left = iter([False] * 3)
    assert not train(tiny, should_stop=lambda: next(left, True)).complete
    result = train(tiny)
    assert result.complete
    tensors, state = checkpoint.load(result.run.checkpoint)
    assert state["epoch"] == 2
    assert all(torch.isfinite(value).all() for value in tensors.values())
