"""Instance discrimination: its softmax and its NCE loss against loops, its memory against a slow version."""

import math

import pytest
import torch
from making import make_encoder, make_method
from torch.nn.functional import normalize

from aag.methods.instance import Instance, log_normaliser, nce

N = 12


def instance(**settings):
    return make_method(Instance, images=N, **settings)


def embeddings(seed, n=4, d=6):
    return torch.randn(1, n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_loss_equals_the_loop():
    method = instance().double()
    x, index = embeddings(0), torch.tensor([3, 0, 11, 5])
    loss, log, _ = method.loss(x, index)
    total = probability = 0.0
    for row, i in zip(x[0], index.tolist(), strict=True):
        e = [math.exp(torch.dot(row / row.norm(), b).item() / 0.1) for b in method.bank.rows]
        total += -math.log(e[i] / sum(e)) / 4
        probability += e[i] / sum(e) / 4
    assert loss.item() == pytest.approx(total)
    assert [value.item() for value in log] == pytest.approx([probability])


def test_a_step_of_the_whole_from_images_to_memory(photographs):
    method, encoder = instance(), make_encoder(embedding=6)
    index = torch.tensor([7, 2, 9, 4])
    before = method.bank.rows.clone()
    output = method(encoder, photographs[None, :4], index)
    assert torch.equal(method.bank.rows, before)  # not before the optimizer's step
    method.after_step(encoder, *output.carry)
    v = normalize(encoder(photographs[:4])[1], dim=1).detach()
    assert torch.allclose(method.bank.rows[index], normalize(0.5 * before[index] + 0.5 * v, dim=1), atol=1e-5)
    rest = [i for i in range(N) if i not in index]
    assert torch.equal(method.bank.rows[rest], before[rest])


def nce_by_loop(s, z, images):
    """Equations 5 to 7 of the paper with uniform noise, one sample at a time; the mean over the batch."""
    total, k = 0.0, s.shape[1] - 1
    for row in s.tolist():
        p, noise = [math.exp(value) / z for value in row], k / images
        total -= math.log(p[0] / (p[0] + noise)) + sum(math.log(noise / (q + noise)) for q in p[1:])
    return total / len(s)


def test_nce_equals_the_loop_with_gradients():
    s = torch.randn(3, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64).mul(4).requires_grad_()
    log_z = torch.tensor(math.log(70.0), dtype=torch.float64)
    positive, noise = nce(s, log_z, images=40)
    assert (positive + noise).mean().item() == pytest.approx(nce_by_loop(s, 70.0, 40))
    assert torch.autograd.gradcheck(lambda s: tuple(nce(s, log_z, images=40)), s)
    z = 40 * sum(math.exp(value) for value in s.flatten().tolist()) / 18
    assert log_normaliser(s, 40).item() == pytest.approx(math.log(z))


def test_nce_mode_equals_the_loop_and_keeps_the_first_z():
    method = instance(negatives=5).double()
    zs = []
    for step in range(3):
        x, index = embeddings(step), torch.arange(4) + step
        picked = torch.cat([index[:, None], method.noise(index)], dim=1)
        s = torch.einsum("nd,nkd->nk", normalize(x[0], dim=1), method.bank.rows[picked]) / 0.1
        zs.append(N * s.exp().mean().item())
        loss, (told,), carry = method.loss(x, index)
        assert loss.item() == pytest.approx(nce_by_loop(s, zs[0], N))  # the first step's own uses it already
        assert 0 < told.item() < 1
        method.after_step(None, *carry)
        assert method.log_z.exp().item() == pytest.approx(zs[0])
        assert method.step.item() == step + 1
    assert zs[1] != pytest.approx(zs[0])


def test_noise_is_uniform_and_another_at_each_step_but_the_same_after_a_restart():
    method = instance(negatives=3000)
    index = torch.arange(4)
    first = method.noise(index)
    assert first.shape == (4, 3000)
    counts = first.flatten().bincount(minlength=N)
    assert len(counts) == N
    assert counts.min() > 850
    assert counts.max() < 1150
    method.step += 1
    second = method.noise(index)
    assert (first == second).float().mean() < 0.15
    assert torch.equal(method.noise(index[[2, 0]]), second[[2, 0]])  # whatever the batch
    other = instance(negatives=3000)
    other.load_state_dict(method.state_dict())
    assert torch.equal(other.noise(index), second)
    assert (first[0] == first[1]).float().mean() < 0.15
