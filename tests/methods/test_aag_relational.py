"""AAG with relations: the loss, where its targets come from, and the queue."""

import math

import pytest
import torch
from making import make_encoder, make_method

from aag import losses
from aag.methods.aag import AAG
from aag.methods.aag_relational import RelationalAAG, relational_loss
from aag.settings import TrainSettings

INDEX = torch.tensor([7, 2, 40, 11])


def make(**settings):
    return make_method(RelationalAAG, train=TrainSettings(batch_size=4), **{"queue": 12, **settings})


def test_the_loss_equals_its_formula():
    strong, weak = torch.randn(3, 4, 6, dtype=torch.float64), torch.randn(4, 6, dtype=torch.float64)
    queue = torch.randn(5, 6, dtype=torch.float64)

    def shares(v: torch.Tensor, temperature: float) -> list[float]:
        powers = [math.exp(torch.cosine_similarity(v, row, dim=0).item() / temperature) for row in queue]
        return [power / sum(powers) for power in powers]

    total = 0.0
    for view in strong:
        for s, t in zip(view, weak, strict=True):
            pairs = zip(shares(t, 0.2), shares(s, 0.3), strict=True)
            total -= sum(target * math.log(prediction) for target, prediction in pairs)
    assert relational_loss(strong, weak, queue, 0.3, 0.2).item() == pytest.approx(total / 12, rel=1e-12)


@pytest.mark.parametrize("auxiliary_views", [1, 2])
def test_all_views_but_the_weak_one_learn_its_relations(auxiliary_views):
    method = make(relation_weight=0.7, auxiliary_views=auxiliary_views).double()
    e = torch.randn(3 + auxiliary_views, 4, 6, dtype=torch.float64, requires_grad=True)
    found = method.loss(e, INDEX)
    plain = AAG(AAG.settings_type(auxiliary_views=auxiliary_views)).loss(e[:-1], INDEX).loss
    relations = relational_loss(e[:-1], e[-1], method.queue)
    torch.testing.assert_close(found.loss, plain + 0.7 * relations)
    torch.testing.assert_close(
        dict(zip(method.log_names, found.log, strict=True))["loss_relations"], relations.detach()
    )
    (gradient,) = torch.autograd.grad(found.loss, e)
    assert not gradient[-1].any()
    assert gradient[:-1].flatten(1).any(dim=1).all()


def test_the_queue_holds_the_newest_weak_views():
    method = make()
    first = method.queue.clone()
    seen = []
    for _ in range(4):
        e = torch.randn(4, 4, 6)
        method.after_step(make_encoder(), *method.loss(e, INDEX).carry)
        seen.append(losses.unit_rows(e[-1]))
    torch.testing.assert_close(method.queue, torch.cat([seen[3], seen[1], seen[2]]))
    assert not torch.isin(first, method.queue).any()


def test_the_weak_view_keeps_the_colours():
    *_, weak = make().augmentations()
    images = torch.full((3, 3, 8, 8), 200, dtype=torch.uint8)
    images[:, 1] = 30
    assert torch.equal(weak(images, seed=0), images)
