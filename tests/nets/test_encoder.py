"""The encoder around a network: input, inference helpers, seeds, spec."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from aag.errors import AAGError
from aag.nets import EncoderSpec, build

SMALL = EncoderSpec("resnet18", width=8, embedding=16)


def bytes_(n: int, size: int = 32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(n)
    return torch.randint(0, 256, (n, 3, size, size), dtype=torch.uint8, generator=generator)


@pytest.fixture
def encoder():
    return build(SMALL, seed=1)


def test_normalises_as_the_papers_do(encoder):
    images = bytes_(2)
    x = encoder.normalise(images)
    mean, std = torch.tensor(SMALL.mean), torch.tensor(SMALL.std)
    expected = ((images.double() / 255).permute(0, 2, 3, 1) - mean) / std
    torch.testing.assert_close(x.permute(0, 2, 3, 1).double(), expected, atol=1e-6, rtol=0)
    assert x.is_contiguous(memory_format=torch.channels_last)


def test_uint8_equals_float(encoder):
    images = bytes_(4)
    for a, b in zip(encoder(images), encoder(images.float() / 255), strict=True):
        assert torch.equal(a, b)


def test_normalisation_stays_float32_under_autocast(encoder):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert encoder.normalise(bytes_(1)).dtype == torch.float32


def test_helpers_agree_with_forward_in_eval_mode(encoder):
    encoder(bytes_(8))  # moves the running statistics off their initial values
    images = bytes_(7)
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
    images = bytes_(6)
    assert torch.equal(encoder.embed(images), encoder.encode(images, dtype=torch.bfloat16)[1])


def test_helpers_restore_each_mode_and_leave_statistics_alone(encoder):
    frozen = encoder.backbone.stem.eval()
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    encoder.embed(bytes_(2))
    assert encoder.training
    assert encoder.head.training
    assert not frozen.training
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())


def test_one_image_and_none(encoder):
    image = bytes_(1)
    assert torch.equal(encoder.embed(image[0]), encoder.embed(image))
    assert encoder.features(image[:0]).shape == (0, 64)


@pytest.mark.parametrize(
    ("images", "line"),
    [
        (np.zeros((2, 32, 32, 3), np.uint8), "expected a tensor .*; got ndarray"),
        (torch.zeros(2, 32, 32, 3), r"expected a tensor .*; got shape \[2, 32, 32, 3\]"),
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
def test_networks_of_one_size_say_so(network):
    with pytest.raises(AAGError, match="was built for 32×32 images; got 40×32"):
        build(EncoderSpec(network)).embed(torch.zeros(1, 3, 40, 32))


def test_seed_fixes_the_weights_and_global_random_numbers_go_on():
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
    spec = EncoderSpec("timm/resnet10t", 64, "mlp", 32, 48, (0.5, 0.4, 0.3), (0.2, 0.3, 0.1))
    assert EncoderSpec.from_json(spec.to_json()) == spec


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"embedding": 0}, "embedding must be a whole number of at least 1, got 0"),
        ({"image_size": 32.5}, "image_size must be a whole number"),
        ({"head": "mpl"}, "unknown head 'mpl'; did you mean mlp"),
        ({"std": (0.2, 0.0, 0.2)}, "std must be three positive numbers"),
        ({"mean": (0.5,)}, "mean must be three numbers"),
    ],
)
def test_bad_specs(values, line):
    with pytest.raises(AAGError, match=line):
        EncoderSpec(**values)


@pytest.mark.parametrize("text", ["", "[3]", "{", '{"netwrok": "resnet18"}', "7", '{"mean": [1]}'])
def test_bad_descriptions(text):
    with pytest.raises(AAGError):
        EncoderSpec.from_json(text)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "spec", [SMALL, EncoderSpec("resnet50", width=8), EncoderSpec("alexnet"), EncoderSpec("test_vit")]
)
def test_cuda_agrees_with_cpu(spec):
    encoder, images = build(spec).eval(), bytes_(32)
    expected = encoder.embed(images)
    encoder.cuda()
    assert (expected * encoder.embed(images).cpu()).sum(1).min() > 0.9999  # images moved batch by batch
    half = encoder.encode(images.cuda(), dtype=torch.bfloat16)[1]
    assert half.dtype == torch.float32
    assert 0.995 < (expected * half.cpu()).sum(1).min() < 0.9999999


@pytest.mark.gpu
def test_training_step_fits_a_cuda_graph():
    encoder = build(EncoderSpec("resnet50", width=8)).cuda().to(memory_format=torch.channels_last)
    images = bytes_(16).cuda()

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
