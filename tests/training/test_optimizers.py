"""SGD and Adam are torch.optim's, LARS is a slow loop's."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from aag import AAGError
from aag.settings import TrainSettings
from aag.training.optimizers import LARS, SGD, Adam, Optimizer, build_optimizer

SHAPES = {"conv": (8, 3, 3, 3), "linear": (4, 6), "bias": (5,), "scale": ()}


def weights() -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(1)
    return {name: torch.randn(shape, generator=random) for name, shape in SHAPES.items()}


def step_both(optimizer: Optimizer, expected: Any, ours: dict, others: dict, random: torch.Generator) -> None:
    """Step ours and torch's optimizer by the same gradients, and check that they give the same weights."""
    for name, own in ours.items():
        own.grad = torch.randn(own.shape, generator=random)
        others[name].grad = own.grad.clone()
    optimizer.step()
    expected.step()
    for name, own in ours.items():
        torch.testing.assert_close(own, others[name])


@pytest.mark.parametrize(
    ("make", "theirs"),
    [
        (lambda w: SGD(w, 0.9, 5e-4), lambda w: torch.optim.SGD(w, 1.0, 0.9, weight_decay=5e-4)),
        (lambda w: SGD(w, 0.5, 0.0), lambda w: torch.optim.SGD(w, 1.0, 0.5)),
        (lambda w: SGD(w, 0.0, 0.1, nesterov=True), lambda w: torch.optim.SGD(w, 1.0, 0.0, weight_decay=0.1)),
        (
            lambda w: SGD(w, 0.9, 0.1, nesterov=True),
            lambda w: torch.optim.SGD(w, 1.0, 0.9, weight_decay=0.1, nesterov=True),
        ),
        (lambda w: Adam(w, 0.8, 0.0), lambda w: torch.optim.Adam(w, 1.0, betas=(0.8, 0.999))),
        (lambda w: Adam(w, 0.9, 0.1), lambda w: torch.optim.Adam(w, 1.0, weight_decay=0.1)),
    ],
)
def test_steps_are_those_of_torch(make: Callable[[dict[str, Tensor]], Optimizer], theirs):
    ours, others = weights(), weights()
    optimizer, expected = make(ours), theirs(list(others.values()))
    random = torch.Generator().manual_seed(2)
    for lr in (0.3, 0.3, 0.0, 0.01):
        optimizer.lr.fill_(lr)
        expected.param_groups[0]["lr"] = lr
        step_both(optimizer, expected, ours, others, random)
        for name, own in ours.items():
            state = expected.state[others[name]]
            velocity = state.get("momentum_buffer", state.get("exp_avg"))
            torch.testing.assert_close(optimizer.velocity[own], torch.zeros_like(own) if velocity is None else velocity)


def test_parameters_may_have_a_momentum_of_their_own():
    ours, others = weights(), weights()
    optimizer = build_optimizer(TrainSettings(), ours, {ours["bias"]: 0.0})
    groups = [
        {"params": [others[name] for name in SHAPES if name != "bias"]},
        {"params": [others["bias"]], "momentum": 0.0},
    ]
    expected = torch.optim.SGD(groups, 0.3, 0.9, weight_decay=5e-4)
    optimizer.lr.fill_(0.3)
    random = torch.Generator().manual_seed(2)
    for _ in range(3):
        step_both(optimizer, expected, ours, others, random)
    with pytest.raises(AAGError, match=r"--classifier-momentum\) needs --optimizer sgd, not adam"):
        build_optimizer(TrainSettings(optimizer="adam"), ours, {ours["bias"]: 0.0})


def test_lars_is_the_loop():
    """Also with norms below 1 of weights and gradients."""
    ours, expected = weights(), weights()
    for each in (ours, expected):
        each["linear"] *= 0.01
    velocity = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    optimizer = LARS(ours, 0.9, 0.01)
    random = torch.Generator().manual_seed(2)
    for lr in (0.5, 2.0, 1.0):
        optimizer.lr.fill_(lr)
        for name, own in ours.items():
            own.grad = torch.randn(own.shape, generator=random) * (0.01 if name == "linear" else 1)
            gradient, rate = own.grad.clone(), lr
            if name in ("conv", "linear"):
                gradient += 0.01 * expected[name]
                rate *= 0.001 * expected[name].norm() / gradient.norm()
            velocity[name] = 0.9 * velocity[name] + rate * gradient
            expected[name] = expected[name] - velocity[name]
        optimizer.step()
        for name, own in ours.items():
            torch.testing.assert_close(own, expected[name])


def test_lars_moves_weights_of_zeros():
    weight = torch.zeros(2, 2)
    optimizer = LARS({"w": weight}, 0.9, 0.0)
    optimizer.lr.fill_(0.5)
    weight.grad = torch.ones(2, 2)
    optimizer.step()
    assert torch.equal(weight, torch.full((2, 2), -0.5))


@pytest.mark.parametrize("kind", [SGD, LARS, Adam])
def test_weights_without_a_gradient_stay(kind: type[Optimizer]):
    used, idle = torch.ones(3), torch.ones(3)
    optimizer = kind({"used": used, "idle": idle}, 0.9, 0.1)
    optimizer.lr.fill_(0.5)
    optimizer.step()
    assert torch.equal(used, torch.ones(3))
    used.grad = torch.ones(3)
    optimizer.step()
    assert torch.equal(idle, torch.ones(3))
    assert not optimizer.velocity[idle].any()
    assert not torch.equal(used, torch.ones(3))
    optimizer.zero_grad()
    assert used.grad is None


@pytest.mark.parametrize("name", ["sgd", "lars", "adam"])
def test_a_step_changes_what_the_state_lists_and_a_reset_clears_it(name: str):
    weight, other = torch.ones(2, 2), torch.ones(2)
    optimizer = build_optimizer(TrainSettings(optimizer=name), {"w": weight, "o": other})
    optimizer.lr.fill_(0.1)
    before = {key: value.clone() for key, value in optimizer.state().items()}
    weight.grad, other.grad = torch.ones(2, 2), torch.ones(2)
    optimizer.step()
    assert all(not torch.equal(value, before[key]) for key, value in optimizer.state().items())
    optimizer.reset([weight])
    state = optimizer.state()
    assert not state["momentum.w"].any()
    assert state["momentum.o"].all()
