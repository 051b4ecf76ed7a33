"""The encoder around a network: input, inference helpers, seeds, settings, custom backbones."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from aag.errors import AAGError
from aag.nets import EncoderSpec, NetworkSettings, build
from aag.nets.layers import GhostBatchNorm2d

SMALL = EncoderSpec("resnet18", width=8, embedding=16)


def random_images(n: int, size: int = 32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(n)
    return torch.randint(0, 256, (n, 3, size, size), dtype=torch.uint8, generator=generator)


@pytest.fixture
def encoder():
    return build(SMALL, seed=1)


def test_normalises_as_the_papers_do(encoder):
    images = random_images(2)
    x = encoder.normalise(images)
    mean, std = torch.tensor(SMALL.mean), torch.tensor(SMALL.std)
    expected = ((images.double() / 255).permute(0, 2, 3, 1) - mean) / std
    torch.testing.assert_close(x.permute(0, 2, 3, 1).double(), expected, atol=1e-6, rtol=0)
    assert x.is_contiguous(memory_format=torch.channels_last)


def test_uint8_equals_float(encoder):
    images = random_images(4)
    for a, b in zip(encoder(images), encoder(images.float() / 255), strict=True):
        assert torch.equal(a, b)


def test_normalisation_stays_float32_under_autocast(encoder):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert encoder.normalise(random_images(1)).dtype == torch.float32


def test_helpers_agree_with_forward_in_eval_mode(encoder):
    encoder(random_images(8))  # moves the running statistics off their initial values
    images = random_images(7)
    features, embedding = encoder.encode(images, batch_size=3)
    assert torch.equal(features, encoder.features(images, batch_size=3))
    assert torch.equal(embedding, encoder.embed(images, batch_size=3))
    encoder.eval()
    with torch.no_grad():
        f, z = encoder(images)
    torch.testing.assert_close(features, f)
    torch.testing.assert_close(embedding, F.normalize(z))
    assert not features.requires_grad
    assert features.dtype == embedding.dtype == torch.float32


def test_cpu_stays_in_float32(encoder):
    images = random_images(6)
    assert torch.equal(encoder.embed(images), encoder.encode(images, dtype=torch.bfloat16)[1])


def test_helpers_restore_each_mode_and_leave_statistics_alone(encoder):
    frozen = encoder.backbone.stem.eval()
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    encoder.embed(random_images(2))
    assert encoder.training
    assert encoder.head.training
    assert not frozen.training
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())


def test_one_image_and_none(encoder):
    image = random_images(1)
    assert torch.equal(encoder.embed(image[0]), encoder.embed(image))
    assert encoder.features(image[:0]).shape == (0, 64)


@pytest.mark.parametrize(
    ("images", "line"),
    [
        (
            np.zeros((2, 32, 32, 3), np.uint8),
            r"expected a tensor .*; got ndarray; use torch.as_tensor\(array\), or aag.data.load",
        ),
        (torch.zeros(2, 32, 32, 3), r"expected a tensor .*; got shape \[2, 32, 32, 3\]; .*movedim\(-1, -3\)"),
        (torch.zeros(32, 32), r"expected a tensor .*; got shape \[32, 32\]"),
        (torch.zeros(2, 3, 32, 32, dtype=torch.int64), "expected a tensor .*; got torch.int64"),
        (torch.full((2, 3, 32, 32), 255.0), r"float images must lie in \[0, 1\]; these span \[255, 255\]"),
        (torch.full((2, 3, 32, 32), torch.nan), r"float images must lie in \[0, 1\]"),
    ],
)
def test_wrong_images_are_one_line(encoder, images, line):
    with pytest.raises(AAGError, match=line):
        encoder.embed(images)
    assert encoder.training


@pytest.mark.parametrize("network", ["alexnet", "test_vit"])
def test_networks_of_a_fixed_size_refuse_others(network):
    encoder = build(EncoderSpec(network))
    for any_size in (False, True):
        with pytest.raises(AAGError, match=r"was built for 32×32 images; got 40×32: resize them$"):
            encoder.embed(torch.zeros(1, 3, 40, 32), any_size=any_size)


def test_images_of_another_size_are_refused_unless_wanted(encoder):
    images = random_images(2, size=16)
    for work in (encoder.embed, encoder.features, encoder.encode):
        with pytest.raises(AAGError, match="got 16×16: resize them, or pass any_size=True"):
            work(images)
    features, embedding = encoder.encode(images, any_size=True)
    assert torch.equal(encoder.features(images, any_size=True), features)
    assert torch.equal(encoder.embed(images, any_size=True), embedding)


def test_seed_sets_the_weights_and_leaves_the_global_state():
    torch.manual_seed(5)
    state = torch.get_rng_state()
    a, b, c = build(SMALL, seed=3), build(SMALL, seed=3), build(SMALL, seed=4)
    assert torch.equal(torch.get_rng_state(), state)
    for name, weights in a.state_dict().items():
        assert torch.equal(weights, b.state_dict()[name])
    assert not torch.equal(a.head.weight, c.head.weight)


def test_initialisation_is_pytorchs_default():
    torch.manual_seed(7)
    expected = torch.nn.Conv2d(3, 8, 3, bias=False).weight
    assert torch.equal(build(SMALL, seed=7).backbone.stem[0].weight, expected)


def test_spec_round_trip():
    spec = EncoderSpec("timm/resnet10t", None, "mlp", 64, 2, 48, (0.5, 0.4, 0.3), (0.2, 0.3, 0.1))
    assert EncoderSpec.from_json(spec.to_json()) == spec
    deep = EncoderSpec("amdim", depth=5)
    assert EncoderSpec.from_json(deep.to_json()) == deep
    assert "depth" not in EncoderSpec().to_json()  # earlier versions do not know it
    old = '{"network": "resnet18", "width": 8, "head": "auto", "norm_images": 4, "mean": [0.5, 0.5, 0.5]}'
    assert EncoderSpec.from_json(old) == EncoderSpec(width=8, bn_group_size=4, mean=(0.5, 0.5, 0.5))


@pytest.mark.parametrize(
    ("network", "head", "width"),
    [
        ("resnet18", "linear", 8), ("resnet50", "mlp", 8), ("resnet50-edges", "mlp", 8),
        ("resnet50+sobel", "linear", 8), ("amdim", "linear", 8), ("alexnet", "linear", None),
        ("alexnet-ip+sobel", "linear", None), ("timm/resnet50", "linear", None),
        ("test_vit", "linear", None), ("custom:Mine", "linear", None),
    ],
)  # fmt: skip
def test_settings_resolve_once(network, head, width):
    resolved = NetworkSettings(network, width=8).resolve()
    depth = 3 if network == "amdim" else None
    assert resolved == NetworkSettings(network, width, head, depth=depth) == resolved.resolve()
    assert NetworkSettings(network, depth=5).resolve().depth == (depth and 5)
    assert NetworkSettings(network, width=8, head="none").resolve().head == "none"
    assert NetworkSettings(network, width=None).resolve().width == (width and 64)
    expected = EncoderSpec(network, width, head, image_size=48, depth=depth)
    assert EncoderSpec(network, width=8, image_size=48).resolve() == expected


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"embedding": 0}, "--embedding must be at least 1, not 0"),
        ({"image_size": 32.5}, "--image-size must be a whole number"),
        ({"head": "mpl"}, "unknown head 'mpl'; did you mean mlp"),
        ({"width": 8.0}, "width must be a whole number"),
        ({"embedding": True}, "embedding must be a whole number"),
        ({"bn_group_size": -1}, "--bn-group-size must be at least 0, not -1"),
        ({"bn_group_size": 1}, "makes groups of one image"),
        ({"network": 18}, "--network must be text, not 18"),
        ({"head": None}, "--head must be one of auto, linear, mlp, none, not None"),
        ({"std": (0.2, 0.0, 0.2)}, "std must be one positive number per channel"),
        ({"std": (0.2, float("inf"), 0.2)}, "std must be one positive number per channel"),
        ({"mean": 0.5}, r"mean must be one number per channel, such as \(0.5, 0.5, 0.5\), got 0.5"),
        ({"mean": "red"}, "mean must be one number per channel"),
        ({"mean": (0.5,)}, "mean and std must have one number per channel"),
    ],
)
def test_bad_specs(values, line):
    with pytest.raises(AAGError, match=line):
        EncoderSpec(**values)


# --- custom backbones -------------------------------------------------------------------------------------------------


class Pooled(nn.Module):
    """Mean and largest value of each channel; dropout in training mode only."""

    def forward(self, x):
        return F.dropout(torch.cat([x.mean(dim=(2, 3)), x.amax(dim=(2, 3))], dim=1), training=self.training)


def convolutional(channels: int = 3) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, 6, 3), nn.BatchNorm2d(6), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def test_any_module_can_be_the_backbone():
    backbone = convolutional()
    before = copy.deepcopy(backbone.state_dict())
    encoder = build(EncoderSpec("resnet50", image_size=16, embedding=5, bn_group_size=2), seed=1, backbone=backbone)
    assert encoder.backbone is backbone
    assert backbone.training
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())
    assert (encoder.spec.network, encoder.spec.width, encoder.spec.head) == ("custom:Sequential", None, "linear")
    assert isinstance(backbone[1], GhostBatchNorm2d)
    images = random_images(4, size=16)
    features, embedding = encoder(images)
    assert (features.shape, embedding.shape) == ((4, 6), (4, 5))
    assert torch.equal(features, backbone(encoder.normalise(images)))
    again = build(EncoderSpec(image_size=16, embedding=5), seed=1, backbone=convolutional())
    assert torch.equal(again.head.weight, encoder.head.weight)
    assert build(EncoderSpec(), backbone=Pooled()).feature_dim == 6  # it has no weights


def test_the_feature_size_of_a_backbone_may_be_given():
    backbone = Pooled()
    backbone.feature_dim = 6
    backbone.forward = None  # is not called
    assert build(EncoderSpec(), backbone=backbone).feature_dim == 6


def test_channels_follow_from_the_mean():
    spec = EncoderSpec(image_size=16, mean=(0.5, 0.4), std=[0.2, 0.3])
    encoder = build(spec, backbone=convolutional(2))
    assert encoder.embed(torch.rand(3, 2, 16, 16)).shape == (3, 128)
    with pytest.raises(AAGError, match=r"expected a tensor \[N, 2, H, W\]"):
        encoder.embed(torch.rand(3, 3, 16, 16))
    grey = build(EncoderSpec("test_convnext", mean=(0.5,), std=(0.2,)))
    assert grey.embed(torch.rand(2, 1, 32, 32)).shape == (2, 128)
    with pytest.raises(AAGError, match="resnet18 takes images of 3 channels; mean and std have 2"):
        build(spec)


@pytest.mark.parametrize(
    ("backbone", "line"),
    [
        (nn.Conv2d(3, 4, 3), r"Conv2d returns shape \[1, 4, 30, 30\] for one image; a backbone must return"),
        (nn.Conv2d(1, 4, 3), "Conv2d cannot take 32×32 images: "),
        (
            nn.AdaptiveMaxPool2d(1, return_indices=True),
            "returns a tuple for one image; a backbone must return a tensor",
        ),
    ],
)
def test_bad_backbones_are_refused(backbone, line):
    with pytest.raises(AAGError, match=line):
        build(EncoderSpec(), backbone=backbone)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "spec", [SMALL, EncoderSpec("resnet50", width=8), EncoderSpec("alexnet"), EncoderSpec("test_vit")]
)
def test_cuda_agrees_with_cpu(spec):
    encoder, images = build(spec).eval(), random_images(32)
    expected = encoder.embed(images)
    encoder.cuda()
    assert (expected * encoder.embed(images).cpu()).sum(1).min() > 0.9999  # moves images batch by batch
    half = encoder.encode(images.cuda(), dtype=torch.bfloat16)[1]
    assert half.dtype == torch.float32
    assert 0.995 < (expected * half.cpu()).sum(1).min() < 0.9999999


@pytest.mark.gpu
def test_training_step_fits_a_cuda_graph():
    encoder = build(EncoderSpec("resnet50", width=8)).cuda().to(memory_format=torch.channels_last)
    images = random_images(16).cuda()

    def step() -> torch.Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False):
            loss = encoder(images)[1].float().pow(2).sum()
        loss.backward()
        return loss

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    encoder.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    graph.replay()
    assert loss.isfinite()
