"""Training's kernels by Triton's interpreter, against plain PyTorch: run by test_fused.py with TRITON_INTERPRET=1.

Layers of batch norm amplify the last bits of a float, so what is asked for is this: from plain PyTorch in float64, the
kernels must be no further away than plain PyTorch in float32 is, but for a factor.
"""

import contextlib
import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from weights import as_if_trained

from aag import AAGError, kernels
from aag.augment import BasicAugment
from aag.methods.aag import AAG
from aag.nets import Encoder, EncoderSpec, build, products
from aag.nets import fused as fused_module
from aag.nets.alexnet import AlexNet
from aag.nets.fused import Fused
from aag.nets.heads import linear_head, mlp_head
from aag.nets.layers import use_ghost_batch_norm
from aag.nets.resnet import BasicBlock, Bottleneck, ResNet
from aag.training.optimizers import LARS, SGD, Optimizer

NETWORKS: dict[str, tuple[Callable[[], AlexNet | ResNet], int, int]] = {  # backbone, size and number of images
    "resnet18 of 16": (lambda: ResNet(BasicBlock, (2, 2, 2, 2), 16), 16, 4),
    "resnet18 of 13": (lambda: ResNet(BasicBlock, (2, 2, 2, 2), 16), 13, 5),
    "basic blocks": (lambda: ResNet(BasicBlock, (2, 1), 16), 9, 4),
    "few pixels": (lambda: ResNet(BasicBlock, (1,), 16), 5, 4),
    "bottlenecks": (lambda: ResNet(Bottleneck, (2, 1), 16), 11, 6),  # a block of each kind: sixteen would take long
    "alexnet": (lambda: AlexNet((16, 48, 32, 64, 16), (64, 32), 17), 17, 6),
}


def network(name: str, photographs: Tensor, lots: int = 0, lot: int = 0) -> tuple[Encoder, Tensor]:
    """An encoder and images; where that is given, so many lots of so many images for batch norm."""
    make, size, count = NETWORKS[name]
    torch.manual_seed(1)
    encoder = build(EncoderSpec("resnet18", width=16))
    encoder.backbone = backbone = make()
    encoder.head = (mlp_head if name == "bottlenecks" else linear_head)(backbone.feature_dim, 24)
    as_if_trained(encoder)
    if lots:
        use_ghost_batch_norm(encoder, lot)
        count = lots * lot
    return encoder.to(memory_format=torch.channels_last), photographs[:count, :, 3 : 3 + size, 7 : 7 + size]


@pytest.fixture
def small_tiles(monkeypatch):
    """Several programs for each lot of a few small images, and several tiles for most of them."""
    for name, warps, programs in (("FEW", 16, 1), ("MANY", 8, 2)):
        for module in (fused_module, products):
            monkeypatch.setattr(module, name, (2048, warps, programs))


def fused_of(encoder: Encoder, optimizer: Optimizer | None = None) -> Fused:
    fused = Fused(encoder, torch.float32, optimizer)
    fused.processors = 7  # several for a lot, and not as many to sum up as to normalise
    return fused


def objective(embedding: Tensor) -> Tensor:
    """Some function of the embeddings, with a gradient of another size everywhere."""
    random = torch.Generator().manual_seed(3)
    return (embedding * torch.randn(embedding.shape, generator=random).to(embedding.dtype)).sum()


def plainly(encoder: Encoder, images: Tensor, dtype: torch.dtype) -> tuple[Encoder, Tensor]:
    """A copy of the encoder after plain forward and backward passes, and its embeddings."""
    encoder = copy.deepcopy(encoder).to(dtype)
    with kernels.disabled():
        embedding = encoder(images)[1]
        objective(embedding).backward()
    return encoder, embedding.detach()


def statistics(encoder: Encoder) -> dict[str, Tensor]:
    return {name: value for name, value in encoder.state_dict().items() if "running" in name}


def assert_as_near(found: dict[str, Tensor], plain: dict[str, Tensor], exact: dict[str, Tensor]) -> None:
    assert found.keys() == plain.keys() == exact.keys()
    for name, expected in exact.items():
        error, usual = ((value[name].double() - expected).norm() for value in (found, plain))
        allowed = 3 * usual + 1e-5 * expected.norm() + 1e-12
        assert error <= allowed, f"{name}: {error:.2e} of {expected.norm():.2e}; in plain PyTorch {usual:.2e}"


