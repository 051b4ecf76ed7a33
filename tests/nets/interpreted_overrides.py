"""Nothing that a user overrides is ignored by the kernels; test_fused.py runs this with TRITON_INTERPRET=1."""

import contextlib

import pytest
import torch
from small_networks import network
from torch import Tensor, nn

from aag import kernels
from aag.nets import Encoder, unsupported_reason
from aag.nets.alexnet import AlexNet
from aag.nets.fused import FusedEncoder
from aag.nets.layers import ConvNorm, GhostBatchNorm2d, Linear, MaxPool
from aag.nets.resnet import BasicBlock, ResNet
from aag.nets.sobel import SobelPair

FUSED_TYPES = {
    Encoder: "few pixels", ResNet: "few pixels", BasicBlock: "few pixels", ConvNorm: "few pixels",
    nn.Conv2d: "few pixels", nn.BatchNorm2d: "few pixels", GhostBatchNorm2d: "few pixels", Linear: "few pixels",
    SobelPair: "pair", AlexNet: "alexnet", MaxPool: "alexnet",
}  # fmt: skip


def bend(result: Tensor | tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
    """A nonlinear change, which a batch norm after it does not cancel."""
    return tuple(map(torch.tanh, result)) if isinstance(result, tuple) else torch.tanh(result)


def override(module: nn.Module, way: str) -> None:
    """Change what a module returns."""
    plain = module.forward
    if way == "subclass":
        kind = type(module)
        module.__class__ = type("Mine", (kind,), {"forward": lambda self, *x, **k: bend(kind.forward(self, *x, **k))})
    elif way == "instance":
        module.forward = lambda *x, **k: bend(plain(*x, **k))  # type: ignore[method-assign]
    else:
        module.register_forward_hook(lambda _, __, result: bend(result))


def run_where_supported(encoder: Encoder, images: Tensor) -> Tensor:
    """Run as training does: on kernels if they support the encoder, else on plain layers."""
    with contextlib.nullcontext() if unsupported_reason(encoder) else FusedEncoder(encoder, torch.float32):
        return encoder(images)[1].detach()


@pytest.mark.parametrize("way", ["subclass", "instance", "hook"])
@pytest.mark.parametrize("kind", FUSED_TYPES, ids=lambda kind: kind.__name__)
def test_overrides_are_not_bypassed(photographs, kind, way):
    groups = 2 if kind is GhostBatchNorm2d else 0
    encoder, images = network(FUSED_TYPES[kind], photographs, groups, groups)
    assert not unsupported_reason(encoder)
    with kernels.disabled():
        before = encoder(images)[1].detach()
        override([part for part in encoder.modules() if type(part) is kind][-1], way)
        expected = encoder(images)[1].detach()
    assert bool(unsupported_reason(encoder)) is ((kind, way) != (Encoder, "hook"))  # its own call is never bypassed
    torch.testing.assert_close(run_where_supported(encoder, images), expected, rtol=1e-3, atol=1e-3)
    assert not torch.allclose(before, expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("change", [{"stride": 1}, {"kernel_size": 3}, {"ceil_mode": True}], ids=str)
def test_pool_with_other_settings_is_not_bypassed(change):
    pool, x = MaxPool(), torch.randn(2, 16, 7, 7)
    for name, value in change.items():
        setattr(pool, name, value)
    with kernels.disabled():
        expected = pool(x)
    assert torch.equal(pool(x), expected)
