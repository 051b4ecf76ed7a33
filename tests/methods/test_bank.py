"""The memory bank against loops over its formulas in float64."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import normalize

from aag.methods import bank as module
from aag.methods.bank import Bank


def unit_rows(seed, n, d):
    generator = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(n, d, generator=generator, dtype=torch.float64), dim=1)


def probabilities(v, rows, tau):
    """p_ij of one view, from its definition."""
    e = [math.exp(torch.dot(v, row).item() / tau) for row in rows]
    return [value / sum(e) for value in e]


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 9999), n=st.integers(1, 5), images=st.integers(2, 9), d=st.integers(2, 6),
    tau=st.floats(0.05, 2.0), extra=st.integers(0, 3),
)  # fmt: skip
def test_match_equals_the_loop(seed, n, images, d, tau, extra):
    bank = Bank(images, d, seed=seed).double()
    v = unit_rows(seed, n, d)
    generator = torch.Generator().manual_seed(seed)
    positives = torch.stack([torch.randperm(images, generator=generator)[: 1 + extra] for _ in range(n)])
    mask = torch.rand(positives.shape, generator=generator) < 0.5
    mask[:, 0] = True
    log_probability, entropy = bank.match(v, positives, mask, temperature=tau, entropy=True)
    for i in range(n):
        p = probabilities(v[i], bank.rows, tau)
        share = sum(p[j] for j, counts in zip(positives[i].tolist(), mask[i].tolist(), strict=True) if counts)
        assert log_probability[i].item() == pytest.approx(math.log(share), rel=1e-9, abs=1e-12)
        own = positives[i, 0].item()
        q = probabilities(v[i], [row for j, row in enumerate(bank.rows) if j != own], tau)
        assert entropy[i].item() == pytest.approx(-sum(value * math.log(value) for value in q), rel=1e-9, abs=1e-12)
    plain = bank.match(v, positives, mask, temperature=tau)
    assert torch.equal(plain.log_probability, log_probability)
    assert not plain.entropy.any()


@pytest.mark.parametrize("entropy", [False, True])
def test_gradients_by_finite_differences_and_by_autograd(entropy):
    bank = Bank(7, 4, seed=1).double()
    v = unit_rows(2, 3, 4).requires_grad_()
    positives, mask = torch.tensor([[0, 3], [5, 1], [2, 6]]), torch.tensor([[1, 1], [1, 0], [1, 1]]).bool()

    def quick(v):
        return bank.match(v, positives, mask, temperature=0.5, entropy=entropy)[: 1 + entropy]

    def slow(v):
        s = v @ bank.rows.T / 0.5
        p = s.softmax(dim=1)
        others = torch.ones_like(p, dtype=torch.bool).scatter_(1, positives[:, :1], False)
        q = s[others].view(len(v), -1).softmax(dim=1)
        return ((p.gather(1, positives) * mask).sum(dim=1).log(), -(q * q.log()).sum(dim=1))[: 1 + entropy]

    assert torch.autograd.gradcheck(quick, v)
    weight = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64)
    ours, theirs = (torch.autograd.grad(sum((weight * part).sum() for part in f(v)), v)[0] for f in (quick, slow))
    assert torch.allclose(ours, theirs)


def test_entropy_pulls_a_view_to_its_neighbours_whatever_its_own_row_is():
    bank, own = Bank(9, 4, seed=1).double(), 2
    v = unit_rows(2, 1, 4).requires_grad_()
    found = []
    for row in (v[0].detach(), -v[0].detach()):
        bank.rows[own] = row
        entropy = bank.match(v, torch.tensor([[own]]), temperature=0.1, entropy=True).entropy
        found.append(torch.autograd.grad(entropy, v)[0][0])
    assert torch.equal(*found)
    others = bank.rows[torch.arange(9) != own]
    nearest = others[(others @ v[0]).argmax()]
    assert nearest @ found[0] < 0  # a step against the gradient raises this similarity


def test_a_cold_softmax_is_finite_with_its_gradient():
    bank = Bank(50, 8)
    v = normalize(-bank.rows[:4], dim=1).requires_grad_()  # as far from the positive as can be
    match = bank.match(v, torch.arange(4)[:, None], temperature=0.001, entropy=True)
    assert match.log_probability.max() < -500
    assert torch.isfinite(match.log_probability).all()
    assert torch.isfinite(match.entropy).all()
    (gradient,) = torch.autograd.grad(match.log_probability.sum() + match.entropy.sum(), v)
    assert torch.isfinite(gradient).all()


def test_nothing_of_the_size_of_the_bank_is_kept_for_backward():
    bank = Bank(1000, 8)
    kept = []
    v = normalize(torch.randn(4, 8), dim=1).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        bank.match(v, torch.arange(4)[:, None], temperature=0.1, entropy=True).log_probability.sum()
    assert max(kept) <= v.numel()


def test_rows_start_uniform_with_about_unit_length_and_by_the_seed():
    rows = Bank(500, 128, seed=3).rows
    bound = 1 / math.sqrt(128 / 3)
    assert rows.dtype == torch.float32
    assert rows.abs().max() <= bound
    assert rows.abs().max() > 0.99 * bound
    assert rows.mean().abs() < 0.01 * bound
    assert rows.norm(dim=1).mean().item() == pytest.approx(1, abs=0.01)
    assert torch.equal(rows, Bank(500, 128, seed=3).rows)
    assert not torch.equal(rows, Bank(500, 128, seed=4).rows)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_update_equals_the_loop_and_leaves_the_rest_alone(momentum):
    bank = Bank(9, 5, momentum).double()
    before, rows = bank.rows.clone(), bank.rows
    index, v = torch.tensor([4, 0, 7]), unit_rows(1, 3, 5)
    bank.update(index, v)
    assert bank.rows is rows  # in place: a graph keeps its address
    for i in range(9):
        expected = before[i]
        if i in index:
            expected = momentum * before[i] + (1 - momentum) * v[index.tolist().index(i)]
            expected = expected / expected.norm()
        assert torch.allclose(bank.rows[i], expected)


@pytest.mark.parametrize("chunk", [1, 30, 2**26])  # a row at a time, 3 of 10 rows, and all at once
def test_neighbours_equal_the_loop(chunk, monkeypatch):
    monkeypatch.setattr(module, "_CHUNK", chunk)
    bank = Bank(10, 4, seed=5).double()
    entropy, nearest = bank.find_neighbours(0.3)
    for i in range(10):
        p = probabilities(bank.rows[i], bank.rows, 0.3)
        assert entropy[i].item() == pytest.approx(-sum(q * math.log(q) for q in p))
        cosines = [(torch.dot(bank.rows[i], bank.rows[j]).item(), j) for j in range(10) if j != i]
        assert nearest[i].item() == max(cosines)[1]
