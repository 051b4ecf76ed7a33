"""Pools, flipped weights and the contrastive loss by kernels; test_fused.py runs this with TRITON_INTERPRET=1."""

import pytest
import torch
import torch.nn.functional as F
from checks import check_contrast, check_pools

from aag import kernels


@pytest.mark.parametrize("shape", [(2, 16, 8, 8), (3, 48, 7, 5), (1, 64, 2, 3), (5, 192, 4, 4)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_pools_are_the_librarys(shape, dtype):
    check_pools(shape, dtype, "cpu", nonnegative=dtype == torch.bfloat16)  # the interpreter orders these by their bits


@pytest.mark.parametrize("channels", [16, 80])
def test_flipped_weights_compute_input_gradients(channels):
    from aag.kernels.flip import flip_weights

    random = torch.Generator().manual_seed(7)
    weight = torch.randn(channels, channels, 3, 3, generator=random).to(memory_format=torch.channels_last)
    flipped = torch.empty_like(weight)
    blocks = -(-channels // 64)
    kernels.launch(flip_weights, (blocks, blocks, 9), weight, flipped, channels, TAPS=9, BLOCK=64, num_warps=4)
    assert torch.equal(flipped, weight.flip(2, 3).transpose(0, 1))
    grad = torch.randn(2, channels, 5, 4, generator=random)
    back = torch.nn.grad.conv2d_input(grad.shape, weight, grad, padding=1)
    torch.testing.assert_close(F.conv2d(grad, flipped, padding=1), back, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("loss", ["gnt-xent", "nt-xent"])
@pytest.mark.parametrize(
    ("views", "n", "width", "temperature"), [(2, 5, 24, 0.1), (3, 6, 24, 0.1), (3, 2, 16, 0.5), (3, 11, 40, 0.02)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_contrast_is_algorithm_1(dtype, views, n, width, temperature, loss):
    check_contrast(views, n, width, temperature, loss, dtype, "cpu")


@pytest.mark.parametrize("loss", ["gnt-xent", "nt-xent"])
@pytest.mark.parametrize("one_way", [False, True])
@pytest.mark.parametrize(("views", "n"), [(3, 5), (4, 6), (6, 3)])
def test_contrast_of_several_auxiliary_views(views, n, one_way, loss):
    check_contrast(views, n, 24, 0.1, loss, torch.float32, "cpu", one_way=one_way, auxiliary_weight=0.6)


def test_contrast_of_two_views_has_no_auxiliary_terms():
    from aag.kernels.contrast import contrast

    loss, numbers = contrast(torch.randn(10, 16), 2, temperature=0.1, keep_positive=False)
    assert numbers.shape == (8,)
    assert loss == numbers[0] == numbers[5]
    assert not numbers[6:].any()
    assert numbers[3] == -1  # GNT-Xent's pull


@pytest.mark.parametrize("exponent", [-60, 70])  # their squares are no float32
def test_contrast_does_not_depend_on_the_size_of_embeddings(exponent):
    from aag.kernels.contrast import contrast

    random = torch.Generator().manual_seed(9)
    given = torch.randn(12, 16, generator=random)
    plain, scaled = given.clone().requires_grad_(), (given * 2.0**exponent).requires_grad_()
    losses = [contrast(v, 3, temperature=0.1, keep_positive=False)[0] for v in (plain, scaled)]
    assert losses[0] == losses[1]
    for loss in losses:
        loss.backward()
    torch.testing.assert_close(scaled.grad * 2.0**exponent, plain.grad)
    zeros = torch.zeros(12, 16, requires_grad=True)
    contrast(zeros, 3, temperature=0.1, keep_positive=False)[0].backward()
    assert zeros.grad.isfinite().all()
