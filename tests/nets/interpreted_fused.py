"""Training kernels in Triton's interpreter against plain PyTorch; test_fused.py runs this with TRITON_INTERPRET=1.

Batch norm amplifies rounding errors. So the test is: the kernels' distance from plain PyTorch in float64 is at most a
small factor times that of plain PyTorch in float32.
"""

import contextlib
import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from checks import as_if_trained, check_contrast, check_pools
from torch import Tensor, nn

from aag import AAGError, kernels
from aag.nets import Encoder, EncoderSpec, build, convolutions, kernel_context, unsupported_reason
from aag.nets import fused as fused_module
from aag.nets.alexnet import AlexNet
from aag.nets.fused import Fused
from aag.nets.heads import mlp_head
from aag.nets.layers import ConvNorm, GhostBatchNorm2d, Linear, MaxPool, use_ghost_batch_norm
from aag.nets.resnet import BasicBlock, Bottleneck, ResNet
from aag.nets.sobel import SobelPair
from aag.training.optimizers import LARS, SGD, Optimizer


def pair() -> SobelPair:
    """Branches of different sizes, so that none can stand in for the other."""
    colours, edges = ResNet(BasicBlock, (1, 1), 16), ResNet(BasicBlock, (2,), 32)
    both = SobelPair(colours, edges)
    both.feature_dim = colours.feature_dim + edges.feature_dim
    return both


NETWORKS: dict[str, tuple[Callable[[], AlexNet | ResNet | SobelPair], int, int]] = {  # backbone, size, images
    "resnet18 of 16": (lambda: ResNet(BasicBlock, (2, 2, 2, 2), 16), 16, 4),
    "resnet18 of 13": (lambda: ResNet(BasicBlock, (2, 2, 2, 2), 16), 13, 5),
    "basic blocks": (lambda: ResNet(BasicBlock, (2, 1), 16), 9, 4),
    "few pixels": (lambda: ResNet(BasicBlock, (1,), 16), 5, 4),
    "bottlenecks": (lambda: ResNet(Bottleneck, (2, 1), 16), 11, 6),  # one block of each kind, as sixteen take long
    "pair": (pair, 9, 4),
    "alexnet": (lambda: AlexNet((16, 48, 32, 64, 16), (64, 32), 17), 17, 6),
}


def network(name: str, photographs: Tensor, groups: int = 0, group_size: int = 0) -> tuple[Encoder, Tensor]:
    """Return an encoder and images: `groups` of `group_size`, where ghost batch norm is wanted."""
    make, size, count = NETWORKS[name]
    torch.manual_seed(1)
    encoder = build(EncoderSpec("resnet18", width=16))
    encoder.backbone = backbone = make()
    encoder.head = (mlp_head if name == "bottlenecks" else Linear)(backbone.feature_dim, 24)
    as_if_trained(encoder)
    if groups:
        use_ghost_batch_norm(encoder, group_size)
        count = groups * group_size
    return encoder.to(memory_format=torch.channels_last), photographs[:count, :, 3 : 3 + size, 7 : 7 + size]


@pytest.fixture
def small_tiles(monkeypatch):
    """Run several programs per group of a few small images, most of them with several tiles."""
    for name, warps, programs in (("FEW", 16, 1), ("MANY", 8, 2)):
        for module in (fused_module, convolutions):
            monkeypatch.setattr(module, name, (2048, warps, programs))


def make_fused(encoder: Encoder, optimizer: Optimizer | None = None) -> Fused:
    fused = Fused(encoder, torch.float32, optimizer)
    fused.processors = 7  # several per group, and fewer to sum up than to normalise
    return fused


def objective(embedding: Tensor) -> Tensor:
    """A function of the embeddings whose gradient differs everywhere."""
    random = torch.Generator().manual_seed(3)
    return (embedding * torch.randn(embedding.shape, generator=random).to(embedding.dtype)).sum()


