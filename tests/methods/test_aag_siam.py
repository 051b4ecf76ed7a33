"""AAG without negatives: the loss, what gets a gradient, and the options that need the contrastive loss."""

import pytest
import torch
import torch.nn.functional as F
from making import make_method

from aag.errors import AAGError
from aag.methods.aag import AAG
from aag.methods.aag_siam import SiameseAAG, prediction_loss

INDEX = torch.tensor([7, 2, 40, 11])


def make(**settings):
    return make_method(SiameseAAG, **{"predictor_width": 5, "auxiliary_views": 2, **settings}).double()


def embeddings() -> torch.Tensor:
    return torch.randn(4, 4, 6, dtype=torch.float64, requires_grad=True)


def test_the_loss_equals_its_formula():
    p, z = torch.randn(3, 5, 6, dtype=torch.float64), torch.randn(3, 5, 6, dtype=torch.float64)
    total = 0.0
    for image in range(5):
        for view in range(3):
            target = sum(z[other, image] for other in range(3) if other != view) / 2
            total -= torch.cosine_similarity(p[view, image], target, dim=0).item()
    assert prediction_loss(p, z).item() == pytest.approx(total / 15, rel=1e-12)


def test_of_two_views_it_is_simsiam_s_loss():
    (p, q), (y, z) = torch.randn(2, 4, 6), torch.randn(2, 4, 6)
    simsiam = -(F.cosine_similarity(p, z).mean() + F.cosine_similarity(q, y).mean()) / 2
    torch.testing.assert_close(prediction_loss(torch.stack([p, q]), torch.stack([y, z])), simsiam)


def test_only_predictions_get_a_gradient():
    p, z = embeddings(), embeddings()
    prediction_loss(p, z).backward()
    assert p.grad is not None
    assert p.grad.flatten(1).any(dim=1).all()
    assert z.grad is None


def test_the_predictor_sees_one_view_at_a_time():
    method, e = make(), embeddings()
    alone = torch.stack([method.predictor(view) for view in e])
    torch.testing.assert_close(method.loss(e, INDEX).loss, prediction_loss(alone, e))
    assert method.loss(e, INDEX).loss.item() != pytest.approx(
        prediction_loss(method.predictor(e.flatten(0, 1)).unflatten(0, e.shape[:2]), e).item(), rel=1e-6
    )


def test_the_contrastive_loss_is_added_with_its_weight():
    e = embeddings()
    method = make(contrast_weight=0.3, temperature=0.2)
    plain = AAG(AAG.settings_type(auxiliary_views=2, temperature=0.2)).loss(e, INDEX).loss
    found = method.loss(e, INDEX)
    log = dict(zip(method.log_names, found.log, strict=True))
    torch.testing.assert_close(found.loss, log["loss_prediction"] + 0.3 * plain)
    assert list(log)[:-1] == list(AAG().log_names)


@pytest.mark.parametrize("option", [{"temperature": 0.2}, {"loss": "nt-xent"}, {"one_way": True}])
def test_options_of_the_contrastive_loss_need_it(option):
    with pytest.raises(AAGError, match=r"has no effect with --contrast-weight 0\.0; leave it out"):
        make(**option)


def test_its_loss_is_described_without_the_contrastive_one_unless_that_counts():
    kind = SiameseAAG.settings_type
    assert SiameseAAG().describe_loss() == "prediction of other views"
    weighted = SiameseAAG(kind(contrast_weight=0.5))
    assert weighted.describe_loss() == "prediction of other views + 0.5 × gnt-xent, τ 0.1"
