"""ISIF as a method: its own loss by default, and those of Table 5 by name."""

from dataclasses import replace

import pytest
import torch

from aag import losses, nets
from aag.config import LOSSES_OF, recipe_config
from aag.methods import Setting
from aag.methods.isif import ISIF

CONFIG = recipe_config("auto", "cifar10", "isif")


@pytest.mark.parametrize(
    ("name", "loss"),
    [
        ("own", losses.isif),
        ("nt-xent", losses.simclr),
        ("gnt-xent", losses.gnt_xent),
        ("dcl", losses.dcl),
        ("dclw", losses.dclw),
    ],
)
def test_each_loss_by_its_name_on_one_joint_pass(name, loss, photographs):
    encoder = nets.build(nets.EncoderSpec("resnet18", width=4), seed=0)
    method = ISIF.from_setting(Setting(replace(CONFIG, loss=name), 100, encoder))
    outcome = method(encoder, torch.stack([photographs[:6], photographs[6:12]]), torch.arange(6))
    x, y = encoder(photographs[:12])[1].chunk(2)
    torch.testing.assert_close(outcome.loss, loss(x, y, temperature=0.1))
    outcome.loss.backward()
    assert all(parameter.grad is not None for parameter in encoder.parameters())
    assert len(outcome.log) == len(method.logs) == 2


def test_its_losses_are_those_of_the_settings_and_its_own_is_the_default():
    assert set(ISIF.losses) == set(LOSSES_OF["isif"])
    method = ISIF(ISIF.families(CONFIG))
    assert (method.contrast, method.temperature) == (losses.isif, CONFIG.temperature)
    assert CONFIG.loss == "own"
