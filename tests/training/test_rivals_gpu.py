"""Every method on a GPU: the replayed graph computes what plain steps compute, and its state resumes."""

import pytest
import torch
from small_runs import SmallRuns, losses, stop_after
from test_rivals import VICREG

from aag.training import TrainResult, checkpoint

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
COMPILED = ("amdim",)  # by torch.compile: half a minute
# What makes a method small enough for a run of seconds on a tiny set, besides the defaults of `SmallRuns`.
SMALL: dict[str, dict] = {
    "instance": {},
    "isif": {"bn_group_size": 8},
    "simclr": {},
    "moco": {"queue": 32, "bn_group_size": 8},
    "and": {"rounds": 2},
    "super-and": {"rounds": 2, "network": "resnet18+sobel"},
    "deepcluster": {"clusters": 5},
    "amdim": {"network": "amdim", "width": 2},
}
WITH_KERNELS = [name for name in SMALL if name not in COMPILED]


def train_small(tiny: SmallRuns, method: str, out: str = "run", **changes: object) -> TrainResult:
    return tiny.train(out, method=method, **{"warmup_epochs": 0, **SMALL.get(method, {}), **changes})


@pytest.mark.parametrize("method", WITH_KERNELS)
def test_a_graph_computes_what_plain_steps_compute(tiny, method):
    changes = {"bn_group_size": 24, "queue": 192} if method == "moco" else {}
    changes |= {"device": "cuda", "width": 16, "batch_size": 96, "precision": "fp32"}  # one step per epoch
    plain, graph = (train_small(tiny, method, mode, compile=mode, **changes) for mode in ("off", "on"))
    runtime = graph.run.metrics()[0]["runtime"]
    assert "Triton kernels" in runtime
    assert "CUDA graph" in runtime
    first = 5e-2 if method == "deepcluster" else 1e-3  # an image between two clusters may fall to either
    assert losses(graph)[0] == pytest.approx(losses(plain)[0], rel=first)
    assert losses(graph)[1] == pytest.approx(losses(plain)[1], rel=5e-2)  # float32 gradients are a percent apart
    one, other = (checkpoint.load(result.run.checkpoint)[0] for result in (plain, graph))
    assert one.keys() == other.keys()


@pytest.mark.parametrize("method", [*WITH_KERNELS, VICREG])
def test_a_run_on_the_gpu_resumes(tiny, method):
    options = {"device": "cuda", "width": 16}
    assert not train_small(tiny, method, should_stop=stop_after(3), **options).complete
    result = train_small(tiny, method, **options)
    assert result.complete
    tensors, state = checkpoint.load(result.run.checkpoint)
    assert state["epoch"] == 2
    assert all(torch.isfinite(value).all() for value in tensors.values() if value.is_floating_point())


@pytest.mark.slow
@pytest.mark.parametrize("method", COMPILED)
def test_the_others_are_compiled(tiny, method):
    runtime = train_small(tiny, method, device="cuda", width=16).run.metrics()[0]["runtime"]
    assert "torch.compile" in runtime
    assert "CUDA graph" in runtime
    assert "failed" not in runtime
