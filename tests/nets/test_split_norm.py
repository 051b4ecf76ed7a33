"""Batch norm of parts of a batch is a batch norm for each part."""

import copy

import pytest
import torch
from torch import nn

from aag import AAGError
from aag.nets import EncoderSpec, build
from aag.nets.layers import SplitNorm


@pytest.mark.parametrize(("kind", "shape"), [(nn.BatchNorm2d, (12, 5, 3, 4)), (nn.BatchNorm1d, (12, 5))])
def test_each_lot_has_a_norm_of_its_own(kind, shape):
    x = 3 * torch.randn(shape, generator=torch.Generator().manual_seed(0)).double() + 1
    plain = kind(5).double()
    nn.init.uniform_(plain.weight)
    nn.init.uniform_(plain.bias)
    split = SplitNorm(copy.deepcopy(plain), 4)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    lots = [copy.deepcopy(plain) for _ in range(3)]
    expected = torch.cat([norm(lot) for norm, lot in zip(lots, theirs.chunk(3), strict=True)])
    found = split(ours)
    torch.testing.assert_close(found, expected)
    weights = torch.randn(shape, generator=torch.Generator().manual_seed(1)).double()
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)
    torch.testing.assert_close(split.norm.weight.grad, torch.stack([norm.weight.grad for norm in lots]).sum(dim=0))
    for name in ("running_mean", "running_var"):
        mean = torch.stack([getattr(norm, name) for norm in lots]).mean(dim=0)
        torch.testing.assert_close(getattr(split.norm, name), mean)
    assert split.norm.num_batches_tracked == 1
    split.eval()
    torch.testing.assert_close(split(x), split.norm(x))


def test_a_pass_that_cannot_be_divided_is_told():
    with pytest.raises(AAGError, match="a pass of 10 images cannot be divided into lots of 4"):
        SplitNorm(nn.BatchNorm1d(3), 4)(torch.zeros(10, 3))


def test_an_encoder_of_split_norms_treats_lots_apart():
    images = torch.randint(0, 256, (8, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    split = build(EncoderSpec(width=4, image_size=16, head="mlp", norm_images=4), seed=0)
    plain = build(EncoderSpec(width=4, image_size=16, head="mlp"), seed=0)
    lots = torch.cat([plain(lot)[1] for lot in images.chunk(2)])
    torch.testing.assert_close(split(images)[1], lots, rtol=1e-3, atol=1e-4)
    assert not any(
        isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d)
        for module in split.modules()
        if not isinstance(module, SplitNorm)
        for part in module.children()
    )


def test_without_a_head_the_embedding_is_the_features():
    images = torch.randint(0, 256, (4, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    encoder = build(EncoderSpec(width=4, image_size=16, head="none", embedding=7), seed=0)
    features, embedding = encoder.eval()(images)
    assert embedding.shape == (4, encoder.feature_dim) == (4, encoder.embedding_dim)
    assert torch.equal(features, embedding)
    assert encoder.embed(images).shape == (4, 32)
