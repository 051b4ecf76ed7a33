"""AAG's views and its loss with several auxiliary views."""

import json
import re
from pathlib import Path

import pytest
import torch

from aag import AAGError, losses
from aag.augment import AutoAugment, AuxiliaryAugment, BasicAugment
from aag.methods import load_method
from aag.methods.aag import AAG, AAGSettings
from aag.settings import from_json, to_json
from aag.training import recipe_settings

ROOT = Path(__file__).parents[2]


def test_each_auxiliary_view_has_the_same_augmentation():
    method = AAG(AAGSettings(auxiliary_views=3, auxiliary_min_crop=0.05, auxiliary_max_crop=0.3, blur=0.0))
    x, y, *auxiliary = method.augmentations()
    assert x == y == BasicAugment(blur=0.0)
    assert auxiliary == [AuxiliaryAugment(AutoAugment("cifar10"), scale=(0.05, 0.3))] * 3
    assert method.describe_views() == "2 basic views + 3 × autoaugment"
    assert AAG().describe_views() == "2 basic views + autoaugment"
    assert len(AAG(AAGSettings(auxiliary="basic", auxiliary_views=2)).augmentations()) == 4
    assert len(AAG(AAGSettings(auxiliary="none")).augmentations()) == 2


@pytest.mark.parametrize(
    ("name", "further"), [("aag", ""), ("aag-mix", " + 1 mixture"), ("aag-relational", " + 1 weak view")]
)
def test_views_that_a_method_adds_are_described_once(name, further):
    cls = load_method(name)
    for auxiliary, basic in (("none", 2), ("basic", 3)):
        method = cls(cls.settings_type(auxiliary=auxiliary))
        assert method.describe_views() == f"{basic} basic views{further}"


@pytest.mark.parametrize("loss", ["gnt-xent", "nt-xent"])
def test_the_loss_is_the_core_plus_the_weighted_terms_of_each_auxiliary_view(loss):
    views = torch.randn(5, 7, 6, dtype=torch.float64)
    method = AAG(AAGSettings(loss=loss, auxiliary_views=3, auxiliary_weight=0.3, temperature=0.5))
    found = method.loss(views, torch.arange(7))
    whole = losses.gnt_xent if loss == "gnt-xent" else losses.nt_xent
    x, y, *auxiliary = views
    core = whole(x, y, temperature=0.5)
    terms = [whole(x, y, z, temperature=0.5) - core for z in auxiliary]
    torch.testing.assert_close(found.loss, core + 0.3 * sum(terms))
    log = dict(zip(method.log_names, found.log, strict=True))
    torch.testing.assert_close(log["loss_xy"], core)
    torch.testing.assert_close(log["loss_zx"] + log["loss_zy"], sum(terms))
    cosines = torch.nn.functional.normalize(x, dim=1) @ torch.nn.functional.normalize(y, dim=1).T
    torch.testing.assert_close(log["positive_similarity"], cosines.diagonal().mean())
    torch.testing.assert_close(log["negative_similarity"], cosines[~torch.eye(7, dtype=torch.bool)].mean())
    torch.testing.assert_close(log["negative_gradient"], -log["positive_gradient"] / 24)  # 4 · 6 negatives


def test_hard_negatives_count_where_kernels_or_blocks_would_compute_the_loss(monkeypatch):
    views = torch.randn(4, 7, 6, dtype=torch.float64)
    s = losses.similarities(*views, temperature=0.5)
    expected = sum(part.loss.mean() for part in losses.components_from_similarities(s, False, 0.7))
    method = AAG(AAGSettings(auxiliary_views=2, hard_negatives=0.7, temperature=0.5))
    torch.testing.assert_close(method.loss(views, torch.arange(7)).loss, expected)
    monkeypatch.setattr("aag.large_batch.DENSE_BYTES", 0)
    monkeypatch.setattr("aag.kernels.enabled", lambda _: True)
    torch.testing.assert_close(method.loss(views, torch.arange(7)).loss, expected)


def test_crops_in_the_wrong_order_are_refused():
    message = "--auxiliary-min-crop 0.2 exceeds --auxiliary-max-crop 0.1; give both"
    with pytest.raises(AAGError, match=re.escape(message)):
        AAGSettings(auxiliary_max_crop=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"auxiliary": "none", "auxiliary_views": 4}, "--auxiliary-views has no effect with --auxiliary none"),
        ({"auxiliary": "none", "one_way": True}, "--one-way has no effect with --auxiliary none"),
        (
            {"auxiliary": "basic", "auxiliary_max_crop": 0.5},
            "--auxiliary-max-crop has no effect with --auxiliary basic",
        ),
        ({"auxiliary_crop": "none", "auxiliary_min_crop": 0.1}, "no effect with --auxiliary-crop none; leave it out"),
    ],
)
def test_options_without_an_effect_are_refused(options, message):
    with pytest.raises(AAGError, match=message):
        AAGSettings(**options)


def test_an_option_that_a_recipe_sets_can_be_set_back():
    settings = recipe_settings("best", "cifar10")
    with pytest.raises(AAGError, match="no effect with --auxiliary none; leave it out, or set it back to 1"):
        settings.replace(auxiliary="none")
    assert settings.replace(auxiliary="none", auxiliary_views=1).method_settings.auxiliary_views == 1


def test_the_recipe_writes_what_its_records_hold():
    """Or finished runs would seem to have other settings."""
    record = json.loads((ROOT / "results" / "cifar10-resnet18-paper-seed2.json").read_text())["settings"]
    now = recipe_settings("paper", "cifar10").replace(seed=2).resolve("bf16").to_json()
    assert now["method"] == record["method"]
    assert now["encoder"] == record["encoder"]
    assert now["train"].keys() - record["train"].keys() == {"pretrained"}  # None


def test_later_options_are_written_only_where_they_were_changed():
    """So that the settings of earlier records stay equal."""
    assert not {"auxiliary_views", "one_way"} & set(to_json(AAGSettings()))
    changed = AAGSettings(auxiliary_views=2, one_way=True)
    assert {"auxiliary_views": 2, "one_way": True}.items() <= to_json(changed).items()
    assert from_json(AAGSettings, json.loads(json.dumps(to_json(changed)))) == changed
