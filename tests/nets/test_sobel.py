"""Edges against a loop over pixels, and the networks that see them."""

import pytest
import torch
from torch import nn

from aag import AAGError, nets
from aag.nets.sobel import SobelPair, sobel


def test_edges_equal_the_loop_over_pixels():
    x = torch.randn(2, 3, 5, 7, dtype=torch.float64)
    edges = sobel(x)
    grey = x.mean(dim=1)

    def at(b, i, j):
        return grey[b, i, j].item() if 0 <= i < 5 and 0 <= j < 7 else 0.0

    for b in range(2):
        for i in range(5):
            for j in range(7):
                row = sum(w * (at(b, i + k, j - 1) - at(b, i + k, j + 1)) for k, w in ((-1, 1), (0, 2), (1, 1)))
                column = sum(w * (at(b, i - 1, j + k) - at(b, i + 1, j + k)) for k, w in ((-1, 1), (0, 2), (1, 1)))
                assert torch.allclose(edges[b, :, i, j], torch.tensor([row, column, 0.0], dtype=torch.float64))


def test_edges_are_full_precision_under_autocast_and_keep_the_layout():
    x = torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        edges = sobel(x)
    assert edges.dtype == torch.float32
    assert torch.equal(edges, sobel(x))
    assert edges.is_contiguous(memory_format=torch.channels_last)


def test_features_of_both_branches_are_concatenated():
    colours, edges = (nn.Sequential(nn.Conv2d(3, n, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()) for n in (4, 5))
    x = torch.randn(2, 3, 8, 8)
    features = SobelPair(colours, edges)(x)
    assert torch.equal(features[:, :4], colours(x))
    assert torch.equal(features[:, 4:], edges(sobel(x)))


def test_an_encoder_of_edges_alone_by_name(photographs):
    encoder = nets.build(nets.EncoderSpec("resnet18-edges", width=4), seed=0)
    plain = nets.build(nets.EncoderSpec("resnet18", width=4), seed=0)
    edges = sobel(plain.normalise(photographs[:4]))
    assert torch.equal(encoder.eval()(photographs[:4])[0], plain.eval().backbone(edges))
    assert encoder.state_dict().keys() == plain.state_dict().keys()
    assert isinstance(nets.build(nets.EncoderSpec("resnet50-edges", width=4)).head, nn.Sequential)  # as resnet50's is
    assert nets.EncoderSpec.from_json(encoder.spec.to_json()).sees_edges


@pytest.mark.parametrize("name", ["resnet18-edges+sobel", "resnet18+sobel-edges"])
def test_two_kinds_of_edges_are_refused(name):
    with pytest.raises(AAGError, match=r"use resnet18\+sobel"):
        nets.build(nets.EncoderSpec(name, width=4))


def test_an_encoder_with_edges_by_name(photographs):
    encoder = nets.build(nets.EncoderSpec("resnet18+sobel", width=4), seed=0)
    plain = nets.build(nets.EncoderSpec("resnet18", width=4), seed=0)
    features, embedding = encoder(photographs[:4])
    assert features.shape == (4, 64)
    assert embedding.shape == (4, 128)
    embedding.sum().backward()
    assert all(parameter.grad is not None for parameter in encoder.parameters())
    assert nets.parameter_count(encoder.backbone) == 2 * nets.parameter_count(plain.backbone)
    stem = encoder.backbone.edges.stem.conv.weight.grad
    assert stem[:, :2].abs().sum() > 0
    assert stem[:, 2].abs().sum() == 0  # the empty channel
