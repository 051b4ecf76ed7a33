"""SimCLR and ISIF: their losses by name, their log."""

from typing import get_args, get_type_hints

import pytest
import torch
from making import make_encoder, make_method

from aag import AAGError, losses
from aag.methods.isif import ISIF
from aag.methods.simclr import SimCLR
from aag.training import recipe_settings
from aag.training.schedule import learning_rate

LOSSES = {"nt-xent": losses.simclr, "gnt-xent": losses.gnt_xent, "dcl": losses.dcl, "dclw": losses.dclw}
CASES = [(SimCLR, name) for name in LOSSES] + [(ISIF, name) for name in ("own", *LOSSES)]


@pytest.fixture
def encoder():
    return make_encoder()


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_each_loss_by_its_name_on_one_joint_pass(kind, name, encoder, photographs):
    method = make_method(kind, encoder, loss=name, temperature=0.2)
    output = method(encoder, torch.stack([photographs[:6], photographs[6:12]]), torch.arange(6))
    x, y = encoder(photographs[:12])[1].chunk(2)  # batch norm of both views together
    loss = {"own": losses.isif, **LOSSES}[name]
    torch.testing.assert_close(output.loss, loss(x, y, temperature=0.2))


def test_every_loss_is_offered_and_the_default_is_the_method_s_own():
    for kind, default in ((SimCLR, "nt-xent"), (ISIF, "own")):
        offered = get_args(get_type_hints(kind.settings_type)["loss"])
        assert set(offered) == set(kind.loss_functions) == {name for other, name in CASES if other is kind}
        assert kind().settings.loss == default
    with pytest.raises(AAGError, match="unknown loss 'own'"):
        make_method(SimCLR, loss="own")


def test_the_log_holds_mean_cosines(encoder):
    x, y = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    method = make_method(SimCLR, encoder)
    log = dict(zip(method.log_names, method.loss([x, y], torch.arange(5)).log, strict=True))
    cosines = torch.nn.functional.cosine_similarity(x[:, None], y, dim=2)
    torch.testing.assert_close(log["positive_similarity"], cosines.diagonal().mean())
    torch.testing.assert_close(log["negative_similarity"], cosines[~torch.eye(5, dtype=torch.bool)].mean())


def test_one_pass_for_each_view_where_asked(encoder, photographs):
    method = make_method(SimCLR, encoder, forward="per-view")
    output = method(encoder, torch.stack([photographs[:6], photographs[6:12]]), torch.arange(6))
    x, y = (encoder(images)[1] for images in (photographs[:6], photographs[6:12]))
    torch.testing.assert_close(output.loss, losses.simclr(x, y, temperature=0.5))


def test_groups_of_batch_norm_are_of_one_view(photographs):
    """As on several GPUs, which each get a share of the first view's images, or of the second's."""
    views = torch.stack([photographs[:8], photographs[8:16]])
    others = torch.stack([photographs[:8], photographs[16:24]])  # another second view
    for group_size, same in ((4, True), (8, True), (0, False)):
        encoder = make_encoder(bn_group_size=group_size)
        method = make_method(ISIF, encoder)
        first, again = (method.embed(encoder, each)[0] for each in (views, others))
        assert torch.equal(first, again) == same


def test_isif_trains_as_on_its_authors_four_gpus():
    settings = recipe_settings("isif", "cifar10").resolve()
    joint, group_size = 2 * settings.train.batch_size, settings.encoder.bn_group_size
    assert (joint // group_size, settings.train.batch_size % group_size) == (4, 0)
    rates = [learning_rate(settings.train, epoch * 10, 10) for epoch in (0, 119, 120, 199)]
    assert rates == pytest.approx([0.03, 0.03, 0.003, 0.003])
