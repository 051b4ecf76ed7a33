"""The linear probe against nn.Linear, autograd and torch.optim.Adam."""

import math

import pytest
import torch
import torch.nn.functional as F

from aag.errors import AAGError
from aag.evaluate import linear, linear_probe, linear_protocol


def problem(n: int, seed: int, classes: int = 4, width: int = 12, spread: float = 2.0):
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, width, generator=torch.Generator().manual_seed(99))
    labels = torch.randint(classes, (n,), generator=generator)
    return centres[labels] + spread * torch.randn(n, width, generator=generator), labels


def slow_probe(train, train_labels, test, test_labels, *, epochs, batch_size, lr, weight_decay, seed):
    """The protocol in plain PyTorch, with the probe's order of random draws."""
    generator = torch.Generator().manual_seed(seed)
    classes, width = int(train_labels.max()) + 1, train.shape[1]
    layer = torch.nn.Linear(width, classes)
    bound = 1 / math.sqrt(width)
    flat = torch.empty(classes * (width + 1)).uniform_(-bound, bound, generator=generator)
    with torch.no_grad():
        layer.weight.copy_(flat[: classes * width].view(classes, width))
        layer.bias.copy_(flat[classes * width :])
    optimizer = torch.optim.Adam(layer.parameters(), lr=lr, weight_decay=weight_decay)
    steps = epochs * math.ceil(len(train) / batch_size)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: (1 + math.cos(math.pi * t / steps)) / 2)
    curve = []
    for _ in range(epochs):
        for rows in torch.randperm(len(train), generator=generator).split(batch_size):
            optimizer.zero_grad()
            F.cross_entropy(layer(train[rows]), train_labels[rows]).backward()
            optimizer.step()
            scheduler.step()
        curve.append(100 * (layer(test).argmax(1) == test_labels).float().mean().item())
    return layer, curve


@pytest.mark.parametrize(
    ("n", "batch_size", "weight_decay"),
    [(200, 50, 0.0), (203, 32, 0.01), (37, 64, 0.0)],  # full batches; a partial last one; one with all
)
def test_against_autograd_and_torch_adam(n, batch_size, weight_decay):
    train, test = problem(n, 0), problem(100, 1)
    settings = {"epochs": 5, "batch_size": batch_size, "lr": 0.02, "weight_decay": weight_decay, "seed": 3}
    result = linear_probe(*train, *test, **settings)
    layer, curve = slow_probe(*train, *test, **settings)
    torch.testing.assert_close(result.weight, layer.weight.detach(), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(result.bias, layer.bias.detach(), atol=1e-4, rtol=1e-4)
    assert result.curve == pytest.approx(curve, abs=1e-4)
    expected = 100 * (layer(train[0]).argmax(1) == train[1]).float().mean().item()
    assert result.train_accuracy == pytest.approx(expected, abs=1e-4)


def test_the_protocol_by_default():
    train, test = problem(150, 0), problem(80, 1)
    options = {"epochs": 50, "batch_size": 128, "lr": 0.01, "weight_decay": 0.0, "seed": 0}
    result = linear_probe(*train, *test)
    assert torch.equal(result.weight, linear_probe(*train, *test, **options).weight)
    assert len(result.curve) == 50
    assert linear_protocol() == linear_protocol(**options)


def test_last_and_best_epoch():
    result = linear_probe(*problem(150, 0), *problem(80, 1), epochs=3, batch_size=16, lr=0.1, seed=1)
    assert len(result.curve) == 3
    assert result.accuracy == result.curve[-1] < result.best_accuracy
    assert result.best_accuracy == max(result.curve) == result.curve[result.best_epoch - 1]
    assert result.seconds > 0
    assert "weight" not in repr(result)


def test_separable_data_with_labels_that_are_not_contiguous():
    train, test = problem(300, 0, spread=0.1), problem(100, 1, spread=0.1)
    names = torch.tensor([3, 7, 50, -1])
    result = linear_probe(train[0], names[train[1]], test[0], names[test[1]], epochs=30, lr=0.1)
    assert result.accuracy == result.train_accuracy == 100.0
    assert result.classes.tolist() == [-1, 3, 7, 50]
    predicted = result.classes[F.linear(test[0], result.weight, result.bias).argmax(1)]
    assert torch.equal(predicted, names[test[1]])


def test_only_the_seed_matters_and_global_state_stays():
    sets = (*problem(100, 0), *problem(50, 1))
    torch.manual_seed(0)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    a, b, c = (linear_probe(*sets, epochs=2, batch_size=32, seed=seed) for seed in (5, 5, 6))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    assert torch.equal(a.weight, b.weight)
    assert not torch.equal(a.weight, c.weight)


def test_the_callers_autocast_has_no_effect():
    sets = (*problem(100, 0), *problem(50, 1))
    alone = linear_probe(*sets, epochs=2)
    with torch.autocast("cpu", dtype=torch.float16):
        assert torch.equal(linear_probe(*sets, epochs=2).weight, alone.weight)


def test_bad_settings_and_sets():
    train, test = problem(10, 0), problem(5, 1)
    for settings, line in [
        ({"epochs": 0}, "epochs must be at least 1 .*, not 0"),
        ({"batch_size": 1.5}, "batch_size must be a whole number, not 1.5"),
        ({"lr": 0.0}, "lr must be above 0 .*, not 0"),
        ({"weight_decay": -1.0}, "weight_decay must be at least 0 .*, not -1"),
    ]:
        with pytest.raises(AAGError, match=line):
            linear_probe(*train, *test, **settings)
    with pytest.raises(AAGError, match="training features have 12 dimensions, test features 11"):
        linear_probe(*train, test[0][:, 1:], test[1])
    with pytest.raises(AAGError, match=r"the test set has 5 features but labels of shape \[4\]"):
        linear_probe(*train, test[0], test[1][1:])


@pytest.mark.gpu
def test_cuda_agrees_with_cpu_and_graph_with_eager(monkeypatch):
    train, test = problem(1003, 0), problem(500, 1)
    settings = {"epochs": 6, "batch_size": 64, "weight_decay": 0.001}
    cpu = linear_probe(*train, *test, **settings)
    graph = linear_probe(train[0].cuda(), train[1], *test, **settings)
    monkeypatch.setattr(linear, "MAX_GRAPH_STEPS", 0)
    eager = linear_probe(train[0].cuda(), train[1], *test, **settings)
    torch.testing.assert_close(graph.weight, eager.weight, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(graph.weight.cpu(), cpu.weight, atol=1e-3, rtol=1e-3)
    assert graph.curve == pytest.approx(cpu.curve, abs=0.41)  # two borderline images of 500
