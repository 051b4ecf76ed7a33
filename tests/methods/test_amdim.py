"""AMDIM against a loop over its formula in float64."""

import math

import pytest
import torch
from making import make_encoder, make_method

from aag import AAGError
from aag.methods.amdim import AMDIM, predict
from aag.settings import TrainSettings


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
    nce, penalty = predict(source, target, clip=clip)
    expected = by_loop(source, target, clip)
    assert nce.item() == pytest.approx(expected[0], rel=1e-9)
    assert penalty.item() == pytest.approx(expected[1], rel=1e-9)


def test_gradients_by_finite_differences():
    inputs = [random(3, 4).requires_grad_(), random(3, 2, 4, seed=1).requires_grad_()]
    assert torch.autograd.gradcheck(lambda *v: sum(predict(*v, clip=2.0)), inputs)


def test_scores_are_clipped_before_they_are_compared_and_not_before_the_penalty():
    """Huge scores: all the same after the clip, so that chance is what remains."""
    source, target = torch.full((4, 2), 1e3), torch.full((4, 5, 2), 1e3)
    nce, penalty = predict(source, target)
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
        predict(torch.ones(1, 3), torch.ones(1, 2, 3))
    with pytest.raises(AAGError, match="only --network amdim"):
        amdim(make_encoder())
