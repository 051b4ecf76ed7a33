"""AMDIM's network: shapes, receptive fields and initialisation."""

import pytest
import torch
import torch.nn.functional as F

from aag import AAGError
from aag.nets.amdim import AMDIMNet, Projection, Residual


def images(n=3, dtype=torch.float32):
    return torch.randn(n, 3, 32, 32, generator=torch.Generator().manual_seed(0), dtype=dtype)


def randomised(module):
    """Move all weights off their initial values, half of which are zero."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return module


def test_maps_and_features_have_the_paper_s_shapes():
    net = AMDIMNet(ndf=4, rkhs=24, depth=2)
    r1, r5, r7 = net.maps(images())
    assert r1.shape == (3, 24, 1, 1)
    assert r5.shape == (3, 24, 5, 5)
    assert r7.shape == (3, 24, 7, 7)
    assert net.feature_dim == 24
    net.eval()
    assert torch.equal(net(images()), net.maps(images())[0].flatten(1))


def test_the_full_size_has_three_blocks_per_stage():
    with torch.device("meta"):
        net = AMDIMNet()
    blocks = [module for module in net.modules() if isinstance(module, Residual)]
    assert len(blocks) == 1 + 4 * 3 + 1
    assert net.feature_dim == 1024
    assert net.to7[2].patch.weight.shape == (128, 128, 1, 1)
    assert net.to5[0].patch.weight.shape == (512, 512, 3, 3)


@pytest.mark.parametrize(("kernel", "stride"), [(1, 1), (3, 1), (2, 2), (4, 2)])
@pytest.mark.parametrize("grows", [0, 2])
def test_a_block_equals_its_formula_patch_by_patch(kernel, stride, grows):
    block = randomised(Residual(3, 3 + grows, kernel, stride)).double()
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    y = block(x)
    side = (8 - kernel) // stride + 1
    assert y.shape == (2, 3 + grows, side, side)
    for i in range(side):
        for j in range(side):
            patch = x[:, :, i * stride : i * stride + kernel, j * stride : j * stride + kernel]
            hidden = torch.einsum("bchw,ochw->bo", patch, block.patch.weight).clamp_min(0)
            expected = hidden @ block.point.weight[:, :, 0, 0].T
            expected[:, :3] += patch.mean(dim=(2, 3))
            assert torch.allclose(y[:, :, i, j], expected)


def test_a_projection_equals_its_formula():
    projection = randomised(Projection(3, 5)).double().eval()
    x = torch.randn(4, 3, 2, 2, dtype=torch.float64)
    hidden = torch.einsum("bchw,oc->bohw", x, projection.hidden.weight[:, :, 0, 0]).clamp_min(0)
    y = torch.einsum("bchw,oc->bohw", hidden, projection.point.weight[:, :, 0, 0])
    y = y + torch.einsum("bchw,oc->bohw", x, projection.shortcut.weight[:, :, 0, 0])
    y = y + projection.shortcut.bias[:, None, None]
    norm = projection.norm
    expected = y / (1 + norm.eps) ** 0.5 * norm.weight[:, None, None] + norm.bias[:, None, None]
    assert torch.allclose(projection(x), expected)


def test_an_untrained_network_computes_averages():
    net = AMDIMNet(ndf=3, rkhs=16, depth=3).eval()
    x = images()
    stem = net.to7[0](x).relu()
    x7 = F.avg_pool2d(F.avg_pool2d(stem, 4, 2), 2, 2)
    assert torch.allclose(net.to7(x)[:, :3], x7, atol=1e-6)
    assert (net.to7(x)[:, 3:] == 0).all()
    top = F.avg_pool2d(F.avg_pool2d(F.avg_pool2d(x7, 3, 1), 3, 1), 3, 1).flatten(1)
    assert torch.allclose(net(x)[:, :3], top, atol=1e-4)


def test_a_position_sees_its_own_patch_only():
    net = randomised(AMDIMNet(ndf=2, rkhs=8, depth=2)).eval()
    x = images(1).requires_grad_()
    _, r5, r7 = net.maps(x)
    (seen,) = torch.autograd.grad(r7[0, :, 0, 0].sum(), x, retain_graph=True)
    assert seen[:, :, 8:].abs().sum() == 0  # 8 pixels wide, and 4 apart
    assert seen[:, :, :8, :8].abs().sum() > 0
    (seen,) = torch.autograd.grad(r5[0, :, 4, 4].sum(), x)
    assert seen[:, :, :16].abs().sum() == 0
    assert seen[:, :, 16:, 16:].abs().sum() > 0


def test_every_weight_gets_a_gradient():
    net = randomised(AMDIMNet(ndf=2, rkhs=8, depth=2))
    sum(r.square().sum() + (r**3).sum() for r in net.maps(images())).backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in net.parameters())


def test_channels_last_is_the_same():
    net = randomised(AMDIMNet(ndf=2, rkhs=10, depth=2))
    last = net.maps(images().contiguous(memory_format=torch.channels_last))
    for a, b in zip(net.maps(images()), last, strict=True):
        assert torch.allclose(a, b, atol=1e-4)


def test_bad_sizes_are_refused():
    with pytest.raises(AAGError, match="no smaller, not 15"):
        AMDIMNet(ndf=4, rkhs=15)
    with pytest.raises(AAGError, match="32×32 only; got 28×32"):
        AMDIMNet(ndf=1, rkhs=4, depth=1)(torch.zeros(2, 3, 28, 32))
