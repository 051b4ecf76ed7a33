"""Networks and their gradients by kernels against plain layers; test_fused.py runs this with TRITON_INTERPRET=1."""

import copy
from dataclasses import replace

import pytest
import torch
from small_networks import (
    assert_as_near,
    make_fused,
    network,
    objective,
    run_plain,
    running_statistics,
    use_small_tiles,
)
from torch import Tensor

from aag import AAGError, kernels
from aag.nets import Encoder
from aag.nets.fused import FusedEncoder


@pytest.mark.parametrize("name", ["resnet18 of 16", "resnet18 of 13", "bottlenecks", "pair", "alexnet"])
def test_network_computes_what_plain_layers_compute(photographs, name):
    encoder, images = network(name, photographs)
    compare_with_plain_layers(encoder, images, FusedEncoder(encoder, torch.float32))


def test_network_of_edges_computes_what_plain_layers_compute(photographs):
    encoder, images = network("basic blocks", photographs)
    encoder.spec = replace(encoder.spec, network="resnet18-edges")
    compare_with_plain_layers(encoder, images, FusedEncoder(encoder, torch.float32))


@pytest.mark.parametrize(
    ("name", "groups", "group_size"),
    [
        ("basic blocks", 2, 2),
        ("basic blocks", 1, 4),
        ("few pixels", 33, 2),
        ("bottlenecks", 2, 4),
        ("pair", 2, 2),
        ("alexnet", 2, 5),
    ],
)
def test_network_normalises_groups_as_plain_layers_do(photographs, monkeypatch, name, groups, group_size):
    """33 groups are more than a kernel adds up at once."""
    use_small_tiles(monkeypatch)
    encoder, images = network(name, photographs, groups, group_size)
    compare_with_plain_layers(encoder, images, make_fused(encoder))


def test_network_refuses_a_batch_that_groups_do_not_divide(photographs):
    encoder, images = network("basic blocks", photographs, 2, 3)
    for way in (FusedEncoder(encoder, torch.float32), kernels.disabled()):
        with (
            pytest.raises(AAGError, match="a batch of 5 images cannot be divided into groups of 3"),
            way,
        ):
            encoder(images[:5])


def compare_with_plain_layers(encoder: Encoder, images: Tensor, fused: FusedEncoder) -> None:
    results = [run_plain(encoder, images, dtype) for dtype in (torch.float32, torch.float64)]
    with fused:
        embedding = encoder(images)[1]
    objective(embedding).backward()
    results.insert(0, (encoder, embedding.detach()))
    gradients = [{name: weight.grad for name, weight in way.named_parameters()} for way, _ in results]
    assert all(gradient.dtype == torch.float32 for gradient in gradients[0].values())
    assert_as_near(*({"embedding": found} for _, found in results))
    assert_as_near(*gradients)
    assert_as_near(*(running_statistics(way) for way, _ in results))
    counts = [count for name, count in encoder.named_buffers() if "num_batches" in name]
    assert set(map(int, counts)) == {8}


def test_network_skips_gradients_that_are_not_needed(photographs):
    """Frozen weights get no gradient, nor does the head where only the features are used."""
    encoder, images = network("basic blocks", photographs)
    encoder.requires_grad_(False)
    encoder.head.requires_grad_(True)
    fused = FusedEncoder(encoder, torch.float32)
    with fused:
        objective(encoder(images)[1]).backward()
    assert all((weight.grad is None) is name.startswith("backbone") for name, weight in encoder.named_parameters())
    encoder.requires_grad_(True)
    encoder.zero_grad()
    with fused:
        objective(encoder(images)[0]).backward()
    assert all((weight.grad is None) is name.startswith("head") for name, weight in encoder.named_parameters())


def test_network_uses_changed_weights_after_a_refresh(photographs):
    encoder, images = network("basic blocks", photographs)
    before = run_plain(encoder, images, torch.float32)[1]
    fused = FusedEncoder(encoder, torch.float32)
    with torch.no_grad():
        for weight in encoder.parameters():
            weight.copy_(weight.flip(0))
    fused.refresh()
    expected = run_plain(encoder, images, torch.float32)[1]
    assert not torch.allclose(expected, before, rtol=0.1, atol=0.1)
    with fused:
        assert torch.allclose(encoder(images)[1], expected, rtol=1e-4, atol=1e-4)


def test_network_takes_float_images_and_refuses_eval_mode(photographs):
    encoder, images = network("few pixels", photographs)
    fused = FusedEncoder(encoder, torch.float32)
    with fused:
        expected = encoder(images)[1]
        torch.testing.assert_close(encoder(images.float() / 255)[1], expected, rtol=1e-4, atol=1e-4)
    encoder.eval()
    with pytest.raises(AAGError, match="in training mode only"), fused:
        encoder(images)


@pytest.mark.parametrize("name", ["basic blocks", "alexnet"])
@pytest.mark.parametrize("accumulate", [False, True], ids=["two passes", "accumulated"])
def test_gradients_of_several_passes_add_up(photographs, name, accumulate):
    encoder, images = network(name, photographs, 1, 8)
    for module in (encoder.head, encoder.backbone.stem[0] if name == "basic blocks" else encoder.backbone.hidden[1]):
        module.requires_grad_(False)  # frozen weights stay without a gradient
    add_up_gradients(encoder, images, accumulate)


def add_up_gradients(encoder: Encoder, images: Tensor, accumulate: bool) -> None:
    """Compare the gradients of two passes: of one sum of losses, or accumulated."""
    results = []
    for dtype in ("kernels", torch.float32, torch.float64):
        copied = copy.deepcopy(encoder).to(torch.float32 if dtype == "kernels" else dtype)
        with make_fused(copied) if dtype == "kernels" else kernels.disabled():
            losses = []
            for part in (images, images.flip(0).flip(3)):
                losses.append(objective(copied(part)[1]))
                if accumulate:
                    losses.pop().backward()
            if losses:
                sum(losses).backward()
        assert all((weight.grad is None) is not weight.requires_grad for weight in copied.parameters())
        gradients = {name: weight.grad for name, weight in copied.named_parameters() if weight.requires_grad}
        results.append(gradients | running_statistics(copied))
    assert_as_near(*results, relative=1e-4)  # gradients of the two passes cancel in part
