"""Super-AND: its three losses against loops over N-dimensional similarities, as the authors compute them."""

import pytest
import torch
from making import make_encoder, make_method
from torch.nn.functional import normalize

from aag.methods.super_and import SuperAND, bank_similarity_cosines
from aag.settings import TrainSettings

N, TAU = 15, 0.1


def extract():
    raise AssertionError("Super-AND looks at its bank alone")


@pytest.fixture
def method():
    return make_method(SuperAND, images=N, train=TrainSettings(epochs=1000, rounds=5)).double()


def views(seed=0, n=4, d=6):
    return torch.randn(2, n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def slow_loss(x, index, method):
    """AND on both views, ISIF on N-dimensional unit vectors, and the weighted entropy: means over the 2n views."""
    v = [row / row.norm() for view in x for row in view]
    logits = [method.bank.rows @ row / TAU for row in v]
    own = index.tolist() * 2
    count, n = len(v), len(v) // 2
    total = 0.0
    for s, i in zip(logits, own, strict=True):
        p = s.exp() / s.exp().sum()
        share = p[i] + p[method.neighbour[i]] if method.anchor[i] else p[i]
        others = torch.cat([s[:i], s[i + 1 :]])  # without the image itself: near images alone are pulled nearer
        q = others.exp() / others.exp().sum()
        total = total - share.log() - method.entropy_weight * (q * q.log()).sum()
    units = [s / s.norm() for s in logits]
    for a in range(count):
        e = {b: (torch.dot(units[a], units[b].detach()) / TAU).exp() for b in range(count) if b != a}
        p = {b: value / sum(e.values()) for b, value in e.items()}
        other = (a + n) % count
        total = total - p[other].log() - sum((1 - q).log() for b, q in p.items() if b != other)
    return total / count


@pytest.mark.parametrize("epoch", [0, 200 + 80, 800 + 199])
def test_loss_and_gradient_equal_the_loop(method, epoch):
    method.before_epoch(epoch - epoch % 200, extract)
    method.before_epoch(epoch, extract)
    x, index = views().requires_grad_(), torch.tensor([3, 0, 11, 5])
    expected = slow_loss(x, index, method)
    loss, log, _ = method.loss(x, index)
    assert loss.item() == pytest.approx(expected.item())
    assert torch.allclose(torch.autograd.grad(loss, x)[0], torch.autograd.grad(expected, x)[0], rtol=1e-6)
    _, anchors, entropy, neighbours, invariant = (value.item() for value in log)
    assert anchors == pytest.approx(method.anchor[index].double().mean().item())
    assert neighbours + invariant + method.entropy_weight.item() * entropy == pytest.approx(loss.item())


def test_weight_of_the_entropy_grows_within_each_round(method):
    expected = {0: 0, 79: 0, 80: 0.2, 159: 0.2, 160: 0.4, 199: 0.4, 200: 0, 280: 0.2, 999: 0.4}
    for epoch, weight in expected.items():
        method.before_epoch(epoch, extract)
        assert method.entropy_weight.item() == pytest.approx(weight)


def test_cosines_by_the_small_product_are_those_of_all_similarities(method):
    v = normalize(views().flatten(0, 1), dim=1)
    profiles = normalize(v @ method.bank.rows.T, dim=1)
    assert torch.allclose(bank_similarity_cosines(v, method.bank.rows), profiles @ profiles.T)


def test_a_step_of_the_whole_remembers_the_second_view(method, photographs):
    method.float()
    encoder = make_encoder(embedding=6)
    method.before_epoch(200, extract)
    method.before_epoch(280, extract)
    before, index = method.bank.rows.clone(), torch.tensor([7, 2, 9, 4])
    images = photographs[:8].unflatten(0, (2, 4))
    method.after_step(encoder, *method(encoder, images, index).carry)
    second = normalize(encoder(photographs[:8])[1].detach(), dim=1)[4:]
    assert torch.allclose(method.bank.rows[index], normalize(before[index] + second, dim=1), atol=1e-5)
