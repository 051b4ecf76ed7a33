"""Whole bottleneck blocks by kernels against plain layers; test_fused.py runs this with TRITON_INTERPRET=1."""

import copy

import pytest
import torch
from interpreted_learning import compare_steps, make_optimizer
from interpreted_network import add_up_gradients, compare_with_plain_layers
from small_networks import make_fused, network, use_small_tiles

from aag import AAGError
from aag.nets import Encoder, bottlenecks
from aag.nets.fused import FusedEncoder
from aag.nets.layers import ConvNorm
from aag.nets.sobel import SobelPair


@pytest.fixture(autouse=True)
def _whole_blocks(monkeypatch):
    monkeypatch.setattr(bottlenecks, "ROWS_PER_INPUT", 0)


@pytest.mark.parametrize(
    ("name", "processors"),
    [("bottlenecks", 1), ("bottlenecks", 7), ("bottlenecks of 48", 7), ("bottlenecks of 128", 7)],
)
def test_blocks_compute_what_plain_layers_compute(photographs, monkeypatch, name, processors):
    """One processor: programs have several tiles each. A width of 128: several tiles of channels."""
    use_small_tiles(monkeypatch)
    encoder, images = network(name, photographs)
    fused = make_fused(encoder)
    fused.processors = processors
    assert len(fused.resnets) == 1
    compare_with_plain_layers(encoder, images, fused)


@pytest.mark.parametrize("rule", ["sgd", "nesterov", "lars"])
def test_learning_as_the_optimizer_does(photographs, rule):
    compare_steps(*network("bottlenecks", photographs), steps=2 if rule == "sgd" else 1, rule=rule)


@pytest.mark.parametrize(("rows_per_input", "whole"), [(8, 2), (10_000, 0)])
def test_blocks_with_too_few_rows_run_layer_by_layer(photographs, monkeypatch, rows_per_input, whole):
    monkeypatch.setattr(bottlenecks, "ROWS_PER_INPUT", rows_per_input)
    encoder, images = network("bottlenecks", photographs)
    applied = []
    apply = bottlenecks._Bottleneck.apply
    monkeypatch.setattr(bottlenecks._Bottleneck, "apply", lambda *args: applied.append(args) or apply(*args))
    compare_with_plain_layers(encoder, images, make_fused(encoder))
    assert len(applied) == whole
    compare_steps(encoder, images, steps=1)


def test_blocks_of_a_pair(photographs):
    encoder, images = pair_of_bottlenecks(photographs)
    assert len(FusedEncoder(encoder, torch.float32).resnets) == 2
    compare_steps(encoder, images, steps=1)


def pair_of_bottlenecks(photographs: torch.Tensor) -> tuple[Encoder, torch.Tensor]:
    (encoder, images), (other, _) = (network("bottlenecks of 48", photographs) for _ in range(2))
    pair = SobelPair(encoder.backbone, other.backbone)
    pair.feature_dim = 2 * encoder.backbone.feature_dim
    encoder.backbone = pair
    encoder.head = torch.nn.Identity()
    return encoder, images


@pytest.mark.parametrize(
    ("accumulate", "frozen"), [(False, "stem"), (True, "blocks.0"), (False, "blocks.1.residual.2")]
)
def test_gradients_of_several_passes_add_up(photographs, accumulate, frozen):
    encoder, images = network("bottlenecks", photographs)
    encoder.backbone.get_submodule(frozen).requires_grad_(False)
    add_up_gradients(encoder, images, accumulate)


def test_blocks_refuse_a_second_pass_in_one_step_and_eval_mode(photographs):
    encoder, images = network("bottlenecks of 48", photographs)
    fused = make_fused(encoder, make_optimizer(encoder))
    with fused:
        x, skip = encoder.backbone.stem(encoder.fused_input(images), skip_stride=1)
        encoder.backbone.fused(x, skip)
        with pytest.raises(AAGError, match="the encoder runs more than once per step"):
            encoder.backbone.fused(x, skip)
    for norm in (encoder.backbone.blocks[0].residual[2].norm, encoder.backbone.blocks[0].shortcut.norm):
        norm.eval()
        with pytest.raises(AAGError, match="in training mode only"), fused:
            encoder(images)
        norm.train()


def test_blocks_not_fused(photographs, monkeypatch):
    """Kernels compute these layer by layer."""
    encoder, _ = network("bottlenecks", photographs)
    assert FusedEncoder(encoder, torch.float32).resnets
    assert not FusedEncoder(network("bottlenecks", photographs, 2, 4)[0], torch.float32).resnets
    assert not FusedEncoder(network("basic blocks", photographs)[0], torch.float32).resnets
    changed = copy.deepcopy(encoder)
    conv = changed.backbone.blocks[1].residual[0].conv
    conv.bias = torch.nn.Parameter(torch.zeros(conv.out_channels))
    assert not FusedEncoder(changed, torch.float32).resnets
    for number, value in ((0, (2, 2)), (2, (2, 2))):
        changed = copy.deepcopy(encoder)
        changed.backbone.blocks[1].residual[number].conv.stride = value
        assert not FusedEncoder(changed, torch.float32).resnets
    changed = copy.deepcopy(encoder)
    changed.backbone.blocks[1].residual.append(ConvNorm(64, 64, 1))
    assert not FusedEncoder(changed, torch.float32).resnets
    monkeypatch.setattr(bottlenecks, "is_distributed", lambda: True)
    assert not FusedEncoder(encoder, torch.float32).resnets
