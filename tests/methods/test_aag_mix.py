"""AAG with mixtures: what is mixed, by which weights, and what it adds to the loss."""

import math

import pytest
import torch
from making import make_method

from aag import AAGError
from aag.methods.aag import AAG
from aag.methods.aag_mix import MixtureAAG, mixture_loss
from aag.settings import TrainSettings

INDEX = torch.tensor([7, 2, 40, 11, 3, 8])
PARTNERS = [1, 0, 3, 2, 5, 4]


def make(batch_size: int = 6, **settings):
    return make_method(MixtureAAG, train=TrainSettings(batch_size=batch_size), **settings)


@pytest.mark.parametrize("keep_positive", [False, True])
def test_the_loss_equals_its_formula(keep_positive):
    m, x = torch.randn(2, 6, 5, dtype=torch.float64)
    w = torch.rand(6, dtype=torch.float64)
    s = [[torch.cosine_similarity(a, b, dim=0).item() / 0.3 for b in x] for a in m]
    total = 0.0
    for i, p in enumerate(PARTNERS):
        others = [j for j in range(6) if keep_positive or j not in (i, p)]
        total -= 2 * (w[i].item() * s[i][i] + (1 - w[i].item()) * s[i][p])
        total += math.log(sum(math.exp(s[i][j]) for j in others)) + math.log(sum(math.exp(s[j][i]) for j in others))
    assert mixture_loss(m, x, w, 0.3, keep_positive).item() == pytest.approx(total / 6, rel=1e-12)


@pytest.mark.parametrize("loss", ["gnt-xent", "nt-xent"])
@pytest.mark.parametrize("one_way", [False, True])
def test_mixtures_add_their_loss_with_both_basic_views(loss, one_way):
    settings = {"loss": loss, "one_way": one_way, "auxiliary_views": 2, "temperature": 0.5}
    method = make(mixtures=2, mixture_weight=0.7, **settings)
    e = torch.randn(6, 6, 5, dtype=torch.float64, requires_grad=True)
    found = method.loss(e, INDEX)
    plain = AAG(AAG.settings_type(**settings)).loss(e[:4], INDEX).loss
    x, y = (v.detach() if one_way else v for v in e[:2])
    extra = sum(
        mixture_loss(m, v, w, 0.5, loss == "nt-xent")
        for m, w in zip(e[4:], method.mixing_coefficients(INDEX), strict=True)
        for v in (x, y)
    )
    torch.testing.assert_close(found.loss, plain + 0.7 * extra)
    torch.testing.assert_close(dict(zip(method.log_names, found.log, strict=True))["loss_mixture"], extra.detach())
    ours, theirs = (torch.autograd.grad(each, e, retain_graph=True)[0] for each in (found.loss, plain + 0.7 * extra))
    torch.testing.assert_close(ours, theirs)


def test_only_the_last_views_are_mixed_by_their_weights():
    method = make(mixtures=2)
    views = torch.randint(256, (5, 6, 3, 4, 4), dtype=torch.uint8)
    found = method.prepare_views(views, INDEX)
    assert torch.equal(found[:3], views[:3])
    for view, weights in zip((3, 4), method.mixing_coefficients(INDEX).double(), strict=True):
        for i, p in enumerate(PARTNERS):
            mean = weights[i] * views[view, i] + (1 - weights[i]) * views[view, p]
            assert (found[view, i] - mean).abs().max() <= 0.501


def test_weights_depend_on_the_pair_of_images_only():
    method = make(mixtures=2)
    weights = method.mixing_coefficients(INDEX)
    assert weights.shape == (2, 6)
    assert len(weights.unique()) == 12
    assert torch.equal(method.mixing_coefficients(INDEX[2:4]), weights[:, 2:4])  # as in another process
    other_partners = method.mixing_coefficients(INDEX[[0, 2, 1, 3, 4, 5]])
    assert not {*other_partners[:, :4].flatten().tolist()} & {*weights.flatten().tolist()}
    many = method.mixing_coefficients(torch.randperm(100_000))
    assert many.min() >= 0
    assert many.max() < 1
    assert many.mean().item() == pytest.approx(0.5, abs=0.01)
    assert many.var().item() == pytest.approx(1 / 12, abs=0.01)


@pytest.mark.parametrize("batch_size", [2, 33])
def test_batches_without_pairs_are_refused(batch_size):
    message = f"use a --batch-size that is a multiple of 2 and at least 4, not {batch_size}"
    with pytest.raises(AAGError, match=message):
        make(batch_size)
