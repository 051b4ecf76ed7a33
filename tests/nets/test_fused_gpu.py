"""Training kernels on a GPU: about as close to float64 as plain PyTorch is."""

import copy
import ctypes

import pytest
import torch
import torch.nn.functional as F
from checks import as_if_trained, check_contrast, check_pools
from torch import Tensor

from aag import kernels
from aag.nets import Encoder, EncoderSpec, build
from aag.training.memsets import REPLACE_MEMSETS_VARIABLE, replace_memsets
from aag.training.optimizers import LARS, SGD, Optimizer

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

PRECISIONS = (torch.bfloat16, torch.float32)
MOMENTUM, DECAY, LR = 0.9, 0.01, 1e-4


def make_encoder(network: str, bn_group_size: int = 0) -> Encoder:
    encoder = build(EncoderSpec(network, bn_group_size=bn_group_size), seed=1)
    as_if_trained(encoder)
    return encoder.cuda().to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def run(
    encoder: Encoder, images: Tensor, way: str, dtype: torch.dtype, steps: int = 0, rule: str = "sgd"
) -> dict[str, Tensor]:
    """Return embeddings, statistics, and gradients after one pass or weights and velocities after `steps`.

    `way`: kernels, plain, or exact for plain PyTorch in float64. All numbers of a kind are one row.
    """
    from aag.nets.fused import FusedEncoder

    encoder = copy.deepcopy(encoder).to(torch.float64 if way == "exact" else torch.float32)
    weights = dict(encoder.named_parameters())
    optimizer: Optimizer = SGD(weights, MOMENTUM, DECAY, nesterov=rule == "nesterov")
    if rule == "lars":
        optimizer = LARS(weights, MOMENTUM, DECAY)
    optimizer.lr.fill_(LR)
    fused = FusedEncoder(encoder, dtype, optimizer if steps else None) if way == "kernels" else None
    mixed = way != "exact" and dtype == torch.bfloat16
    for _ in range(max(1, steps)):
        optimizer.zero_grad()
        with fused or kernels.disabled(), torch.autocast("cuda", torch.bfloat16, enabled=mixed):
            embedding = encoder(images)[1]
        random = torch.Generator().manual_seed(3)
        (embedding.double() * torch.randn(embedding.shape, generator=random).double().cuda()).sum().backward()
        if steps:
            if fused:
                fused.join()
            optimizer.step()
    found = {
        "embedding": [embedding],
        "statistics": [value for name, value in encoder.named_buffers() if "running" in name],
    }
    if steps:
        found["weights"] = list(encoder.parameters())
        for name, vectors in (("velocities of layers", False), ("velocities of vectors", True)):
            found[name] = [value for weight, value in optimizer.velocity.items() if (weight.ndim == 1) is vectors]
    else:
        found |= {"gradients": [weight.grad for weight in encoder.parameters()]}  # type: ignore[list-item]
    return {name: torch.cat([value.detach().double().flatten() for value in some]) for name, some in found.items()}


def assert_as_near(encoder: Encoder, images: Tensor, dtype: torch.dtype, steps: int = 0, rule: str = "sgd") -> None:
    ours, plain, exact = (run(encoder, images, way, dtype, steps, rule) for way in ("kernels", "plain", "exact"))
    for name, expected in exact.items():
        error, reference = ((found[name] - expected).norm() / expected.norm() for found in (ours, plain))
        assert error <= 3 * reference + 1e-5, f"{name}: {error:.2e}, in plain PyTorch {reference:.2e}"


@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
@pytest.mark.parametrize(
    "network", ["resnet18", "resnet50", "alexnet", "alexnet-ip", "resnet18-edges", "resnet18+sobel"]
)
def test_networks_compute_what_plain_layers_compute(photographs, network, dtype):
    assert_as_near(make_encoder(network), photographs[:32].cuda(), dtype)


@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
@pytest.mark.parametrize("network", ["resnet18", "resnet50", "alexnet"])
def test_groups_are_normalised_as_plain_layers_do(photographs, network, dtype):
    assert_as_near(make_encoder(network, bn_group_size=16), photographs[:64].cuda(), dtype)


@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
def test_images_of_odd_sizes(photographs, dtype):
    assert_as_near(make_encoder("resnet18"), photographs[:37, :, :27, 2:].contiguous().cuda(), dtype)
    assert_as_near(make_encoder("resnet18", bn_group_size=9), photographs[:36, :, :27, 2:].contiguous().cuda(), dtype)


@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
@pytest.mark.parametrize("network", ["resnet18", "alexnet", "resnet18+sobel"])
@pytest.mark.parametrize("rule", ["sgd", "nesterov", "lars"])
def test_learning_steps_as_the_optimizer_does(photographs, network, rule, dtype):
    """From the second of three steps on, the weights are those that the side stream updated before."""
    assert_as_near(make_encoder(network), photographs[:64].cuda(), dtype, steps=3, rule=rule)