def run_plain(encoder: Encoder, images: Tensor, dtype: torch.dtype) -> tuple[Encoder, Tensor]:
    """Return a copy of the encoder after plain forward and backward passes, and its embeddings."""
    encoder = copy.deepcopy(encoder).to(dtype)
    with kernels.disabled():
        embedding = encoder(images)[1]
        objective(embedding).backward()
    return encoder, embedding.detach()


def running_statistics(encoder: Encoder) -> dict[str, Tensor]:
    return {name: value for name, value in encoder.state_dict().items() if "running" in name}


def assert_as_near(
    found: dict[str, Tensor], plain: dict[str, Tensor], exact: dict[str, Tensor], relative: float = 1e-5
) -> None:
    assert found.keys() == plain.keys() == exact.keys()
    for name, expected in exact.items():
        error, reference = ((value[name].double() - expected).norm() for value in (found, plain))
        allowed = 3 * reference + relative * expected.norm() + 1e-12
        assert error <= allowed, f"{name}: {error:.2e} of {expected.norm():.2e}; in plain PyTorch {reference:.2e}"


# --- networks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["resnet18 of 16", "resnet18 of 13", "bottlenecks", "pair", "alexnet"])
def test_network_computes_what_plain_layers_compute(photographs, name):
    encoder, images = network(name, photographs)
    compare_with_plain_layers(encoder, images, Fused(encoder, torch.float32))


def test_network_of_edges_computes_what_plain_layers_compute(photographs):
    encoder, images = network("basic blocks", photographs)
    encoder.spec = replace(encoder.spec, network="resnet18-edges")
    compare_with_plain_layers(encoder, images, Fused(encoder, torch.float32))


@pytest.mark.parametrize(
    ("name", "groups", "group_size"),
    [
        ("basic blocks", 2, 2),
        ("basic blocks", 1, 4),
        ("few pixels", 33, 2),
        ("bottlenecks", 2, 4),
        ("pair", 2, 2),
        ("alexnet", 2, 5),
    ],
)
def test_network_normalises_groups_as_plain_layers_do(photographs, small_tiles, name, groups, group_size):
    """33 groups are more than a kernel adds up at once."""
    encoder, images = network(name, photographs, groups, group_size)
    compare_with_plain_layers(encoder, images, make_fused(encoder))


def test_network_refuses_a_batch_that_groups_do_not_divide(photographs):
    encoder, images = network("basic blocks", photographs, 2, 3)
    for way in (Fused(encoder, torch.float32), kernels.disabled()):
        with (
            pytest.raises(AAGError, match="a batch of 5 images cannot be divided into groups of 3"),
            way,
        ):
            encoder(images[:5])


def compare_with_plain_layers(encoder: Encoder, images: Tensor, fused: Fused) -> None:
    results = [run_plain(encoder, images, dtype) for dtype in (torch.float32, torch.float64)]
    with fused:
        embedding = encoder(images)[1]
    objective(embedding).backward()
    results.insert(0, (encoder, embedding.detach()))
    gradients = [{name: weight.grad for name, weight in way.named_parameters()} for way, _ in results]
    assert all(gradient.dtype == torch.float32 for gradient in gradients[0].values())
    assert_as_near(*({"embedding": found} for _, found in results))
    assert_as_near(*gradients)
    assert_as_near(*(running_statistics(way) for way, _ in results))
    counts = [count for name, count in encoder.named_buffers() if "num_batches" in name]
    assert set(map(int, counts)) == {8}


def test_network_skips_gradients_that_are_not_needed(photographs):
    """Frozen weights get no gradient, nor does the head where only the features are used."""
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


def test_network_uses_changed_weights_after_a_refresh(photographs):
    encoder, images = network("basic blocks", photographs)
    before = run_plain(encoder, images, torch.float32)[1]
    fused = Fused(encoder, torch.float32)
    with torch.no_grad():
        for weight in encoder.parameters():
            weight.copy_(weight.flip(0))
    fused.refresh()
    expected = run_plain(encoder, images, torch.float32)[1]
    assert not torch.allclose(expected, before, rtol=0.1, atol=0.1)
    with fused:
        assert torch.allclose(encoder(images)[1], expected, rtol=1e-4, atol=1e-4)


