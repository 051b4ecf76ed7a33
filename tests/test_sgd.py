"""SGD is torch.optim.SGD."""

import pytest
import torch

from aag.sgd import SGD


@pytest.mark.parametrize(("momentum", "weight_decay"), [(0.9, 5e-4), (0.9, 0.0), (0.5, 0.1)])
def test_steps_are_those_of_torch(momentum, weight_decay):
    random = torch.Generator().manual_seed(0)
    shapes = [(8, 3, 3, 3), (5,), ()]
    ours, theirs = ([torch.randn(shape, generator=random.manual_seed(1)) for shape in shapes] for _ in range(2))
    optimizer = SGD(ours, momentum, weight_decay)
    expected = torch.optim.SGD(theirs, 1.0, momentum, weight_decay=weight_decay)
    for step, lr in enumerate((0.3, 0.3, 0.0, 0.01)):
        optimizer.lr.fill_(lr)
        expected.param_groups[0]["lr"] = lr
        for own, other in zip(ours, theirs, strict=True):
            own.grad = torch.randn(own.shape, generator=random.manual_seed(10 + step))
            other.grad = own.grad.clone()
        optimizer.step()
        expected.step()
        for own, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(own, other)
            torch.testing.assert_close(optimizer.velocity[own], expected.state[other]["momentum_buffer"])


def test_weights_without_a_gradient_stay():
    used, idle = torch.ones(3), torch.ones(3)
    optimizer = SGD([used, idle], 0.9, 0.1)
    optimizer.lr.fill_(0.5)
    optimizer.step()
    assert torch.equal(used, torch.ones(3))
    used.grad = torch.ones(3)
    optimizer.step()
    assert torch.equal(idle, torch.ones(3))
    assert not optimizer.velocity[idle].any()
    torch.testing.assert_close(used, torch.full((3,), 1 - 0.5 * 1.1))
    optimizer.zero_grad()
    assert used.grad is None
