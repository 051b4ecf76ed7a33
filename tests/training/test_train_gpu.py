"""Training on a GPU: the CUDA graph computes what plain eager steps compute, and resumes."""

import pytest
import torch
from small_runs import losses, state, stop_after

from aag.training import checkpoint

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
ONE_STEP = {"width": 16, "batch_size": 96, "precision": "fp32"}  # per epoch


def test_a_graph_of_a_compiled_step_computes_what_eager_steps_compute(tiny):
    eager, graph = (tiny.train(mode, device="cuda", compile=mode, **ONE_STEP) for mode in ("off", "on"))
    assert "CUDA graph" in graph.run.metrics()[0]["runtime"]
    assert losses(graph)[0] == pytest.approx(losses(eager)[0], rel=1e-3)
    assert losses(graph)[1] == pytest.approx(losses(eager)[1], rel=1e-2)  # float32 gradients are a percent apart


def test_the_gpu_and_the_cpu_learn_alike(tiny):
    cpu = tiny.train("cpu", **ONE_STEP)
    gpu = tiny.train("gpu", device="cuda", compile="off", **ONE_STEP)
    assert losses(gpu) == pytest.approx(losses(cpu), rel=1e-2)


def test_a_run_on_the_gpu_resumes(tiny):
    options = {"device": "cuda", "width": 16}
    assert not tiny.train(should_stop=stop_after(2), **options).complete
    result = tiny.train(**options)
    assert result.complete
    tensors, rest = checkpoint.load(result.run.checkpoint)
    assert rest["epoch"] == 2
    assert all(torch.isfinite(value).all() for value in tensors.values())


@pytest.mark.parametrize(
    "changes",
    [
        {"clip_grad": 0.05},
        {"accumulate": 2},
        {"accumulate": 3, "clip_grad": 0.05},
        {"freeze": ("backbone.stem",)},
        {"freeze": ("backbone",), "accumulate": 2},
    ],
    ids=str,
)
def test_kernels_clip_accumulate_and_freeze_as_plain_steps_do(tiny, changes):
    options = {"device": "cuda", "width": 16, "precision": "fp32", "epochs": 1, "lr": 1e-6, **changes}
    plain, graph = (tiny.train(mode, compile=mode, **options) for mode in ("off", "on"))
    runtime = graph.run.metrics()[0]["runtime"]
    assert "Triton kernels" in runtime
    assert "CUDA graph" in runtime
    assert losses(graph) == pytest.approx(losses(plain), rel=1e-2)
    (expected, _), (found, _) = state(plain.run), state(graph.run)
    assert found.keys() == expected.keys()
    for name in ("momentum.head.weight", "encoder.head.weight"):
        assert torch.dist(found[name], expected[name]) <= 0.05 * expected[name].norm()
    resumed = tiny.train("resumed", compile="on", should_stop=stop_after(1), **options)
    assert not resumed.complete
    assert tiny.train("resumed", compile="on", **options).complete


def test_the_size_of_the_views_changes_the_graph(tiny):
    options = {"device": "cuda", "width": 16, "precision": "fp32", "lr": 1e-6, "low_res_size": 16}
    plain, graph = (tiny.train(mode, compile=mode, **options) for mode in ("off", "on"))
    assert "CUDA graph" in graph.run.metrics()[0]["runtime"]
    assert losses(graph) == pytest.approx(losses(plain), rel=1e-2)
    assert not tiny.train("resumed", compile="on", should_stop=stop_after(8), **options).complete
    assert tiny.train("resumed", compile="on", **options).complete


@pytest.mark.parametrize(
    "changes",
    [
        {"auxiliary_views": 3, "one_way": True},
        {"hard_negatives": 0.5},
        {"method": "aag-nn"},
        {"method": "aag-nn", "neighbours": 5},
        {"method": "aag-mix"},
        {"method": "aag-relational", "queue": 64},
        {"method": "aag-siam"},
        {"method": "aag-siam", "contrast_weight": 0.1},
        {"zero_init_residual": True},
        {"head": "mlp"},
    ],
    ids=str,
)
def test_what_goes_beyond_the_paper_trains_by_kernels(tiny, changes):
    options = {"device": "cuda", "width": 16, "precision": "fp32", "lr": 1e-6, **changes}
    plain, graph = (tiny.train(mode, compile=mode, **options) for mode in ("off", "on"))
    assert "Triton kernels" in graph.run.metrics()[0]["runtime"]
    assert losses(graph) == pytest.approx(losses(plain), rel=1e-2, abs=1e-4)  # aag-siam's are about 0


@pytest.mark.parametrize("compile", ["on", "off"])
def test_images_read_ahead_from_the_host_train_as_those_on_the_gpu(tiny, compile):
    """96 images of 32 px in views of 28 px, in chunks of more than one batch."""
    options = {"device": "cuda", "width": 16, "image_size": 28, "resize_size": 32, "compile": compile}
    device, host = (tiny.train(where, images_on=where, **options) for where in ("device", "host"))
    assert losses(host)[0] == losses(device)[0]  # before the order of sums in backward can make a difference
    assert losses(host) == pytest.approx(losses(device), rel=1e-2)


@pytest.mark.parametrize(
    ("network", "precision"), [("resnet18", "bf16"), ("resnet18", "fp32"), ("mobilenetv3_small_050", "fp32")]
)
def test_deterministic_runs_have_the_same_bits(tiny, network, precision):
    options = {"device": "cuda", "width": 16, "network": network, "precision": precision, "deterministic": True}
    one, two = (tiny.train(name, **options).run for name in ("one", "two"))
    assert one.metrics()[0]["runtime"].count("deterministic") == 1
    assert one.encoder_file.read_bytes() == two.encoder_file.read_bytes()
    assert not tiny.train("parts", should_stop=stop_after(3), **options).complete
    assert tiny.train("parts", **options).run.encoder_file.read_bytes() == one.encoder_file.read_bytes()
