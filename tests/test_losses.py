"""Each loss against a loop over its formula in float64: Algorithm 1, and other methods' losses."""

import math
import re
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aag import AAGError
from aag.losses import (
    Similarities,
    components,
    components_from_similarities,
    dcl,
    dclw,
    gnt_xent,
    isif,
    isif_from_similarities,
    mean_cosines,
    nt_xent,
    queue_xent,
    simclr,
    similarities,
)


def algorithm_1(x, y, *auxiliary, tau, keep_positive, hard_negatives=0.0):
    """The paper's pseudocode, one scalar at a time; each auxiliary view has its own terms."""
    n = len(x)

    def total_of(negatives):  # Σ w e^s with w = e^(B s), divided by the mean of w
        weights = [math.exp(hard_negatives * each) for each in negatives]
        mean = sum(weights) / len(weights)
        return sum(weight / mean * math.exp(each) for weight, each in zip(weights, negatives, strict=True))

    def s(v, w):
        return (torch.dot(v, w) / (v.norm() * w.norm())).item() / tau

    total = 0.0
    for i in range(n):
        others = [j for j in range(n) if j != i]
        positive = s(x[i], y[i])
        denominator = total_of(
            [s(v, w) for j in others for v, w in ((x[i], y[j]), (x[j], y[i]), (x[i], x[j]), (y[i], y[j]))]
        )
        total += -math.log(math.exp(positive) / (denominator + keep_positive * math.exp(positive)))
        for z, core in product(auxiliary, (x, y)):
            positive = s(z[i], core[i])
            forth = total_of([s(z[i], core[j]) for j in others]) + keep_positive * math.exp(positive)
            back = total_of([s(z[j], core[i]) for j in others]) + keep_positive * math.exp(positive)
            total += -math.log(math.exp(positive) / forth * math.exp(positive) / back)
    return total / n


def embeddings(seed, n, d, views=3):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(n, d, generator=generator, dtype=torch.float64) for _ in range(views)]


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(2, 7),
    d=st.integers(2, 9),
    tau=st.floats(0.05, 2.0),
    count=st.sampled_from([2, 3, 4, 6]),
)
def test_both_losses_equal_the_loop_of_algorithm_1(seed, n, d, tau, count):
    views = embeddings(seed, n, d, count)
    for loss, keep_positive in ((gnt_xent, 0), (nt_xent, 1)):
        expected = algorithm_1(*views, tau=tau, keep_positive=keep_positive)
        assert loss(*views, temperature=tau).item() == pytest.approx(expected, rel=1e-9, abs=1e-9)
        assert loss(*views, temperature=tau, one_way=True).item() == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("keep_positive", [False, True])
@pytest.mark.parametrize("hard_negatives", [0.5, 2.0])
@pytest.mark.parametrize("count", [2, 4])
def test_hard_negatives_weigh_more(keep_positive, hard_negatives, count):
    views = [v.requires_grad_() for v in embeddings(7, 5, 4, count)]

    def loss(*views):
        s = similarities(*views, temperature=0.5)
        return sum(part.loss.mean() for part in components_from_similarities(s, keep_positive, hard_negatives))

    expected = algorithm_1(*views, tau=0.5, keep_positive=keep_positive, hard_negatives=hard_negatives)
    assert loss(*views).item() == pytest.approx(expected, rel=1e-9)
    assert torch.autograd.gradcheck(loss, views)


def test_hard_negatives_leave_equal_ones_and_the_pull_on_the_positive_alone():
    same = torch.ones(6, 4, dtype=torch.float64)
    parts = [components_from_similarities(similarities(same, same, same), False, b) for b in (0.0, 3.0)]
    for plain, hard in zip(*parts, strict=True):
        torch.testing.assert_close(hard.loss, plain.loss)
        assert torch.equal(hard.positive_gradient, plain.positive_gradient)


