"""The architectures: parameter counts against numbers computed by hand, shapes, gradients."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from aag.errors import AAGError
from aag.nets import EncoderSpec, build, parameter_count

# ResNet-18. Convolutions without bias; a batch norm has two numbers per channel.
#   stem     3·64·9 + 2·64                                             =     1,856
#   stage 1  4·(64·64·9) + 4·2·64                                      =   147,968
#   stage 2  64·128·9 + 3·(128·128·9) + 64·128 + 5·2·128               =   525,568
#   stage 3  128·256·9 + 3·(256·256·9) + 128·256 + 5·2·256             = 2,099,712
#   stage 4  256·512·9 + 3·(512·512·9) + 256·512 + 5·2·512             = 8,393,728
RESNET18 = 1_856 + 147_968 + 525_568 + 2_099_712 + 8_393_728


def bottlenecks(inputs: int, width: int, depth: int) -> int:
    """Parameters of a ResNet-50 stage: `depth` blocks 1×1, 3×3, 1×1 (four times as wide), one projection."""
    outputs = 4 * width
    block = 9 * width * width + width * outputs + 2 * (width + width + outputs)
    return depth * block + inputs * width + (depth - 1) * outputs * width + inputs * outputs + 2 * outputs


STAGES = ((64, 64, 3), (256, 128, 4), (512, 256, 6), (1024, 512, 3))
RESNET50 = 3 * 64 * 9 + 2 * 64 + sum(bottlenecks(*stage) for stage in STAGES)
RESNET50_HEAD = 2048 * 2048 + 2 * 2048 + 2048 * 128 + 128  # the last batch norm has a scale only

# AlexNet: convolutions with bias, so each layer has inputs·outputs·9 + outputs, and its batch norm 2·outputs.
ALEXNET_CONVS = sum(9 * i * o + 3 * o for i, o in ((3, 64), (64, 192), (192, 384), (384, 256), (256, 256)))
ALEXNET = ALEXNET_CONVS + (4096 * 1024 + 3 * 1024) + (1024 * 1024 + 3 * 1024)
ALEXNET_IP = sum(9 * i * o + 3 * o for i, o in ((3, 96), (96, 256), (256, 384), (384, 384), (384, 256)))


@pytest.mark.parametrize(
    ("network", "backbone", "head", "features", "millions"),
    [
        ("resnet18", RESNET18, 512 * 128 + 128, 512, 11.23),
        ("resnet50", RESNET50, RESNET50_HEAD, 2048, 27.96),
        ("alexnet", ALEXNET, 1024 * 128 + 128, 1024, 7.63),
        ("alexnet-ip", ALEXNET_IP, 4096 * 128 + 128, 4096, 3.85),
    ],
)
def test_parameters_shapes_and_gradients(network, backbone, head, features, millions):
    encoder = build(EncoderSpec(network))
    assert parameter_count(encoder.backbone) == backbone
    assert network != "resnet50" or backbone == 23_500_352
    assert parameter_count(encoder.head) == head
    assert round((backbone + head) / 1e6, 2) == millions
    assert encoder.feature_dim == features

    f, z = encoder(torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8))
    assert (f.shape, z.shape) == ((3, features), (3, 128))
    z.pow(2).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in encoder.parameters())


@pytest.mark.parametrize(("network", "giga"), [("resnet18", 0.555), ("resnet50", 1.298)])
def test_multiply_adds(network, giga):
    backbone = build(EncoderSpec(network)).backbone.to("meta")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        backbone(torch.zeros(1, 3, 32, 32, device="meta"))
    assert round(counter.get_total_flops() / 2 / 1e9, 3) == giga


def test_resnets_take_any_width_and_image_size():
    encoder = build(EncoderSpec("resnet18", width=8, embedding=16))
    features, embedding = encoder(torch.rand(2, 3, 40, 24))
    assert (features.shape, embedding.shape) == ((2, 64), (2, 16))


@pytest.mark.parametrize(("head", "layers"), [("linear", 1), ("mlp", 5)])
def test_head_by_name(head, layers):
    encoder = build(EncoderSpec("resnet18", width=8, embedding=16, head=head))
    assert len(list(encoder.head.children()) or [encoder.head]) == layers
    assert encoder(torch.rand(2, 3, 16, 16))[1].shape == (2, 16)


def test_width_of_the_mlp_head():
    encoder = build(EncoderSpec("resnet18", width=8, embedding=16, head="mlp", head_width=40))
    shapes = [tuple(part.weight.shape) for part in encoder.head if isinstance(part, torch.nn.Linear)]
    assert shapes == [(40, 64), (16, 40)]
    with pytest.raises(AAGError, match=r"--head-width has no effect with --head linear"):
        build(EncoderSpec("resnet18", head="linear", head_width=40))


def test_last_batch_norm_of_the_mlp_cannot_shift():
    z = build(EncoderSpec("resnet18", width=8, head="mlp"))(torch.rand(8, 3, 16, 16))[1]
    torch.testing.assert_close(z.mean(0), torch.zeros(128), atol=1e-5, rtol=0)


@pytest.mark.parametrize(("size", "flat"), [(8, 256), (28, 9 * 256), (64, 64 * 256)])
def test_alexnet_at_other_sizes(size, flat):
    encoder = build(EncoderSpec("alexnet-ip", image_size=size))
    assert encoder(torch.rand(2, 3, size, size))[0].shape == (2, flat)


@pytest.mark.parametrize(("network", "features"), [("timm/resnet10t", 512), ("test_vit", 64), ("test_convnext", 64)])
def test_timm_by_name(network, features):
    encoder = build(EncoderSpec(network))
    f, z = encoder(torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8))
    assert (f.shape, z.shape) == ((2, features), (2, 128))
    z.sum().backward()
    assert encoder.training


def test_timm_feature_size_is_that_of_the_output():
    # Its num_features is 288; a hidden layer after the pooling outputs 1024.
    assert build(EncoderSpec("mobilenetv3_small_050")).feature_dim == 1024


def test_a_shared_name_means_our_network_unless_prefixed():
    timm_resnet = build(EncoderSpec("timm/resnet18", head="linear"))
    assert timm_resnet.backbone.conv1.kernel_size == (7, 7)
    assert not hasattr(build(EncoderSpec("resnet18", width=8)).backbone, "conv1")


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        (EncoderSpec("resnet19"), r"unknown network 'resnet19'; did you mean resnet18"),
        (EncoderSpec("timm/resnt50"), r"unknown network 'timm/resnt50'; did you mean resnet50"),
        (EncoderSpec("qqqqqq"), r"unknown network 'qqqqqq'; .*resnet50 \(timm's models go by"),
        (EncoderSpec("test_vit", image_size=8), r"test_vit cannot take 8×8 images: "),
        (EncoderSpec("alexnet", image_size=7), "at least 8×8 pixels, got 7"),
        (EncoderSpec("custom:Mine"), "custom:Mine is a backbone of your own; pass the module as backbone="),
    ],
)
def test_unknown_or_unfit_network_is_one_line(spec, line):
    with pytest.raises(AAGError, match=line) as caught:
        build(spec)
    assert "\n" not in str(caught.value)
