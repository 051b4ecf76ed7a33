"""Ghost batch norm is one batch norm per group of images."""

import copy

import pytest
import torch
from torch import nn

from aag import AAGError
from aag.nets import EncoderSpec, build, load, save
from aag.nets.layers import GhostBatchNorm, use_ghost_batch_norm


@pytest.mark.parametrize(("kind", "shape"), [(nn.BatchNorm2d, (12, 5, 3, 4)), (nn.BatchNorm1d, (12, 5))])
def test_each_group_has_its_own_statistics(kind, shape):
    x = 3 * torch.randn(shape, generator=torch.Generator().manual_seed(0)).double() + 1
    plain = kind(5).double()
    nn.init.uniform_(plain.weight)
    nn.init.uniform_(plain.bias)
    ghost = copy.deepcopy(plain)
    use_ghost_batch_norm(ghost, 4)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    norms = [copy.deepcopy(plain) for _ in range(3)]
    expected = torch.cat([norm(group) for norm, group in zip(norms, theirs.chunk(3), strict=True)])
    found = ghost(ours)
    torch.testing.assert_close(found, expected)
    weights = torch.randn(shape, generator=torch.Generator().manual_seed(1)).double()
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)
    torch.testing.assert_close(ghost.weight.grad, torch.stack([norm.weight.grad for norm in norms]).sum(dim=0))
    for name in ("running_mean", "running_var"):
        mean = torch.stack([getattr(norm, name) for norm in norms]).mean(dim=0)
        torch.testing.assert_close(getattr(ghost, name), mean)
    assert ghost.num_batches_tracked == 1
    plain.load_state_dict(ghost.state_dict())  # the same names
    torch.testing.assert_close(ghost.eval()(x), plain.eval()(x))


def test_a_batch_that_groups_do_not_divide_is_refused():
    norm = nn.BatchNorm1d(3)
    use_ghost_batch_norm(norm, 4)
    with pytest.raises(AAGError, match=r"a batch of 10 images cannot be divided into groups of 4 .* --bn-group-size"):
        norm(torch.zeros(10, 3))


def test_an_encoder_normalises_groups_separately():
    images = torch.randint(0, 256, (8, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    ghost = build(EncoderSpec(width=4, image_size=16, head="mlp", bn_group_size=4), seed=0)
    plain = build(EncoderSpec(width=4, image_size=16, head="mlp"), seed=0)
    expected = torch.cat([plain(group)[1] for group in images.chunk(2)])
    torch.testing.assert_close(ghost(images)[1], expected, rtol=1e-3, atol=1e-4)
    norms = [part for part in ghost.modules() if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d)]
    assert norms
    assert all(isinstance(norm, GhostBatchNorm) for norm in norms)
    assert ghost.state_dict().keys() == plain.state_dict().keys()


def test_its_file_holds_a_plain_encoder(tmp_path):
    encoder = build(EncoderSpec(width=4, image_size=16, bn_group_size=4), seed=0)
    save(encoder, tmp_path / "encoder.safetensors")
    assert load(tmp_path / "encoder.safetensors").spec == EncoderSpec(width=4, image_size=16).resolve()


def test_a_batch_norm_of_another_type_is_refused():
    """timm's includes an activation, which ours would leave out."""
    with pytest.raises(AAGError, match=r"does not support BatchNormAct2d\(.*; use --bn-group-size 0"):
        build(EncoderSpec("efficientnet_b0", bn_group_size=4))


def test_a_batch_norm_with_a_cumulative_mean_is_refused():
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.BatchNorm1d(4, momentum=None))
    with pytest.raises(AAGError, match=r"does not support BatchNorm1d\(4, .*momentum=None"):
        build(EncoderSpec(image_size=2, bn_group_size=4), backbone=backbone)


def test_without_a_head_the_embedding_is_the_features():
    images = torch.randint(0, 256, (4, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    encoder = build(EncoderSpec(width=4, image_size=16, head="none", embedding=7), seed=0)
    features, embedding = encoder.eval()(images)
    assert embedding.shape == (4, encoder.feature_dim) == (4, encoder.embedding_dim)
    assert torch.equal(features, embedding)
    assert encoder.embed(images).shape == (4, 32)