def test_value_at_the_identity():
    eye = torch.eye(2)
    assert gnt_xent(eye, eye, eye).item() == pytest.approx(-48.6137, abs=1e-4)
    assert gnt_xent(eye, eye).item() == pytest.approx(-8.6137, abs=1e-4)


@pytest.mark.parametrize(("n", "value"), [(64, 22.10), (128, 25.607), (256, 29.09), (512, 32.57), (1024, 36.04)])
def test_value_when_all_embeddings_are_equal(n, value):
    same = torch.ones(n, 128)
    assert gnt_xent(same, same, same).item() == pytest.approx(value, abs=6e-3)
    assert gnt_xent(same, same, same).item() == pytest.approx(math.log(4 * (n - 1)) + 4 * math.log(n - 1), abs=1e-3)


@pytest.mark.parametrize("loss", [gnt_xent, nt_xent])
@pytest.mark.parametrize("views", [2, 3, 4])
def test_gradients_by_finite_differences_reach_every_operand(loss, views):
    inputs = [v.requires_grad_() for v in embeddings(3, 5, 4, views)]
    assert torch.autograd.gradcheck(lambda *v: loss(*v, temperature=0.5), inputs)
    gradients = torch.autograd.grad(loss(*inputs), inputs)
    assert all(gradient.abs().sum() > 0 for gradient in gradients)


@pytest.mark.parametrize("loss", [gnt_xent, nt_xent])
def test_one_way_moves_auxiliary_views_only(loss):
    x, y, *auxiliary = views = [v.requires_grad_() for v in embeddings(4, 5, 4, 4)]
    both, one_way = (torch.autograd.grad(loss(*views, one_way=flag), views) for flag in (False, True))
    core = torch.autograd.grad(loss(x, y), [x, y])
    for basic in (0, 1):
        assert torch.allclose(one_way[basic], core[basic])
        assert not torch.allclose(both[basic], core[basic])
    for z in range(2, 2 + len(auxiliary)):
        assert torch.allclose(one_way[z], both[z])


@pytest.mark.parametrize("keep_positive", [False, True])
@pytest.mark.parametrize("hard_negatives", [0.0, 1.5])
def test_components_hold_the_gradients_on_the_similarities(keep_positive, hard_negatives):
    """Against autograd on the similarities of Algorithm 1, each a free variable."""
    x, y, z = embeddings(5, 6, 8)
    found = similarities(x, y, z, temperature=0.1)
    xy, xx, yy, zx, zy = (v.clone().requires_grad_() for v in (*found[:3], *found.zx, *found.zy))
    s = Similarities(xy, xx, yy, (zx,), (zy,))
    parts = components_from_similarities(s, keep_positive, hard_negatives)
    core, auxiliary, _ = parts
    on_xy, on_xx, on_yy = torch.autograd.grad(core.loss.sum(), [s.xy, s.xx, s.yy], retain_graph=True)
    assert torch.allclose(on_xy.diagonal(), core.positive_gradient)
    off = on_xy.sum() - on_xy.diagonal().sum() + on_xx.sum() + on_yy.sum()
    assert torch.allclose(off, -core.positive_gradient.sum())
    (on_zx,) = torch.autograd.grad(auxiliary.loss.sum(), [zx])
    assert torch.allclose(on_zx.diagonal(), auxiliary.positive_gradient)
    assert torch.allclose(on_zx.sum() - on_zx.diagonal().sum(), -auxiliary.positive_gradient.sum())


def test_gradients_on_similarities_keep_no_graph():
    x, y = (each.requires_grad_() for each in embeddings(5, 6, 8, views=2))
    for keep_positive in (False, True):
        assert not any(part.positive_gradient.requires_grad for part in components(x, y, keep_positive=keep_positive))


@pytest.mark.parametrize(
    "loss", [gnt_xent, nt_xent, isif, dcl, dclw, simclr, partial(queue_xent, queue=torch.eye(8).double())]
)
def test_the_temperature_is_the_papers_by_default(loss):
    x, y = embeddings(5, 6, 8, views=2)
    assert torch.equal(loss(x, y), loss(x, y, temperature=0.1))