# --- weight updates during backward ----------------------------------------------------------------------------------

MOMENTUM, DECAY = 0.9, 0.2


def make_optimizer(encoder: Encoder, rule: str = "sgd") -> Optimizer:
    """Return an optimizer with velocities of about the size of the next step."""
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


def trained_state(encoder: Encoder, optimizer: Optimizer) -> dict[str, Tensor]:
    weights = dict(encoder.named_parameters())
    velocities = {f"velocity of {name}": optimizer.velocity[weight] for name, weight in weights.items()}
    return {name: value.detach().clone() for name, value in {**weights, **velocities}.items()}


@pytest.mark.parametrize(("name", "steps"), [("basic blocks", 2), ("bottlenecks", 1), ("pair", 2), ("alexnet", 1)])
def test_learning_steps_as_the_optimizer_does(photographs, name, steps):
    """The second step also depends on what the first one stored."""
    compare_steps(*network(name, photographs), steps)


@pytest.mark.parametrize("rule", ["nesterov", "lars"])
@pytest.mark.parametrize("name", ["basic blocks", "alexnet"])
def test_learning_by_other_rules_as_the_optimizer_does(photographs, monkeypatch, name, rule):
    monkeypatch.setattr(kernel_context, "SHARES", 2)  # so that programs have several tiles each
    compare_steps(*network(name, photographs), steps=2, rule=rule)


def test_learning_updates_zero_weights_by_lars(photographs):
    encoder, images = network("basic blocks", photographs)
    nn.init.zeros_(encoder.head.weight)
    compare_steps(encoder, images, steps=2, rule="lars")


@pytest.mark.parametrize(("name", "steps", "size"), [("basic blocks", 2, 2), ("bottlenecks", 1, 4), ("alexnet", 1, 5)])
def test_learning_in_groups_as_the_optimizer_does(photographs, small_tiles, name, steps, size):
    compare_steps(*network(name, photographs, 2, size), steps)


def compare_steps(encoder: Encoder, images: Tensor, steps: int, rule: str = "sgd") -> None:
    after = []
    for way in ("kernels", "plain", "exact"):
        copied = copy.deepcopy(encoder).to(torch.float64 if way == "exact" else torch.float32)
        optimizer = make_optimizer(copied, rule)
        fused = make_fused(copied, optimizer) if way == "kernels" else None
        for _ in range(steps):
            optimizer.zero_grad()
            with fused or kernels.disabled():
                loss = objective(copied(images)[1])
            loss.backward()
            if fused:
                fused.join()
                updated = [module.weight for module in copied.modules() if isinstance(module, nn.Conv2d | nn.Linear)]
                assert all(weight.grad is None for weight in updated)
            optimizer.step()
        after.append(trained_state(copied, optimizer))
    assert_as_near(*after)


@pytest.mark.parametrize("name", ["basic blocks", "alexnet"])
def test_learning_can_be_switched_off(photographs, name):
    encoder, images = network(name, photographs)
    optimizer = make_optimizer(encoder)
    before = trained_state(encoder, optimizer)
    fused = Fused(encoder, torch.float32, optimizer)
    fused.learning = False
    with fused:
        loss = objective(encoder(images)[1])
    loss.backward()
    fused.join()
    for name, value in trained_state(encoder, optimizer).items():
        assert torch.equal(value, before[name]), name


# --- several passes, accumulation, frozen weights --------------------------------------------------------------------


def test_learning_refuses_a_second_pass_in_one_step(photographs):
    encoder, images = network("basic blocks", photographs)
    fused = make_fused(encoder, make_optimizer(encoder))
    for again in (lambda: encoder(images), lambda: encoder.head(torch.ones(2, encoder.head.in_features))):
        with fused:
            encoder(images)
            with torch.no_grad():
                encoder(images)  # a pass without gradients updates nothing
            with pytest.raises(AAGError, match="the encoder runs more than once per step"):
                again()


