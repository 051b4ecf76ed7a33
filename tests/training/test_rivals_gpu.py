"""Every method on a GPU: the replayed graph computes what plain steps compute, and its memory goes on after a stop."""

from dataclasses import replace

import pytest
import torch
from test_loop import stop_after
from test_rivals import SMALL, small
from test_train_gpu import losses

from aag.training import checkpoint, train

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
COMPILED = ("super-and", "amdim")  # by torch.compile: half a minute each


@pytest.mark.parametrize("method", [name for name in SMALL if name not in COMPILED])
def test_a_graph_computes_what_plain_steps_compute(tiny, tmp_path, method):
    changes = {"norm_images": 24, "queue": 192} if method == "moco" else {}
    tiny = replace(tiny, device="cuda", width=16, batch_size=96, epochs=2)  # one step an epoch
    config = replace(small(tiny, method, **changes), precision="fp32")
    plain = train(replace(config, compile="off", out=tmp_path / "plain"))
    graph = train(replace(config, compile="on"))
    runtime = graph.run.metrics()[0]["runtime"]
    assert "Triton kernels" in runtime
    assert "CUDA graph" in runtime
    first = 5e-2 if method == "deepcluster" else 1e-3  # an image between two clusters may fall to either
    assert losses(graph)[0] == pytest.approx(losses(plain)[0], rel=first)
    assert losses(graph)[1] == pytest.approx(losses(plain)[1], rel=5e-2)  # float32 gradients are a percent apart
    one, other = (checkpoint.load(result.run.checkpoint)[0] for result in (plain, graph))
    assert one.keys() == other.keys()


@pytest.mark.parametrize("method", [name for name in SMALL if name not in COMPILED])
def test_a_run_on_the_gpu_goes_on_after_a_stop(tiny, method):
    config = small(replace(tiny, device="cuda", width=16), method)
    assert not train(config, should_stop=stop_after(3)).complete
    result = train(config)
    assert result.complete
    tensors, state = checkpoint.load(result.run.checkpoint)
    assert state["epoch"] == 2
    assert all(torch.isfinite(value).all() for value in tensors.values() if value.is_floating_point())


@pytest.mark.slow
@pytest.mark.parametrize("method", COMPILED)
def test_the_others_are_compiled(tiny, method):
    result = train(small(replace(tiny, device="cuda", width=16, epochs=2), method))
    assert "torch.compile" in result.run.metrics()[0]["runtime"]
    assert "CUDA graph" in result.run.metrics()[0]["runtime"]
    assert "failed" not in result.run.metrics()[0]["runtime"]