def test_the_pull_of_gnt_xent_is_constant_and_that_of_nt_xent_vanishes():
    x = torch.eye(8)
    close = [part.positive_gradient for part in components(x, x, x, keep_positive=True)]
    assert all(positive_gradient.abs().max() < 0.01 for positive_gradient in close)
    core, zx, zy = components(x, x, x)
    assert (core.positive_gradient == -1).all()
    assert (zx.positive_gradient == -2).all()
    assert (zy.positive_gradient == -2).all()


def test_half_precision_inputs_do_not_overflow():
    x = torch.randn(64, 32).half()
    same = gnt_xent(x, x, x)
    assert same.dtype == torch.float32
    assert torch.isfinite(same)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(gnt_xent(x, x, x), same)


def test_the_scale_of_embeddings_has_no_effect():
    x, y, z = embeddings(1, 6, 5)
    assert torch.allclose(gnt_xent(x, y, z), gnt_xent(7 * x, 0.1 * y, 3 * z))


def test_bad_shapes_are_refused():
    for loss in (gnt_xent, *TWO_VIEWS):
        with pytest.raises(AAGError, match="at least two"):
            loss(torch.ones(1, 4), torch.ones(1, 4))
        with pytest.raises(AAGError, match=r"\(3, 4\), \(2, 4\)"):
            loss(torch.ones(3, 4), torch.ones(2, 4))
    for shapes in ([3, 4], [2, 4], [9, 4]), ([3, 4], [3, 4], [9, 5]), ([3, 4], [3, 4], [0, 4]), ([4], [4], [9, 4]):
        with pytest.raises(AAGError, match="a query and a key"):
            queue_xent(*(torch.ones(shape) for shape in shapes))


@pytest.mark.parametrize("other", [{"dtype": torch.float64}, {"device": "meta"}], ids=str)
def test_several_dtypes_or_devices_are_refused(other):
    x, y = torch.ones(3, 4), torch.ones(3, 4, **other)
    for views in ((x, y), (x, x, y)):
        with pytest.raises(AAGError, match=r"embeddings of one dtype on one device, not torch\.float32 on cpu"):
            gnt_xent(*views)
    assert gnt_xent(x, x.bfloat16()).isfinite()


@pytest.mark.parametrize("temperature", [0, -1, 1e-30, 1e30, math.inf, math.nan, None, "0.1"])
def test_a_temperature_out_of_range_is_refused(temperature):
    x = torch.ones(3, 4)
    for loss in (gnt_xent, nt_xent, *TWO_VIEWS):
        with pytest.raises(AAGError, match=rf"between 0.001 and 1000 .*, not {re.escape(repr(temperature))}$"):
            loss(x, x, temperature=temperature)
    with pytest.raises(AAGError, match="temperature must be between"):
        queue_xent(x, x, x, temperature=temperature)


@pytest.mark.parametrize(
    ("x", "kind"), [(np.ones((3, 4)), "ndarray"), (torch.ones(3, 4).long(), "torch.int64"), ([[1.0, 2.0]] * 3, "list")]
)
def test_arrays_and_whole_numbers_are_refused(x, kind):
    good = torch.ones(3, 4)
    for loss in (gnt_xent, nt_xent, *TWO_VIEWS):
        for views in ((x, x), (good, x), (x, good)):
            with pytest.raises(AAGError, match=rf"must be a float tensor \[n, d\], not {kind}"):
                loss(*views)
    for views in ((good, good, x), (x, good, good)):
        for loss in (gnt_xent, queue_xent):
            with pytest.raises(AAGError, match="must be a float tensor"):
                loss(*views)


# --- other methods' losses --------------------------------------------------------------------------------------------


def cosine(v, w):
    return torch.dot(v, w) / (v.norm() * w.norm())