# --- networks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["resnet18 of 16", "resnet18 of 13", "bottlenecks", "alexnet"])
def test_network_computes_what_plain_layers_compute(photographs, name):
    encoder, images = network(name, photographs)
    compare_with_plain_layers(encoder, images, Fused(encoder, torch.float32))


def test_network_of_edges_computes_what_plain_layers_compute(photographs):
    encoder, images = network("basic blocks", photographs)
    encoder.spec = replace(encoder.spec, network="resnet18-edges")
    compare_with_plain_layers(encoder, images, Fused(encoder, torch.float32))


@pytest.mark.parametrize(
    ("name", "lots", "lot"),
    [("basic blocks", 2, 2), ("basic blocks", 1, 4), ("few pixels", 33, 2), ("bottlenecks", 2, 4), ("alexnet", 2, 5)],
)
def test_network_treats_lots_apart_as_plain_layers_do(photographs, small_tiles, name, lots, lot):
    """Thirty-three are more than one look at their sums covers."""
    encoder, images = network(name, photographs, lots, lot)
    compare_with_plain_layers(encoder, images, fused_of(encoder))


def test_network_refuses_a_pass_that_cannot_be_divided(photographs):
    encoder, images = network("basic blocks", photographs, 2, 3)
    for way in (Fused(encoder, torch.float32), kernels.disabled()):
        with pytest.raises(AAGError, match="a pass of 5 images cannot be divided into lots of 3 for batch norm"), way:
            encoder(images[:5])


def compare_with_plain_layers(encoder: Encoder, images: Tensor, fused: Fused) -> None:
    ways = [plainly(encoder, images, dtype) for dtype in (torch.float32, torch.float64)]
    with fused:
        embedding = encoder(images)[1]
    objective(embedding).backward()
    ways.insert(0, (encoder, embedding.detach()))
    gradients = [{name: weight.grad for name, weight in way.named_parameters()} for way, _ in ways]
    assert all(gradient.dtype == torch.float32 for gradient in gradients[0].values())
    assert_as_near(*({"embedding": found} for _, found in ways))
    assert_as_near(*gradients)
    assert_as_near(*(statistics(way) for way, _ in ways))
    counts = [count for name, count in encoder.named_buffers() if "num_batches" in name]
    assert set(map(int, counts)) == {8}


def test_network_takes_part_of_its_gradients(photographs):
    """Where nothing asks for a gradient, there is none to compute; where only the features count, the head has none."""
    encoder, images = network("basic blocks", photographs)
    encoder.requires_grad_(False)
    encoder.head.requires_grad_(True)
    fused = Fused(encoder, torch.float32)
    with fused:
        objective(encoder(images)[1]).backward()
    assert all((weight.grad is None) is name.startswith("backbone") for name, weight in encoder.named_parameters())
    encoder.requires_grad_(True)
    encoder.zero_grad()
    with fused:
        objective(encoder(images)[0]).backward()
    assert all((weight.grad is None) is name.startswith("head") for name, weight in encoder.named_parameters())


def test_network_is_plain_again_outside(photographs):
    encoder, images = network("basic blocks", photographs)
    other = copy.deepcopy(encoder)
    fused = Fused(encoder, torch.float32)
    with kernels.disabled():
        with fused:
            encoder(images[:2])
        encoder.load_state_dict(other.state_dict())
        assert torch.equal(encoder(images)[1], other(images)[1])


def test_network_sees_weights_changed_from_outside(photographs):
    encoder, images = network("basic blocks", photographs)
    before = plainly(encoder, images, torch.float32)[1]
    fused = Fused(encoder, torch.float32)
    with torch.no_grad():
        for weight in encoder.parameters():
            weight.copy_(weight.flip(0))
    fused.refresh()
    expected = plainly(encoder, images, torch.float32)[1]
    assert not torch.allclose(expected, before, rtol=0.1, atol=0.1)
    with fused:
        assert torch.allclose(encoder(images)[1], expected, rtol=1e-4, atol=1e-4)


# --- learning --------------------------------------------------------------------------------------------------------

