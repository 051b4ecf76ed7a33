"""AMDIM against a loop over its formula in float64."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from making import make_encoder, make_method

from aag import AAGError
from aag.augment import BasicAugment, keys
from aag.methods.amdim import AMDIM, AMDIMSettings, nce_loss
from aag.nets import EncoderSpec
from aag.nets.amdim import Residual
from aag.nets.backbones import build_backbone
from aag.settings import TrainSettings, to_json
from aag.training import recipe_settings
from aag.training.schedule import learning_rate

WHOLE = {"scale": (1.0, 1.0), "ratio": (1.0, 1.0)}  # no crop


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture
def encoder():
    return make_encoder(network="amdim", width=1, head="none")


def amdim(encoder, images=100, seed=0, **settings):
    return make_method(AMDIM, encoder, images, TrainSettings(seed=seed), **settings)


def by_loop(source, target, clip):
    """NCE and mean squared score of source [n, R] → target [n, p, R], one scalar at a time."""
    n, p, size = target.shape
    raw = [[[torch.dot(source[i], target[j, m]).item() / math.sqrt(size) for m in range(p)] for j in range(n)]
           for i in range(n)]  # fmt: skip
    total = 0.0
    for i in range(n):
        clipped = [[clip * math.tanh(s / clip) for s in row] for row in raw[i]]
        negatives = sum(math.exp(s) for j in range(n) if j != i for s in clipped[j])
        for s in clipped[i]:
            total -= math.log(math.exp(s) / (math.exp(s) + negatives))
    squares = sum(s * s for image in raw for row in image for s in row)
    return total / (n * p), squares / (n * n * p)


@pytest.mark.parametrize("clip", [20.0, 1.5])
@pytest.mark.parametrize(("n", "p", "size"), [(2, 1, 3), (4, 9, 5)])
def test_a_prediction_is_its_formula(n, p, size, clip):
    source, target = 2 * random(n, size), 2 * random(n, p, size, seed=1)
    nce, penalty = nce_loss(source, target, clip=clip)
    expected = by_loop(source, target, clip)
    assert nce.item() == pytest.approx(expected[0], rel=1e-9)
    assert penalty.item() == pytest.approx(expected[1], rel=1e-9)


def test_gradients_by_finite_differences():
    inputs = [random(3, 4).requires_grad_(), random(3, 2, 4, seed=1).requires_grad_()]
    assert torch.autograd.gradcheck(lambda *v: sum(nce_loss(*v, clip=2.0)), inputs)


def test_scores_are_clipped_before_they_are_compared_and_not_before_the_penalty():
    """Huge scores: all the same after the clip, so that chance is what remains."""
    source, target = torch.full((4, 2), 1e3), torch.full((4, 5, 2), 1e3)
    nce, penalty = nce_loss(source, target)
    assert nce.item() == pytest.approx(math.log(1 + 3 * 5), rel=1e-5)
    assert penalty.item() == pytest.approx(2e12, rel=1e-5)


def test_the_loss_is_three_predictions_both_ways(encoder):
    method = amdim(encoder, seed=7)
    n, size = 3, 4
    r1, r5, r7 = random(2, n, 1, size), random(2, n, 25, size, seed=1), random(2, n, 49, size, seed=2)
    index = torch.tensor([5, 99, 0])
    position = method.positions(index)
    total, parts, penalty = 0.0, [], 0.0
    for source, target in (("1", r5), ("1", r7), ("5", r5)):
        part = 0.0
        for a, b in ((0, 1), (1, 0)):
            chosen = r1[a, :, 0] if source == "1" else torch.stack([r5[a, i, position[a, i]] for i in range(n)])
            nce, square = by_loop(chosen, target[b], 20.0)
            part += nce / 2
            penalty += 0.05 * square / 2
        parts.append(part)
        total += part
    output = method.loss([r1, r5, r7], index)
    assert output.loss.item() == pytest.approx(total + penalty, rel=1e-9)
    assert [value.item() for value in output.log] == pytest.approx([*parts, penalty], rel=1e-9)
    maps = [r.requires_grad_() for r in (r1, r5, r7)]
    assert torch.autograd.gradcheck(lambda *v: method.loss(v, index).loss, maps, fast_mode=True)


def test_positions_are_drawn_by_step_image_and_view(encoder):
    method = amdim(encoder, 1000, seed=1)
    index = torch.arange(1000)
    first = method.positions(index)
    assert first.shape == (2, 1000)
    assert first.flatten().bincount(minlength=25).shape == (25,)
    assert first.flatten().bincount().min() > 40  # of 80
    assert torch.equal(method.positions(index[500:]), first[:, 500:])  # whatever else is in the batch
    assert (first[0] == first[1]).float().mean() < 0.1
    method.after_step(None)
    assert method.step == 1
    assert (method.positions(index) == first).float().mean() < 0.1
    other = amdim(encoder, 1000, seed=1)
    other.load_state_dict(method.state_dict())
    assert torch.equal(other.positions(index), method.positions(index))


def test_views_are_shifted_with_reflection_and_never_cropped(photographs):
    (first, second) = AMDIM().augmentations()
    assert first == second
    rng_keys = keys(0, 0, torch.arange(3000))
    plain = replace(first, augmentation=BasicAugment.preset("amdim", jitter=0.0, gray=0.0, flip=0.0, **WHOLE))
    image = photographs[5]
    padded = np.pad(image.numpy(), ((0, 0), (4, 4), (4, 4)), mode="reflect")
    shifts = {padded[:, y : y + 32, x : x + 32].tobytes(): (y, x) for y in range(9) for x in range(9)}
    found = Counter(shifts[view.numpy().tobytes()] for view in plain(image.expand(3000, 3, 32, 32), key=rng_keys))
    assert len(found) == 81
    assert found.pop((4, 4)) / 3000 == pytest.approx(0.2 + 0.8 / 81, abs=0.03)
    assert max(found.values()) < 60  # of 30 on average
    colours = first.augmentation
    assert (colours.hue, colours.jitter, colours.gray, colours.blur) == (0.2, 0.8, 0.25, 0.0)


def test_crops_take_the_place_of_shifts_on_request():
    crop, _ = AMDIM(AMDIMSettings(shift=0)).augmentations()
    assert crop == BasicAugment.preset("amdim", flip=0.0)
    small, _ = AMDIM(AMDIMSettings(shift=0, min_crop=0.1, jitter_strength=1.0)).augmentations()
    assert small == replace(crop, scale=(0.1, 1.0), brightness=0.8, contrast=0.8, saturation=0.8, hue=0.2)
    with pytest.raises(AAGError, match="--min-crop has no effect with --shift 4"):
        AMDIMSettings(min_crop=0.1)
    with pytest.raises(AAGError, match=r"--shift 8 is too large for images of 9×8"):
        AMDIM(AMDIMSettings(shift=8)).augmentations()[0](torch.zeros(2, 3, 8, 9, dtype=torch.uint8))


def test_both_views_of_an_image_are_flipped_alike(encoder, photographs):
    method, seen = amdim(encoder, 1000), []
    method.embed = lambda _, views: seen.append(views) or AMDIM.embed(method, encoder, views)
    views = photographs[:128].unflatten(0, (2, 64))
    method(encoder, views, torch.arange(64))
    flipped = [(seen[0][view] == views[view].flip(-1)).flatten(1).all(dim=1) for view in (0, 1)]
    assert torch.equal(*flipped)
    assert 16 < flipped[0].sum() < 48
    assert torch.equal(seen[0][:, ~flipped[0]], views[:, ~flipped[0]])
    method.after_step(encoder)
    method(encoder, views, torch.arange(64))
    assert not torch.equal(seen[0], seen[1])
    kept = amdim(encoder, 1000, flip=False)
    kept.embed = method.embed
    kept(encoder, views, torch.arange(64))
    assert torch.equal(seen[2], views)


def test_the_size_of_the_paper_s_row_has_a_name():
    settings = recipe_settings("amdim-large", "cifar10").resolve("bf16")
    with torch.device("meta"):
        net = build_backbone(EncoderSpec(**to_json(settings.encoder))).module
    blocks = [module for module in net.modules() if isinstance(module, Residual)]
    assert (net.to7[0].out_channels, net.feature_dim, len(blocks)) == (256, 2048, 1 + 4 * 10 + 1)
    assert learning_rate(settings.train, 10**4, 104) == pytest.approx(2e-4)


def test_one_pass_each_normalises_views_apart(encoder, photographs):
    views = torch.stack([photographs[:6], photographs[6:12] // 4])
    encoder.backbone.eval()
    joint, apart = (amdim(encoder, forward=forward) for forward in ("joint", "per-view"))
    for a, b in zip(joint.embed(encoder, views), apart.embed(encoder, views), strict=True):
        assert a.shape == b.shape
        assert torch.allclose(a, b, atol=1e-5)
    encoder.backbone.train()
    r1 = apart.embed(encoder, views)[0]
    assert torch.allclose(r1.mean(dim=1), torch.zeros(2, 1, 16), atol=1e-4)
    assert not torch.allclose(joint.embed(encoder, views)[0].mean(dim=1), torch.zeros(2, 1, 16), atol=1e-2)


def test_positions_keep_their_order(encoder, photographs):
    encoder.backbone.eval()
    method = amdim(encoder)
    views = photographs[:8].unflatten(0, (2, 4))
    r1, r5, r7 = method.embed(encoder, views)
    expected = encoder.backbone.maps(encoder.normalise(photographs[:8]))
    assert torch.allclose(r7[1, 2, 7 * 3 + 4], expected[2][6, :, 3, 4], atol=1e-5)
    assert torch.allclose(r5[0, 1, 5 * 4 + 2], expected[1][1, :, 4, 2], atol=1e-5)
    assert r1.shape == (2, 4, 1, 16)


def test_what_it_cannot_do_is_named():
    with pytest.raises(AAGError, match="at least two"):
        nce_loss(torch.ones(1, 3), torch.ones(1, 2, 3))
    with pytest.raises(AAGError, match="use --network amdim"):
        amdim(make_encoder())