def anchor_losses(x, y, tau, keep_positive, sigma=None):
    """SimCLR's NT-Xent, DCL (without the positive) and DCLW (with sigma), one log at a time, to be differentiated."""
    n, views = len(x), [*x, *y]
    with torch.no_grad():
        concentrations = [torch.exp(cosine(x[i], y[i]) / sigma) if sigma else 1.0 for i in range(n)]
        weights = [2 - c / (sum(concentrations) / n) for c in concentrations]
    total = 0.0
    for a in range(2 * n):
        partner = (a + n) % (2 * n)
        positive = cosine(views[a], views[partner]) / tau
        denominator = sum(torch.exp(cosine(views[a], views[b]) / tau) for b in range(2 * n) if b not in (a, partner))
        if keep_positive:
            denominator = denominator + positive.exp()
        total = total + denominator.log() - weights[a % n] * positive
    return total / (2 * n)


def recognition(x, y, tau):
    """ISIF: −(1/2n) [Σ log P(i|i') + Σ Σ log(1 − P(i|j))], one probability at a time, to be differentiated."""
    n, views = len(x), [*x, *y]
    constants = [v.detach() for v in views]
    total = 0.0
    for a in range(2 * n):
        weight = {b: torch.exp(cosine(views[a], constants[b]) / tau) for b in range(2 * n) if b != a}
        for b, e in weight.items():
            p = e / sum(weight.values())
            total = total + (p.log() if b == (a + n) % (2 * n) else (1 - p).log())
    return -total / (2 * n)


def infonce(query, key, queue, tau, keep_positive):
    """InfoNCE, one query at a time, to be differentiated."""
    total = 0.0
    for q, k in zip(query, key, strict=True):
        positive = cosine(q, k) / tau
        denominator = sum(torch.exp(cosine(q, other) / tau) for other in queue)
        total = total + torch.log(denominator + keep_positive * positive.exp()) - positive
    return total / len(query)


TWO_VIEWS = {
    simclr: lambda x, y, tau: anchor_losses(x, y, tau, True),
    dcl: lambda x, y, tau: anchor_losses(x, y, tau, False),
    dclw: lambda x, y, tau: anchor_losses(x, y, tau, False, sigma=0.5),
    isif: recognition,
}


def assert_same_with_gradients(found, expected, inputs):
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    for ours, theirs in zip(torch.autograd.grad(found, inputs), torch.autograd.grad(expected, inputs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("loss", TWO_VIEWS)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000), n=st.integers(2, 5), d=st.integers(2, 6), tau=st.floats(0.1, 2.0))
def test_losses_of_two_views_and_their_gradients_equal_the_loops(loss, seed, n, d, tau):
    x, y = (v.requires_grad_() for v in embeddings(seed, n, d, 2))
    assert_same_with_gradients(loss(x, y, temperature=tau), TWO_VIEWS[loss](x, y, tau), [x, y])


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 10_000), n=st.integers(1, 5), k=st.integers(1, 7), tau=st.floats(0.1, 2.0), keep=st.booleans()
)
def test_the_queue_loss_and_its_gradients_equal_the_loop(seed, n, k, tau, keep):
    query, key, queue = (v[:rows].requires_grad_() for v, rows in zip(embeddings(seed, 7, 4), (n, n, k), strict=True))
    found = queue_xent(query, key, queue, temperature=tau, keep_positive=keep)
    assert_same_with_gradients(found, infonce(query, key, queue, tau, keep), [query, key, queue])


@pytest.mark.parametrize("loss", [simclr, dcl])
def test_gradients_of_anchors_by_finite_differences(loss):
    assert torch.autograd.gradcheck(loss, [v.requires_grad_() for v in embeddings(3, 4, 3, 2)])


def test_with_equal_denominators_gnt_xent_is_dcl_and_the_log_of_2():
    """decisions.md. Both views of an image alike: x's negatives are y's, and GNT-Xent sums over both."""
    x, _ = embeddings(2, 6, 5, 2)
    torch.testing.assert_close(gnt_xent(x, x), dcl(x, x) + math.log(2))
    same = torch.ones(8, 4, dtype=torch.float64)
    torch.testing.assert_close(gnt_xent(same, same), dcl(same, same) + math.log(2))