MOMENTUM, DECAY = 0.9, 0.2


def optimizer_of(encoder: Encoder, rule: str = "sgd") -> Optimizer:
    """One that has made steps before, of about the size of the next."""
    weights = dict(encoder.named_parameters())
    optimizer: Optimizer
    if rule == "lars":
        optimizer, lr, size = LARS(weights, MOMENTUM, DECAY), 0.1, 1e-4
    else:
        optimizer, lr, size = SGD(weights, MOMENTUM, DECAY, nesterov=rule == "nesterov"), 0.003, 1.0
    assert optimizer.fused_rule == rule
    optimizer.lr.fill_(lr)
    random = torch.Generator().manual_seed(4)
    for velocity in optimizer.velocity.values():
        velocity.copy_(size * torch.randn(velocity.shape, generator=random))
    return optimizer


def learnt(encoder: Encoder, optimizer: Optimizer) -> dict[str, Tensor]:
    weights = dict(encoder.named_parameters())
    velocities = {f"velocity of {name}": optimizer.velocity[weight] for name, weight in weights.items()}
    return {name: value.detach().clone() for name, value in {**weights, **velocities}.items()}


@pytest.mark.parametrize(("name", "steps"), [("basic blocks", 2), ("bottlenecks", 1), ("alexnet", 1)])
def test_learning_steps_as_the_optimizer_does(photographs, name, steps):
    """A second step also needs what the first left for it."""
    compare_steps(*network(name, photographs), steps)


@pytest.mark.parametrize("rule", ["nesterov", "lars"])
@pytest.mark.parametrize("name", ["basic blocks", "alexnet"])
def test_learning_steps_by_other_rules_as_the_optimizer_does(photographs, monkeypatch, name, rule):
    monkeypatch.setattr(fused_module, "SHARES", 2)  # programs that have several tiles each
    compare_steps(*network(name, photographs), steps=2, rule=rule)


def test_learning_moves_weights_of_zeros_by_lars(photographs):
    encoder, images = network("basic blocks", photographs)
    nn.init.zeros_(encoder.head.weight)
    compare_steps(encoder, images, steps=2, rule="lars")


@pytest.mark.parametrize(("name", "steps", "lot"), [("basic blocks", 2, 2), ("bottlenecks", 1, 4), ("alexnet", 1, 5)])
def test_learning_steps_of_lots_as_the_optimizer_does(photographs, small_tiles, name, steps, lot):
    compare_steps(*network(name, photographs, 2, lot), steps)


def compare_steps(encoder: Encoder, images: Tensor, steps: int, rule: str = "sgd") -> None:
    after = []
    for way in ("kernels", "plain", "exact"):
        copied = copy.deepcopy(encoder).to(torch.float64 if way == "exact" else torch.float32)
        optimizer = optimizer_of(copied, rule)
        fused = fused_of(copied, optimizer) if way == "kernels" else None
        for _ in range(steps):
            optimizer.zero_grad()
            with fused or kernels.disabled():
                loss = objective(copied(images)[1])
            loss.backward()
            if fused:
                fused.join()
                taken = [module.weight for module in copied.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
                assert all(weight.grad is None for weight in taken)
            optimizer.step()
        after.append(learnt(copied, optimizer))
    assert_as_near(*after)


@pytest.mark.parametrize("name", ["basic blocks", "alexnet"])
def test_learning_can_be_left_out(photographs, name):
    encoder, images = network(name, photographs)
    optimizer = optimizer_of(encoder)
    before = learnt(encoder, optimizer)
    fused = Fused(encoder, torch.float32, optimizer)
    fused.learning = False
    with fused:
        loss = objective(encoder(images)[1])
    loss.backward()
    fused.join()
    for name, value in learnt(encoder, optimizer).items():
        assert torch.equal(value, before[name]), name


# --- the rest --------------------------------------------------------------------------------------------------------


def compared(work, reference, *given: Tensor, **tolerance: float) -> None:
    """Results, and gradients with respect to what was given."""
    assert kernels.enabled(given[0])
    found = []
    for way in (work, reference):
        inputs = [value.detach().clone().requires_grad_() for value in given]
        result = way(*inputs)
        random = torch.Generator().manual_seed(5)
        result.backward(torch.randn(result.shape, generator=random).to(result.dtype))
        found.append([result.detach(), *(value.grad for value in inputs)])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, **tolerance)