@pytest.mark.parametrize("name", ["basic blocks", "alexnet"])
@pytest.mark.parametrize("accumulate", [False, True], ids=["two passes", "accumulated"])
def test_gradients_of_several_passes_add_up(photographs, name, accumulate):
    encoder, images = network(name, photographs, 1, 8)
    for module in (encoder.head, encoder.backbone.stem[0] if name == "basic blocks" else encoder.backbone.hidden[1]):
        module.requires_grad_(False)  # frozen weights stay without a gradient
    results = []
    for dtype in ("kernels", torch.float32, torch.float64):
        copied = copy.deepcopy(encoder).to(torch.float32 if dtype == "kernels" else dtype)
        with make_fused(copied) if dtype == "kernels" else kernels.disabled():
            losses = []
            for part in (images, images.flip(0).flip(3)):
                losses.append(objective(copied(part)[1]))
                if accumulate:
                    losses.pop().backward()
            if losses:
                sum(losses).backward()
        assert all((weight.grad is None) is not weight.requires_grad for weight in copied.parameters())
        gradients = {name: weight.grad for name, weight in copied.named_parameters() if weight.requires_grad}
        results.append(gradients | running_statistics(copied))
    assert_as_near(*results, relative=1e-4)  # gradients of the two passes cancel in part


def test_frozen_weights_need_fused_without_an_optimizer(photographs):
    encoder, _ = network("few pixels", photographs)
    optimizer = make_optimizer(encoder)
    encoder.head.requires_grad_(False)
    with pytest.raises(AAGError, match="frozen weights cannot be updated during backward"):
        Fused(encoder, torch.float32, optimizer)


def test_network_takes_float_images_and_refuses_eval_mode(photographs):
    encoder, images = network("few pixels", photographs)
    fused = Fused(encoder, torch.float32)
    with fused:
        expected = encoder(images)[1]
        torch.testing.assert_close(encoder(images.float() / 255)[1], expected, rtol=1e-4, atol=1e-4)
    encoder.eval()
    with pytest.raises(AAGError, match="in training mode only"), fused:
        encoder(images)


# --- nothing that a user overrides is ignored ------------------------------------------------------------------------


FUSED_TYPES = {
    Encoder: "few pixels", ResNet: "few pixels", BasicBlock: "few pixels", ConvNorm: "few pixels",
    nn.Conv2d: "few pixels", nn.BatchNorm2d: "few pixels", GhostBatchNorm2d: "few pixels", Linear: "few pixels",
    SobelPair: "pair", AlexNet: "alexnet", MaxPool: "alexnet",
}  # fmt: skip


