"""AAG with neighbours: which row of the bank is the neighbour, when it counts, and what it adds to the loss."""

import pytest
import torch
from making import make_encoder, make_method

from aag import losses
from aag.methods.aag import AAG
from aag.methods.aag_nn import NeighbourAAG
from aag.settings import TrainSettings

INDEX = torch.tensor([7, 2, 40, 11, 3])


def make(**settings):
    method = make_method(NeighbourAAG, train=TrainSettings(epochs=10), **settings).double()
    method.bank.rows.copy_(losses.unit_rows(torch.randn(100, 6, generator=torch.Generator().manual_seed(1))))
    return method


def test_the_neighbour_is_the_nearest_row_of_another_image():
    method = make()
    v = method.bank.rows[INDEX].clone()  # each is nearest to its own row
    for found, own, image in zip(method.nearest(v, INDEX), v, INDEX, strict=True):
        best = max((j for j in range(100) if j != image), key=lambda j: torch.dot(method.bank.rows[j], own).item())
        assert torch.equal(found, method.bank.rows[best])


@pytest.mark.parametrize("loss", ["gnt-xent", "nt-xent"])
@pytest.mark.parametrize("auxiliary_views", [1, 2])
def test_the_neighbour_is_one_more_auxiliary_view_without_a_gradient(loss, auxiliary_views):
    method = make(loss=loss, auxiliary_views=auxiliary_views, neighbour_weight=0.7, temperature=0.5)
    method.before_epoch(4, None)
    e = torch.randn(2 + auxiliary_views, 5, 6, dtype=torch.float64, requires_grad=True)
    found = method.loss(e, INDEX)
    plain = AAG(AAG.settings_type(loss=loss, auxiliary_views=auxiliary_views, temperature=0.5)).loss(e, INDEX).loss
    x, y = e[:2]
    p = method.nearest(losses.unit_rows(losses.unit_rows(x) + losses.unit_rows(y)).detach(), INDEX)
    whole = losses.gnt_xent if loss == "gnt-xent" else losses.nt_xent
    extra = whole(x, y, p, temperature=0.5) - whole(x, y, temperature=0.5)
    torch.testing.assert_close(found.loss, plain + 0.7 * extra)
    ours, theirs = (torch.autograd.grad(each, e, retain_graph=True)[0] for each in (found.loss, plain + 0.7 * extra))
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(dict(zip(method.log_names, found.log, strict=True))["loss_neighbour"], extra)
    assert not method.bank.rows.requires_grad


def test_neighbours_count_from_their_epoch_on():
    method = make(neighbour_start=0.4)
    e = torch.randn(3, 5, 6, dtype=torch.float64)
    plain = AAG().loss(e, INDEX).loss
    for epoch, counts in ((0, False), (3, False), (4, True), (9, True)):
        method.before_epoch(epoch, None)
        assert (method.loss(e, INDEX).loss != plain) == counts


def test_the_bank_follows_the_mean_of_the_basic_views():
    method = make(bank_momentum=0.25)
    before = method.bank.rows.clone()
    e = torch.randn(3, 5, 6, dtype=torch.float64)
    method.after_step(make_encoder(), *method.loss(e, INDEX).carry)
    own = losses.unit_rows(losses.unit_rows(e[0]) + losses.unit_rows(e[1]))
    torch.testing.assert_close(method.bank.rows[INDEX], losses.unit_rows(0.25 * before[INDEX] + 0.75 * own))
    others = [j for j in range(100) if j not in INDEX]
    assert torch.equal(method.bank.rows[others], before[others])
