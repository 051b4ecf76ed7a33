"""Weight updates inside backward against the optimizers' own; test_fused.py runs this with TRITON_INTERPRET=1."""

import copy

import pytest
import torch
from small_networks import assert_as_near, make_fused, network, objective, use_small_tiles
from torch import Tensor, nn

from aag import AAGError, kernels
from aag.nets import Encoder, kernel_context
from aag.nets.fused import FusedEncoder
from aag.training.optimizers import LARS, SGD, Optimizer

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
    monkeypatch.setattr(kernel_context, "MAX_PARTS", 2)  # so that programs have several tiles each
    compare_steps(*network(name, photographs), steps=2, rule=rule)


def test_learning_updates_zero_weights_by_lars(photographs):
    encoder, images = network("basic blocks", photographs)
    nn.init.zeros_(encoder.head.weight)
    compare_steps(encoder, images, steps=2, rule="lars")


@pytest.mark.parametrize(("name", "steps", "size"), [("basic blocks", 2, 2), ("bottlenecks", 1, 4), ("alexnet", 1, 5)])
def test_learning_in_groups_as_the_optimizer_does(photographs, monkeypatch, name, steps, size):
    use_small_tiles(monkeypatch)
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
    fused = FusedEncoder(encoder, torch.float32, optimizer)
    fused.updates_weights = False
    with fused:
        loss = objective(encoder(images)[1])
    loss.backward()
    fused.join()
    for name, value in trained_state(encoder, optimizer).items():
        assert torch.equal(value, before[name]), name


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


def test_frozen_weights_need_fused_without_an_optimizer(photographs):
    encoder, _ = network("few pixels", photographs)
    optimizer = make_optimizer(encoder)
    encoder.head.requires_grad_(False)
    with pytest.raises(AAGError, match="frozen weights cannot be updated during backward"):
        FusedEncoder(encoder, torch.float32, optimizer)
