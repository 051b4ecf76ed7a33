"""Small networks for training kernels in Triton's interpreter, and their distance from plain PyTorch.

Batch norm amplifies rounding errors. So the test is: the kernels' distance from plain PyTorch in float64 is at most a
small factor times that of plain PyTorch in float32.
"""

import copy
from collections.abc import Callable

import pytest
import torch
from checks import as_if_trained
from torch import Tensor

from aag import kernels
from aag.nets import Encoder, EncoderSpec, build, convolutions, fused_conv_norm
from aag.nets.alexnet import AlexNet
from aag.nets.fused import FusedEncoder
from aag.nets.heads import mlp_head
from aag.nets.layers import Linear, use_ghost_batch_norm
from aag.nets.resnet import BasicBlock, Bottleneck, ResNet
from aag.nets.sobel import SobelPair
from aag.training.optimizers import Optimizer


def pair() -> SobelPair:
    """Branches of different sizes, so that none can stand in for the other."""
    colours, edges = ResNet(BasicBlock, (1, 1), 16), ResNet(BasicBlock, (2,), 32)
    both = SobelPair(colours, edges)
    both.feature_dim = colours.feature_dim + edges.feature_dim
    return both


NETWORKS: dict[str, tuple[Callable[[], AlexNet | ResNet | SobelPair], int, int]] = {  # backbone, size, images
    "resnet18 of 16": (lambda: ResNet(BasicBlock, (2, 2, 2, 2), 16), 16, 4),
    "resnet18 of 13": (lambda: ResNet(BasicBlock, (2, 2, 2, 2), 16), 13, 5),
    "basic blocks": (lambda: ResNet(BasicBlock, (2, 1), 16), 9, 4),
    "few pixels": (lambda: ResNet(BasicBlock, (1,), 16), 5, 4),
    "bottlenecks": (lambda: ResNet(Bottleneck, (2, 1), 16), 11, 6),  # one block of each kind, as sixteen take long
    "bottlenecks of 48": (lambda: ResNet(Bottleneck, (1,), 48), 7, 4),
    "bottlenecks of 128": (lambda: ResNet(Bottleneck, (1,), 128), 5, 4),
    "pair": (pair, 9, 4),
    "alexnet": (lambda: AlexNet((16, 48, 32, 64, 16), (64, 32), 17), 17, 6),
}


def network(name: str, photographs: Tensor, groups: int = 0, group_size: int = 0) -> tuple[Encoder, Tensor]:
    """Return an encoder and images: `groups` of `group_size`, where ghost batch norm is wanted."""
    make, size, count = NETWORKS[name]
    torch.manual_seed(1)
    encoder = build(EncoderSpec("resnet18", width=16))
    encoder.backbone = backbone = make()
    encoder.head = (mlp_head if name == "bottlenecks" else Linear)(backbone.feature_dim, 24)
    as_if_trained(encoder)
    if groups:
        use_ghost_batch_norm(encoder, group_size)
        count = groups * group_size
    return encoder.to(memory_format=torch.channels_last), photographs[:count, :, 3 : 3 + size, 7 : 7 + size]


def use_small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run several programs per group of a few small images, most of them with several tiles."""
    for name, warps, programs in (("REDUCTION", 16, 1), ("ELEMENTWISE", 8, 2)):
        for module in (fused_conv_norm, convolutions):
            monkeypatch.setattr(module, name, (2048, warps, programs))


def make_fused(encoder: Encoder, optimizer: Optimizer | None = None) -> FusedEncoder:
    fused = FusedEncoder(encoder, torch.float32, optimizer)
    fused.processors = 7  # several per group, and fewer to sum up than to normalise
    return fused


def objective(embedding: Tensor) -> Tensor:
    """A function of the embeddings whose gradient differs everywhere."""
    random = torch.Generator().manual_seed(3)
    return (embedding * torch.randn(embedding.shape, generator=random).to(embedding.dtype)).sum()


def run_plain(encoder: Encoder, images: Tensor, dtype: torch.dtype) -> tuple[Encoder, Tensor]:
    """Return a copy of the encoder after plain forward and backward passes, and its embeddings."""
    encoder = copy.deepcopy(encoder).to(dtype)
    with kernels.disabled():
        embedding = encoder(images)[1]
        objective(embedding).backward()
    return encoder, embedding.detach()


def running_statistics(encoder: Encoder) -> dict[str, Tensor]:
    return {name: value for name, value in encoder.state_dict().items() if "running" in name}


def assert_as_near(
    found: dict[str, Tensor], plain: dict[str, Tensor], exact: dict[str, Tensor], relative: float = 1e-5
) -> None:
    assert found.keys() == plain.keys() == exact.keys()
    for name, expected in exact.items():
        error, reference = ((value[name].double() - expected).norm() for value in (found, plain))
        allowed = 3 * reference + relative * expected.norm() + 1e-12
        assert error <= allowed, f"{name}: {error:.2e} of {expected.norm():.2e}; in plain PyTorch {reference:.2e}"
