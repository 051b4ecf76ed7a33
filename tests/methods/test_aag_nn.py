"""AAG with neighbours: which row of the bank is the neighbour, when it counts, and what it adds to the loss."""

import pytest
import torch
from making import make_encoder, make_method

from aag import AAGError, losses
from aag.methods.aag import AAG
from aag.methods.aag_nn import NeighbourAAG
from aag.settings import TrainSettings

INDEX = torch.tensor([7, 2, 40, 11, 3])


def make(**settings):
    method = make_method(NeighbourAAG, train=TrainSettings(epochs=10), **settings).double()
    method.bank.rows.copy_(losses.unit_rows(torch.randn(100, 6, generator=torch.Generator().manual_seed(1))))
    return method


@pytest.mark.parametrize("neighbours", [1, 3])
def test_neighbours_are_the_nearest_rows_of_other_images(neighbours):
    method = make(neighbours=neighbours)
    v = method.bank.rows[INDEX].clone()  # each is nearest to its own row
    found = method.find_neighbours(v, INDEX)
    assert found.shape == (neighbours, 5, 6)
    for i, image in enumerate(INDEX):
        others = sorted((j for j in range(100) if j != image), key=lambda j: -torch.dot(method.bank.rows[j], v[i]))
        assert torch.equal(found[:, i], method.bank.rows[others[:neighbours]])


@pytest.mark.parametrize("loss", ["gnt-xent", "nt-xent"])
@pytest.mark.parametrize(("auxiliary_views", "neighbours"), [(1, 1), (2, 1), (1, 3)])
def test_neighbours_are_auxiliary_views_without_a_gradient_and_share_one_weight(loss, auxiliary_views, neighbours):
    settings = {"auxiliary_views": auxiliary_views, "neighbours": neighbours}
    method = make(loss=loss, neighbour_weight=0.7, temperature=0.5, **settings)
    method.before_epoch(4, None)
    e = torch.randn(2 + auxiliary_views, 5, 6, dtype=torch.float64, requires_grad=True)
    found = method.loss(e, INDEX)
    plain = AAG(AAG.settings_type(loss=loss, auxiliary_views=auxiliary_views, temperature=0.5)).loss(e, INDEX).loss
    x, y = e[:2]
    p = method.find_neighbours(losses.unit_rows(losses.unit_rows(x) + losses.unit_rows(y)).detach(), INDEX)
    whole = losses.gnt_xent if loss == "gnt-xent" else losses.nt_xent
    extra = (whole(x, y, *p, temperature=0.5) - whole(x, y, temperature=0.5)) / neighbours
    torch.testing.assert_close(found.loss, plain + 0.7 * extra)
    ours, theirs = (torch.autograd.grad(each, e, retain_graph=True)[0] for each in (found.loss, plain + 0.7 * extra))
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(dict(zip(method.log_names, found.log, strict=True))["loss_neighbour"], extra)
    assert not method.bank.rows.requires_grad


def test_more_neighbours_than_other_images_are_refused():
    message = "--neighbours 30 of an image need at least 31 images, not 30"
    with pytest.raises(AAGError, match=message):
        make_method(NeighbourAAG, images=30, neighbours=30)


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
