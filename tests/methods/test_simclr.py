"""SimCLR as a method: its views, its losses by name, its log."""

from dataclasses import replace

import pytest
import torch

from aag import AAGError, losses, nets
from aag.config import LOSSES_OF, recipe_config
from aag.methods import Setting
from aag.methods.simclr import SimCLR

CONFIG = replace(recipe_config("auto", "cifar10", "simclr"), loss="nt-xent")


@pytest.fixture
def encoder():
    return nets.build(nets.EncoderSpec("resnet18", width=4), seed=0)


def method_for(encoder, **changes):
    return SimCLR.from_setting(Setting(replace(CONFIG, **changes), 100, encoder))


@pytest.mark.parametrize(
    ("name", "loss"),
    [("nt-xent", losses.simclr), ("gnt-xent", losses.gnt_xent), ("dcl", losses.dcl), ("dclw", losses.dclw)],
)
def test_each_loss_by_its_name_on_one_joint_pass(name, loss, encoder, photographs):
    views = torch.stack([photographs[:6], photographs[6:12]])
    method = method_for(encoder, loss=name, temperature=0.2)
    outcome = method(encoder, views, torch.arange(6))
    x, y = encoder(photographs[:12])[1].chunk(2)  # batch norm of both views together
    torch.testing.assert_close(outcome.loss, loss(x, y, temperature=0.2))
    outcome.loss.backward()
    assert all(parameter.grad is not None for parameter in encoder.parameters())
    assert outcome.kept == ()
    assert len(method.views) == 2
    assert not list(method.parameters())


def test_the_log_holds_mean_cosines(encoder):
    x, y = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    method = method_for(encoder)
    log = dict(zip(method.logs, method.loss([x, y], torch.arange(5)).log, strict=True))
    cosines = torch.nn.functional.cosine_similarity(x[:, None], y, dim=2)
    torch.testing.assert_close(log["positive_similarity"], cosines.diagonal().mean())
    torch.testing.assert_close(log["negative_similarity"], cosines[~torch.eye(5, dtype=torch.bool)].mean())


def test_its_losses_are_those_of_the_settings(encoder):
    assert set(SimCLR.losses) == set(LOSSES_OF["simclr"])
    with pytest.raises(AAGError, match="unknown loss 'own'"):
        method_for(encoder, loss="own")


def test_one_pass_for_each_view_where_asked(encoder, photographs):
    method = method_for(encoder, forward="per-view")
    outcome = method(encoder, torch.stack([photographs[:6], photographs[6:12]]), torch.arange(6))
    x, y = (encoder(images)[1] for images in (photographs[:6], photographs[6:12]))
    torch.testing.assert_close(outcome.loss, losses.simclr(x, y, temperature=0.5))