@pytest.mark.parametrize("shape", [(2, 16, 8, 8), (3, 48, 7, 5), (1, 64, 2, 3), (5, 192, 4, 4)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_pool_is_the_librarys(shape, dtype):
    from aag.kernels.pool import max_pool, mean_pool

    random = torch.Generator().manual_seed(6)
    lowest = -2 if dtype == torch.float32 else 0  # the interpreter orders bfloat16 by its bits
    ties = torch.randint(lowest, 3, shape, generator=random).to(dtype).to(memory_format=torch.channels_last)
    compared(max_pool, lambda x: F.max_pool2d(x, 2), ties, rtol=0, atol=0)
    small = {} if dtype == torch.float32 else {"rtol": 1e-2, "atol": 1e-2}
    x = torch.randn(shape, generator=random).to(dtype)  # not channels last
    x = x if dtype == torch.float32 else x.abs()
    compared(max_pool, lambda x: F.max_pool2d(x, 2), x, rtol=0, atol=0)
    compared(mean_pool, lambda x: x.mean(dim=(2, 3)), x, **small)
    compared(mean_pool, lambda x: x.mean(dim=(2, 3)), ties, **small)


@pytest.mark.parametrize("channels", [16, 80])
def test_turned_weights_take_gradients_back(channels):
    from aag.kernels.turn import turn

    random = torch.Generator().manual_seed(7)
    weight = torch.randn(channels, channels, 3, 3, generator=random).to(memory_format=torch.channels_last)
    turned = torch.empty_like(weight)
    blocks = -(-channels // 64)
    kernels.launch(turn, (blocks, blocks, 9), weight, turned, channels, TAPS=9, BLOCK=64, num_warps=4)
    assert torch.equal(turned, weight.flip(2, 3).transpose(0, 1))
    grad = torch.randn(2, channels, 5, 4, generator=random)
    back = torch.nn.grad.conv2d_input(grad.shape, weight, grad, padding=1)
    torch.testing.assert_close(F.conv2d(grad, turned, padding=1), back, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("keep_positive", [False, True], ids=["GNT-Xent", "NT-Xent"])
@pytest.mark.parametrize(
    ("views", "n", "width", "temperature"), [(2, 5, 24, 0.1), (3, 6, 24, 0.1), (3, 2, 16, 0.5), (3, 11, 40, 0.02)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_contrast_is_algorithm_1(dtype, views, n, width, temperature, keep_positive):
    method = AAG([BasicAugment()] * views, temperature, keep_positive)
    random = torch.Generator().manual_seed(8)
    centres = torch.randn(n, width, generator=random).repeat(views, 1)
    given = (centres + torch.randn(views * n, width, generator=random)) * torch.rand(views * n, 1, generator=random)
    found = []
    for kind in (dtype, torch.float64):
        v = given.to(dtype).to(kind).detach().requires_grad_()
        with kernels.disabled() if kind == torch.float64 else contextlib.nullcontext():
            loss, log, _ = method.loss(v.split(n), torch.arange(n))
        (0.37 * loss).backward()
        found.append({"loss": loss.detach(), **dict(zip(method.logs, log, strict=True)), "gradient": v.grad})
    ours, exact = found
    assert ours.keys() == exact.keys()
    assert len(exact) == {2: 7, 3: 9}[views]
    assert ours["gradient"].dtype == dtype
    for name, expected in exact.items():
        near = 1e-2 if name == "gradient" and dtype == torch.bfloat16 else 1e-5
        size = max(expected.norm().item(), 1 / temperature if "loss" in name else 0)  # a loss is a difference of such
        error = (ours[name].double() - expected).norm()
        assert error < near * size + 1e-6, f"{name}: {ours[name]} is not {expected}"


def test_contrast_of_two_views_has_no_other_terms():
    from aag.kernels.contrast import contrast

    loss, numbers = contrast(torch.randn(10, 16), 2, temperature=0.1, keep_positive=False)
    assert numbers.shape == (8,)
    assert loss == numbers[0] == numbers[5]
    assert not numbers[6:].any()
    assert numbers[3] == -1  # GNT-Xent's pull