@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
@pytest.mark.parametrize(("size", "steps"), [(32, 0), (29, 0), (32, 3)])
def test_whole_bottlenecks_compute_what_plain_layers_compute(photographs, monkeypatch, dtype, size, steps):
    from aag.nets import bottlenecks

    monkeypatch.setattr(bottlenecks, "ROWS_PER_INPUT", 0)
    assert_as_near(make_encoder("resnet50"), photographs[:64, :, :size, :size].cuda(), dtype, steps)


@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
@pytest.mark.parametrize("network", ["resnet18", "alexnet"])
def test_learning_in_groups_as_the_optimizer_does(photographs, network, dtype):
    assert_as_near(make_encoder(network, bn_group_size=16), photographs[:64].cuda(), dtype, steps=3)


@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
@pytest.mark.parametrize("loss", ["gnt-xent", "nt-xent"])
@pytest.mark.parametrize(("views", "n"), [(2, 128), (3, 128), (3, 100), (3, 2), (3, 600)])
def test_contrast_is_algorithm_1(views, n, loss, dtype):
    check_contrast(views, n, 128, 0.1, loss, dtype, "cuda")


@pytest.mark.parametrize("one_way", [False, True])
@pytest.mark.parametrize(("views", "n"), [(4, 128), (6, 64)])
def test_contrast_of_several_auxiliary_views(views, n, one_way):
    check_contrast(views, n, 128, 0.1, "gnt-xent", torch.float32, "cuda", one_way=one_way, auxiliary_weight=0.6)


@pytest.mark.parametrize("dtype", PRECISIONS, ids=str)
@pytest.mark.parametrize("shape", [(32, 64, 32, 32), (5, 192, 13, 9), (3, 16, 2, 3)], ids=str)
def test_pools_are_the_librarys(shape, dtype):
    check_pools(shape, dtype, "cuda")


# --- graphs ----------------------------------------------------------------------------------------------------------


def test_memsets_of_zeros_become_copies(monkeypatch):
    """Not those of other bytes, nor those longer than the buffer of zeros."""
    monkeypatch.setenv(REPLACE_MEMSETS_VARIABLE, "1")  # versions are listed as tested once these tests pass
    driver = ctypes.CDLL("libcuda.so.1")

    def fill(tensor: Tensor, value: int, count: int) -> None:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        to = ctypes.c_uint64(tensor.data_ptr())
        assert driver.cuMemsetD8Async(to, ctypes.c_ubyte(value), ctypes.c_size_t(count), stream) == 0

    x = torch.arange(1000, device="cuda").int() + 1
    y, long = torch.empty_like(x), torch.empty(4096, dtype=torch.uint8, device="cuda")
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        y.copy_(x)
        fill(y, 0, 400)
        y.add_(1)
        fill(y[900:], 0, 40)
        y.mul_(2)
        fill(y[500:], 1, 4)
        fill(long, 0, 4096)
    zeros = torch.zeros(1024, dtype=torch.uint8, device="cuda")
    assert replace_memsets(graph, zeros) == 2
    graph.instantiate()

    expected = x.clone()
    expected[:100] = 0
    expected += 1
    expected[900:910] = 0
    expected *= 2
    expected[500] = 0x01010101
    for _ in range(2):
        y.fill_(9)
        long.fill_(9)
        graph.replay()
        assert torch.equal(y, expected)
        assert not long.any()


def test_a_graph_of_convolutions_computes_the_same_without_memsets(monkeypatch):
    monkeypatch.setenv(REPLACE_MEMSETS_VARIABLE, "1")
    random = torch.Generator().manual_seed(7)
    x, weight, second = (
        (0.1 * torch.randn(shape, generator=random)).to("cuda", torch.bfloat16).to(memory_format=torch.channels_last)
        for shape in ((64, 64, 16, 16), (128, 64, 3, 3), (128, 128, 3, 3))
    )
    inputs = [value.requires_grad_() for value in (x, weight, second)]

    def both_ways() -> tuple[Tensor, ...]:
        y = F.conv2d(F.conv2d(x, weight, stride=2, padding=1), second, padding=1)
        return y, *torch.autograd.grad(y, inputs, torch.ones_like(y))

    # Clones, as a live autograd graph would tie the leaves to its stream.
    expected = [value.detach().clone() for value in both_ways()]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            both_ways()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        found = both_ways()
    zeros = torch.zeros(2**20, dtype=torch.uint8, device="cuda")
    assert replace_memsets(graph, zeros) >= 0
    graph.instantiate()
    for _ in range(2):
        for value in found:
            value.detach().fill_(torch.nan)
        graph.replay()
        for mine, reference in zip(found, expected, strict=True):
            assert (mine - reference).float().norm() < 1e-2 * reference.float().norm()
