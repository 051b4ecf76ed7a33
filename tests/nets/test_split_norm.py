"""Batch norm of parts of a batch is a batch norm for each part."""

import copy

import pytest
import torch
from torch import nn

from aag import AAGError
from aag.nets import EncoderSpec, build, load, save
from aag.nets.layers import GhostBatchNorm, use_ghost_batch_norm


@pytest.mark.parametrize(("kind", "shape"), [(nn.BatchNorm2d, (12, 5, 3, 4)), (nn.BatchNorm1d, (12, 5))])
def test_each_lot_has_a_norm_of_its_own(kind, shape):
    x = 3 * torch.randn(shape, generator=torch.Generator().manual_seed(0)).double() + 1
    plain = kind(5).double()
    nn.init.uniform_(plain.weight)
    nn.init.uniform_(plain.bias)
    split = copy.deepcopy(plain)
    use_ghost_batch_norm(split, 4)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    lots = [copy.deepcopy(plain) for _ in range(3)]
    expected = torch.cat([norm(lot) for norm, lot in zip(lots, theirs.chunk(3), strict=True)])
    found = split(ours)
    torch.testing.assert_close(found, expected)
    weights = torch.randn(shape, generator=torch.Generator().manual_seed(1)).double()
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)
    torch.testing.assert_close(split.weight.grad, torch.stack([norm.weight.grad for norm in lots]).sum(dim=0))
    for name in ("running_mean", "running_var"):
        mean = torch.stack([getattr(norm, name) for norm in lots]).mean(dim=0)
        torch.testing.assert_close(getattr(split, name), mean)
    assert split.num_batches_tracked == 1
    plain.load_state_dict(split.state_dict())  # under the same names
    torch.testing.assert_close(split.eval()(x), plain.eval()(x))


def test_a_pass_that_cannot_be_divided_is_told():
    norm = nn.BatchNorm1d(3)
    use_ghost_batch_norm(norm, 4)
    with pytest.raises(AAGError, match="a pass of 10 images cannot be divided into lots of 4"):
        norm(torch.zeros(10, 3))


def test_an_encoder_of_split_norms_treats_lots_apart():
    images = torch.randint(0, 256, (8, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    split = build(EncoderSpec(width=4, image_size=16, head="mlp", norm_images=4), seed=0)
    plain = build(EncoderSpec(width=4, image_size=16, head="mlp"), seed=0)
    lots = torch.cat([plain(lot)[1] for lot in images.chunk(2)])
    torch.testing.assert_close(split(images)[1], lots, rtol=1e-3, atol=1e-4)
    norms = [part for part in split.modules() if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d)]
    assert norms
    assert all(isinstance(norm, GhostBatchNorm) for norm in norms)
    assert split.state_dict().keys() == plain.state_dict().keys()


def test_the_file_of_such_an_encoder_is_a_plain_one_s(tmp_path):
    encoder = build(EncoderSpec(width=4, image_size=16, norm_images=4), seed=0)
    save(encoder, tmp_path / "encoder.safetensors")
    assert load(tmp_path / "encoder.safetensors").spec == EncoderSpec(width=4, image_size=16)


def test_a_norm_that_does_more_is_refused():
    """timm's has an activation inside, which a formula of ours would leave out."""
    with pytest.raises(AAGError, match="is not for BatchNormAct2d; use --norm-images 0"):
        build(EncoderSpec("efficientnet_b0", norm_images=4))


def test_without_a_head_the_embedding_is_the_features():
    images = torch.randint(0, 256, (4, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    encoder = build(EncoderSpec(width=4, image_size=16, head="none", embedding=7), seed=0)
    features, embedding = encoder.eval()(images)
    assert embedding.shape == (4, encoder.feature_dim) == (4, encoder.embedding_dim)
    assert torch.equal(features, embedding)
    assert encoder.embed(images).shape == (4, 32)
