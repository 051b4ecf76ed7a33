"""GNT-Xent and NT-Xent against a loop over Algorithm 1 in float64."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aag import AAGError
from aag.losses import components, gnt_xent, nt_xent


def algorithm_1(x, y, z, tau, keep_positive):
    """The paper's pseudocode, one scalar at a time."""
    n = len(x)

    def s(v, w):
        return (torch.dot(v, w) / (v.norm() * w.norm())).item() / tau

    total = 0.0
    for i in range(n):
        others = [j for j in range(n) if j != i]
        positive = s(x[i], y[i])
        denominator = sum(
            math.exp(s(x[i], y[j])) + math.exp(s(x[j], y[i])) + math.exp(s(x[i], x[j])) + math.exp(s(y[i], y[j]))
            for j in others
        )
        total += -math.log(math.exp(positive) / (denominator + keep_positive * math.exp(positive)))
        for core in (x, y) if z is not None else ():
            positive = s(z[i], core[i])
            forth = sum(math.exp(s(z[i], core[j])) for j in others) + keep_positive * math.exp(positive)
            back = sum(math.exp(s(z[j], core[i])) for j in others) + keep_positive * math.exp(positive)
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
    views=st.sampled_from([2, 3]),
)
def test_both_losses_equal_the_loop_of_algorithm_1(seed, n, d, tau, views):
    x, y, *rest = embeddings(seed, n, d, views)
    z = rest[0] if rest else None
    assert gnt_xent(x, y, z, temperature=tau).item() == pytest.approx(algorithm_1(x, y, z, tau, 0), rel=1e-9)
    assert nt_xent(x, y, z, temperature=tau).item() == pytest.approx(algorithm_1(x, y, z, tau, 1), rel=1e-9)


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
@pytest.mark.parametrize("views", [2, 3])
def test_gradients_by_finite_differences_reach_every_operand(loss, views):
    inputs = [v.requires_grad_() for v in embeddings(3, 5, 4, views)]
    assert torch.autograd.gradcheck(lambda *v: loss(*v, temperature=0.5), inputs)
    gradients = torch.autograd.grad(loss(*inputs), inputs)
    assert all(gradient.abs().sum() > 0 for gradient in gradients)


@pytest.mark.parametrize("keep_positive", [False, True])
def test_pull_and_push_are_the_gradients_on_the_similarities(keep_positive):
    """Against autograd on the similarities of Algorithm 1, each a free variable."""
    from aag.losses import Similarities, components_of, similarities

    x, y, z = embeddings(5, 6, 8)
    s = Similarities(*(v.clone().requires_grad_() for v in similarities(x, y, z, temperature=0.1)))
    parts = components_of(s, keep_positive)
    core, zx, _ = parts
    on_xy, on_xx, on_yy = torch.autograd.grad(core.loss.sum(), [s.xy, s.xx, s.yy], retain_graph=True)
    assert torch.allclose(on_xy.diagonal(), core.pull)
    off = on_xy.sum() - on_xy.diagonal().sum() + on_xx.sum() + on_yy.sum()
    assert torch.allclose(off, -core.pull.sum())
    (on_zx,) = torch.autograd.grad(zx.loss.sum(), [s.zx])
    assert torch.allclose(on_zx.diagonal(), zx.pull)
    assert torch.allclose(on_zx.sum() - on_zx.diagonal().sum(), -zx.pull.sum())


def test_the_pull_of_gnt_xent_is_constant_and_that_of_nt_xent_fades():
    x = torch.eye(8)
    close = [part.pull for part in components(x, x, x, keep_positive=True)]
    assert all(pull.abs().max() < 0.01 for pull in close)
    core, zx, zy = components(x, x, x)
    assert (core.pull == -1).all()
    assert (zx.pull == -2).all()
    assert (zy.pull == -2).all()


def test_half_precision_inputs_do_not_overflow():
    x = torch.randn(64, 32).half()
    same = gnt_xent(x, x, x)
    assert same.dtype == torch.float32
    assert torch.isfinite(same)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(gnt_xent(x, x, x), same)


def test_scale_of_the_embeddings_does_not_matter():
    x, y, z = embeddings(1, 6, 5)
    assert torch.allclose(gnt_xent(x, y, z), gnt_xent(7 * x, 0.1 * y, 3 * z))


def test_bad_input_is_named():
    with pytest.raises(AAGError, match="at least two"):
        gnt_xent(torch.ones(1, 4), torch.ones(1, 4))
    with pytest.raises(AAGError, match=r"\(3, 4\), \(2, 4\)"):
        gnt_xent(torch.ones(3, 4), torch.ones(2, 4))
    with pytest.raises(AAGError, match="positive"):
        gnt_xent(torch.ones(3, 4), torch.ones(3, 4), temperature=0)