@pytest.mark.parametrize("n", [2, 16, 128])
def test_values_of_other_losses_when_all_embeddings_are_equal(n):
    x = torch.ones(n, 8)
    assert simclr(x, x).item() == pytest.approx(math.log(2 * n - 1), rel=1e-5)
    assert dcl(x, x).item() == pytest.approx(math.log(2 * n - 2), rel=1e-5)
    assert dclw(x, x).item() == pytest.approx(math.log(2 * n - 2), rel=1e-5)  # all weights are 1
    refusals = -(2 * n - 2) * math.log1p(-1 / (2 * n - 1))
    assert isif(x, x).item() == pytest.approx(math.log(2 * n - 1) + refusals, rel=1e-5)
    assert queue_xent(x, x, x).item() == pytest.approx(math.log(n + 1), rel=1e-5)
    assert queue_xent(x, x, x, keep_positive=False).item() == pytest.approx(math.log(n), rel=1e-5)


def test_dclw_weighs_the_distant_pair_more_without_a_gradient():
    x = torch.eye(4, dtype=torch.float64)[:2]
    y = torch.stack([x[0], torch.tensor([0, 0.6, 0.8, 0], dtype=torch.float64)])  # cosines 1 and 0.6
    close, apart = math.exp(1 / 0.5), math.exp(0.6 / 0.5)
    weights = torch.tensor([2 - 2 * close / (close + apart), 2 - 2 * apart / (close + apart)], dtype=torch.float64)
    assert weights[1] > 1 > weights[0]
    cosines = torch.tensor([1.0, 0.6], dtype=torch.float64)
    torch.testing.assert_close(dclw(x, y), dcl(x, y) + ((1 - weights) * cosines / 0.1).mean())


def test_isif_is_finite_where_a_wrong_image_has_probability_1():
    """Two images swapped: P(b|a) of the wrong one is 1 − 10⁻¹⁷, and 1 − P has no digits in float32."""
    x = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], requires_grad=True)
    y = -x.detach()
    found = isif(x, y, temperature=0.05)
    exact = isif(x.detach().double(), y.double(), temperature=0.05)
    assert found.item() == pytest.approx(exact.item(), rel=1e-5)
    found.backward()
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("loss", TWO_VIEWS)
def test_other_losses_take_half_precision_and_any_scale(loss):
    x, y = (v.float() for v in embeddings(6, 8, 16, 2))
    torch.testing.assert_close(loss(x, y), loss(5 * x, 0.1 * y))
    low = loss(x.bfloat16(), y.bfloat16())
    assert low.dtype == torch.float32
    assert torch.isfinite(low)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside, queue = loss(x, y), queue_xent(x, y, x)
    assert torch.equal(inside, loss(x, y))
    assert torch.equal(queue, queue_xent(x, y, x))
    torch.testing.assert_close(queue, queue_xent(3 * x, 2 * y, 7 * x))


def test_mean_cosines_are_means_of_all_pairs():
    x, y = embeddings(9, 5, 3, 2)
    cosines = torch.tensor([[cosine(v, w) for w in y] for v in x])
    positive, negative = mean_cosines(x, y)
    assert positive.item() == pytest.approx(cosines.diagonal().mean().item(), rel=1e-6)
    assert negative.item() == pytest.approx(cosines[~torch.eye(5, dtype=torch.bool)].mean().item(), rel=1e-5)


def test_isif_of_one_image_and_of_equal_embeddings():
    alone = torch.zeros(2, 2, dtype=torch.float64)
    assert isif_from_similarities(alone).item() == 0
    same = torch.ones(6, 6, dtype=torch.float64) / 0.1
    assert isif_from_similarities(same).item() == pytest.approx(math.log(5) - 4 * math.log(4 / 5))
