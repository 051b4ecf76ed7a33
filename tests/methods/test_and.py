"""AND: anchors, neighbours and loss against slow versions."""

import math

import pytest
import torch
from making import make_method

from aag.methods.and_ import AND
from aag.settings import TrainSettings

N = 12


def extract():
    raise AssertionError("AND looks at its bank alone")


@pytest.fixture
def method():
    return make_method(AND, images=N, train=TrainSettings(epochs=1000, rounds=5)).double()


def softmax(v, rows, tau=0.1):
    e = [math.exp(torch.dot(v, row).item() / tau) for row in rows]
    return [value / sum(e) for value in e]


def test_round_0_has_no_anchors_and_is_instance(method):
    method.before_epoch(0, extract)
    assert not method.anchor.any()
    x, index = torch.randn(1, 4, 6, dtype=torch.float64), torch.tensor([3, 0, 11, 5])
    loss, (probability, anchors), _ = method.loss(x, index)
    p = [softmax(row / row.norm(), method.bank.rows)[i] for row, i in zip(x[0], index, strict=True)]
    assert loss.item() == pytest.approx(-sum(map(math.log, p)) / 4)
    assert probability.item() == pytest.approx(sum(p) / 4)
    assert anchors.item() == 0


@pytest.mark.parametrize(("number", "count"), [(0, 0), (1, 3), (2, 6), (3, 9), (4, 12), (5, 12)])
def test_anchors_are_those_of_lowest_entropy_with_their_nearest_neighbour(method, number, count):
    addresses = method.anchor.data_ptr(), method.neighbour.data_ptr()
    method.before_epoch(200 * number, extract)
    rows = method.bank.rows
    entropy = [-sum(p * math.log(p) for p in softmax(row, rows)) for row in rows]
    anchors = sorted(range(N), key=entropy.__getitem__)[:count]
    assert method.anchor.nonzero().flatten().tolist() == sorted(anchors)
    for i in anchors:
        assert method.neighbour[i] == max((j for j in range(N) if j != i), key=lambda j, i=i: rows[i] @ rows[j])
    assert (method.anchor.data_ptr(), method.neighbour.data_ptr()) == addresses


def test_count_is_rounded_down():
    method = make_method(AND, images=7)
    method.choose_anchors(1)
    assert method.anchor.sum() == 1


def test_anchors_stay_for_a_round(method):
    method.before_epoch(200, extract)
    anchor, neighbour = method.anchor.clone(), method.neighbour.clone()
    method.bank.rows.copy_(torch.randn(N, 6))
    for epoch in (201, 399):
        method.before_epoch(epoch, extract)
        assert torch.equal(method.anchor, anchor)
        assert torch.equal(method.neighbour, neighbour)
    method.before_epoch(400, extract)
    assert method.anchor.sum() == 6


def test_loss_of_anchors_and_others_equals_the_loop_with_gradients(method):
    method.before_epoch(400, extract)
    index = torch.tensor([0, 1, 2, 3, 4, 5, 6])
    assert 0 < method.anchor[index].sum() < 7
    x = torch.randn(1, 7, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    total = 0.0
    for row, i in zip(x[0], index.tolist(), strict=True):
        e = (method.bank.rows @ (row / row.norm()) / 0.1).exp()
        p = e[i] / e.sum()
        if method.anchor[i]:
            p = p + e[method.neighbour[i]] / e.sum()
        total = total - p.log() / 7
    loss, log, _ = method.loss(x, index)
    assert loss.item() == pytest.approx(total.item())
    assert log[1].item() == pytest.approx(method.anchor[index].double().mean().item())
    assert torch.allclose(torch.autograd.grad(loss, x)[0], torch.autograd.grad(total, x)[0])