def bend(result: Tensor | tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
    """A nonlinear change, which a batch norm after it does not cancel."""
    return tuple(map(torch.tanh, result)) if isinstance(result, tuple) else torch.tanh(result)


def override(module: nn.Module, way: str) -> None:
    """Change what a module returns."""
    plain = module.forward
    if way == "subclass":
        kind = type(module)
        module.__class__ = type("Mine", (kind,), {"forward": lambda self, *x, **k: bend(kind.forward(self, *x, **k))})
    elif way == "instance":
        module.forward = lambda *x, **k: bend(plain(*x, **k))  # type: ignore[method-assign]
    else:
        module.register_forward_hook(lambda _, __, result: bend(result))


def run_where_supported(encoder: Encoder, images: Tensor) -> Tensor:
    """Run as training does: on kernels if they support the encoder, else on plain layers."""
    with contextlib.nullcontext() if unsupported_reason(encoder) else Fused(encoder, torch.float32):
        return encoder(images)[1].detach()


@pytest.mark.parametrize("way", ["subclass", "instance", "hook"])
@pytest.mark.parametrize("kind", FUSED_TYPES, ids=lambda kind: kind.__name__)
def test_overrides_are_not_bypassed(photographs, kind, way):
    groups = 2 if kind is GhostBatchNorm2d else 0
    encoder, images = network(FUSED_TYPES[kind], photographs, groups, groups)
    assert not unsupported_reason(encoder)
    with kernels.disabled():
        before = encoder(images)[1].detach()
        override([part for part in encoder.modules() if type(part) is kind][-1], way)
        expected = encoder(images)[1].detach()
    assert bool(unsupported_reason(encoder)) is ((kind, way) != (Encoder, "hook"))  # its own call is never bypassed
    torch.testing.assert_close(run_where_supported(encoder, images), expected, rtol=1e-3, atol=1e-3)
    assert not torch.allclose(before, expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("change", [{"stride": 1}, {"kernel_size": 3}, {"ceil_mode": True}], ids=str)
def test_pool_with_other_settings_is_not_bypassed(change):
    pool, x = MaxPool(), torch.randn(2, 16, 7, 7)
    for name, value in change.items():
        setattr(pool, name, value)
    with kernels.disabled():
        expected = pool(x)
    assert torch.equal(pool(x), expected)


# --- the rest --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(2, 16, 8, 8), (3, 48, 7, 5), (1, 64, 2, 3), (5, 192, 4, 4)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_pools_are_the_librarys(shape, dtype):
    check_pools(shape, dtype, "cpu", nonnegative=dtype == torch.bfloat16)  # the interpreter orders these by their bits


@pytest.mark.parametrize("channels", [16, 80])
def test_flipped_weights_compute_input_gradients(channels):
    from aag.kernels.flip import flip_weights

    random = torch.Generator().manual_seed(7)
    weight = torch.randn(channels, channels, 3, 3, generator=random).to(memory_format=torch.channels_last)
    flipped = torch.empty_like(weight)
    blocks = -(-channels // 64)
    kernels.launch(flip_weights, (blocks, blocks, 9), weight, flipped, channels, TAPS=9, BLOCK=64, num_warps=4)
    assert torch.equal(flipped, weight.flip(2, 3).transpose(0, 1))
    grad = torch.randn(2, channels, 5, 4, generator=random)
    back = torch.nn.grad.conv2d_input(grad.shape, weight, grad, padding=1)
    torch.testing.assert_close(F.conv2d(grad, flipped, padding=1), back, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("loss", ["gnt-xent", "nt-xent"])
@pytest.mark.parametrize(
    ("views", "n", "width", "temperature"), [(2, 5, 24, 0.1), (3, 6, 24, 0.1), (3, 2, 16, 0.5), (3, 11, 40, 0.02)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_contrast_is_algorithm_1(dtype, views, n, width, temperature, loss):
    check_contrast(views, n, width, temperature, loss, dtype, "cpu")


@pytest.mark.parametrize("loss", ["gnt-xent", "nt-xent"])
@pytest.mark.parametrize("one_way", [False, True])
@pytest.mark.parametrize(("views", "n"), [(3, 5), (4, 6), (6, 3)])
def test_contrast_of_several_auxiliary_views(views, n, one_way, loss):
    check_contrast(views, n, 24, 0.1, loss, torch.float32, "cpu", one_way=one_way, auxiliary_weight=0.6)


def test_contrast_of_two_views_has_no_auxiliary_terms():
    from aag.kernels.contrast import contrast

    loss, numbers = contrast(torch.randn(10, 16), 2, temperature=0.1, keep_positive=False)
    assert numbers.shape == (8,)
    assert loss == numbers[0] == numbers[5]
    assert not numbers[6:].any()
    assert numbers[3] == -1  # GNT-Xent's pull


@pytest.mark.parametrize("exponent", [-60, 70])  # their squares are no float32
def test_contrast_does_not_depend_on_the_size_of_embeddings(exponent):
    from aag.kernels.contrast import contrast

    random = torch.Generator().manual_seed(9)
    given = torch.randn(12, 16, generator=random)
    plain, scaled = given.clone().requires_grad_(), (given * 2.0**exponent).requires_grad_()
    losses = [contrast(v, 3, temperature=0.1, keep_positive=False)[0] for v in (plain, scaled)]
    assert losses[0] == losses[1]
    for loss in losses:
        loss.backward()
    torch.testing.assert_close(scaled.grad * 2.0**exponent, plain.grad)
    zeros = torch.zeros(12, 16, requires_grad=True)
    contrast(zeros, 3, temperature=0.1, keep_positive=False)[0].backward()
    assert zeros.grad.isfinite().all()
