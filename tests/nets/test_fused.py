"""Training with kernels: supported networks, plain layers outside, and the kernels interpreted or only compiled."""

import copy
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from aag import AAGError, kernels
from aag.nets import Encoder, EncoderSpec, build, unsupported_reason
from aag.nets.layers import ConvNorm, Linear
from aag.nets.resnet import resnet18
from by_triton import compiled, interpret

pytest.importorskip("triton")

from aag.kernels.contrast import contrast
from aag.kernels.flip import flip_weights
from aag.kernels.pool import max_pool, mean_pool
from aag.nets import bottlenecks, convolutions
from aag.nets.convolutions import REDUCTION, LibraryConvolution, row_grid
from aag.nets.fused import FusedEncoder
from aag.training.deterministic import deterministic_algorithms
from aag.training.optimizers import LARS, SGD

INTERPRETED = sorted(Path(__file__).parent.glob("interpreted_*.py"))


# --- supported networks ----------------------------------------------------------------------------------------------


def small_encoder(network: str, **settings: Any) -> Encoder:
    encoder = build(EncoderSpec(network, **{"width": 16, "image_size": 8} | settings))
    return encoder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "network", ["resnet18", "resnet50", "alexnet", "alexnet-ip", "resnet18-edges", "resnet18+sobel"]
)
@pytest.mark.parametrize(
    "settings",
    [{}, {"head": "none"}, {"head": "mlp"}, {"head": "mlp", "head_width": 96}, {"bn_group_size": 4}],
    ids=str,
)
def test_kernels_support_our_networks(network, settings):
    assert unsupported_reason(small_encoder(network, **settings)) == ""
    assert unsupported_reason(small_encoder(network, **settings).requires_grad_(False).eval()) == ""


@pytest.mark.parametrize(
    ("network", "reason"),
    [
        ("test_convnext", "timm's networks are not supported"),
        ("test_convnext+sobel", "timm's networks are not supported"),
        ("amdim", "the backbone AMDIMNet is not supported"),
    ],
)
def test_kernels_do_not_support_other_networks(network, reason):
    assert unsupported_reason(build(EncoderSpec(network, width=16))) == reason


def _set(path: str, **values: Any) -> Any:
    def change(encoder: Encoder) -> None:
        for name, value in values.items():
            setattr(encoder.get_submodule(path), name, value)

    return change


CHANGES = {
    "MyEncoder is not exactly an aag.nets.Encoder": lambda encoder: setattr(
        encoder, "__class__", type("MyEncoder", (Encoder,), {})
    ),
    "Dropout (backbone.blocks.0.dropout) is not supported": lambda encoder: encoder.backbone.blocks[0].add_module(
        "dropout", nn.Dropout()
    ),
    "ParametrizedLinear (head) is not supported": lambda encoder: nn.utils.parametrizations.weight_norm(encoder.head),
    "normalise of the encoder is overridden": _set("", normalise=lambda images: images),
    "_conv_forward of backbone.stem.0 is overridden": _set("backbone.stem.0", _conv_forward=lambda *x: x[0]),
    "several layers share a weight": lambda encoder: setattr(
        encoder.backbone.blocks[0].residual[1][0], "weight", encoder.backbone.blocks[0].residual[0][0].weight
    ),
    "head.weight is a Buffered": lambda encoder: setattr(
        encoder.head, "weight", type("Buffered", (nn.Parameter,), {})(encoder.head.weight.detach())
    ),
    "head has hooks": lambda encoder: nn.utils.spectral_norm(encoder.head),
    "backbone.stem.0 has hooks": lambda encoder: encoder.backbone.stem[0].register_forward_pre_hook(lambda *_: None),
    "head.weight has gradient hooks": lambda encoder: encoder.head.weight.register_hook(lambda grad: grad),
    "weights in torch.float64": lambda encoder: encoder.double(),
    "a width of 24 is not a multiple of 16": lambda encoder: setattr(encoder, "backbone", resnet18(24)),
    "the first convolution is not 3×3": _set("backbone.stem.0", stride=(2, 2)),
    "not part of a ConvNorm": lambda encoder: encoder.backbone.blocks[0].add_module("extra", nn.Conv2d(16, 16, 1)),
    "groups, dilation": _set("backbone.blocks.0.residual.0.0", groups=2),
    "dilation or other padding": _set("backbone.blocks.0.residual.1.0", dilation=(2, 2)),
    "other padding than zeros": _set("backbone.blocks.0.residual.1.0", padding_mode="reflect"),
    "without weights": _set("backbone.blocks.0.residual.1.1", weight=None),
    "running statistics": _set("backbone.blocks.0.residual.1.1", running_mean=None),
    "statistics or momentum": _set("backbone.stem.1", track_running_stats=False),
    "or momentum": _set("backbone.blocks.0.residual.1.1", momentum=None),
    "frozen in eval mode": lambda encoder: encoder.backbone.stem.eval(),
    "other batch norm settings than its block": _set("backbone.blocks.2.shortcut.1", eps=0.1),
}


@pytest.mark.parametrize("reason", CHANGES)
def test_kernels_do_not_support_a_changed_encoder(reason):
    encoder = small_encoder("resnet18")
    CHANGES[reason](encoder)
    assert reason in unsupported_reason(encoder)
    with pytest.raises(AAGError, match="the kernels cannot train this encoder"):
        FusedEncoder(encoder, torch.float32)


@pytest.mark.parametrize(
    ("kind", "method", "name"),
    [
        (ConvNorm, "forward", "backbone.stem"),
        (ConvNorm, "norm", "backbone.stem"),
        (nn.Conv2d, "_conv_forward", "backbone.stem.0"),
        (Encoder, "normalise", "the encoder"),
    ],
)
def test_a_method_assigned_to_the_class_is_not_bypassed(monkeypatch, kind, method, name):
    encoder = small_encoder("resnet18")
    monkeypatch.setattr(kind, method, lambda self, x, **_: x)
    assert unsupported_reason(encoder) == f"{method} of {name} is overridden"


def test_hooks_of_all_modules_are_not_bypassed():
    encoder = small_encoder("resnet18")
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    assert unsupported_reason(encoder) == "all modules have hooks"
    handle.remove()
    assert unsupported_reason(encoder) == ""


def test_weights_must_be_channels_last():
    with pytest.raises(AAGError, match="channels last"):
        FusedEncoder(build(EncoderSpec(width=16)), torch.float32)


def test_layers_are_plain_outside_even_after_an_error():
    encoder = small_encoder("resnet18")
    before = copy.deepcopy(encoder.state_dict())
    layers = [module for module in encoder.modules() if isinstance(module, ConvNorm | Linear)]
    fused = FusedEncoder(encoder, torch.float32)

    def fails() -> None:
        with fused:
            assert encoder.fused_input is not None
            assert all(layer.fused is not None for layer in layers)
            raise ValueError("stop")

    assert len(layers) == 21
    with pytest.raises(ValueError, match="stop"):
        fails()
    assert encoder.fused_input is None
    assert all(layer.fused is None for layer in layers)
    after = encoder.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(value, before[name]) for name, value in after.items())


def test_deterministic_runs_do_not_choose_a_convolution_by_speed(monkeypatch):
    convolution = LibraryConvolution(nn.Conv2d(4, 4, 3, padding=1), torch.randn(4, 4, 3, 3))
    convolution.flipped = torch.empty(4, 4, 3, 3)
    timed = []
    monkeypatch.setattr(convolutions, "_milliseconds", lambda work: timed.append(work) or 1.0)
    with deterministic_algorithms():
        convolution.forward(torch.randn(1, 4, 5, 5), groups=1)
        assert not timed
    convolution.forward(torch.randn(1, 4, 5, 5), groups=1)
    assert len(timed) == 2


# --- interpreted -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tests", INTERPRETED, ids=lambda tests: tests.stem)
def test_interpreted_kernels_agree_with_plain_pytorch(tests):
    interpret(tests)


# --- compiled for a GPU that need not be there -----------------------------------------------------------------------

MODULES = ("norm", "stem", "pool", "contrast", "steps", "flip", "expansion")  # of aag.kernels
TYPES = {
    torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.uint8: "*u8", torch.int8: "*i8", torch.int64: "*i64",
}  # fmt: skip


@cache
def launches() -> tuple[partial, ...]:
    """Return what training launches, each variant once, recorded with tensors on the meta device."""
    with pytest.MonkeyPatch.context() as patch:
        recorded: dict[Any, partial] = {}
        patch.setattr(kernels, "_dry_run_launches", recorded)
        patch.setattr(bottlenecks, "ROWS_PER_INPUT", 0)
        for spec, rule, dtype in _trained():
            encoder = build(spec).to("meta", memory_format=torch.channels_last)
            weights = dict(encoder.named_parameters())
            optimizers = {"": None, "sgd": SGD(weights, 0.9, 1e-4), "lars": LARS(weights, 0.9, 1e-4)}
            optimizers["nesterov"] = SGD(weights, 0.9, 1e-4, nesterov=True)
            with FusedEncoder(encoder, dtype, optimizers[rule]):
                images = torch.empty(48, 3, 32, 32, dtype=torch.uint8, device="meta")
                embedding = encoder(images)[1]
            embedding.sum().backward()
        for views, keep_positive in ((2, False), (3, False), (3, True), (4, False), (6, True)):
            v = torch.empty(views * 128, 128, dtype=torch.bfloat16, device="meta", requires_grad=True)
            contrast(v, views, temperature=0.1, keep_positive=keep_positive, one_way=views > 3)[0].backward()
        for size in (8, 7):
            x = torch.empty(16, 192, size, size, dtype=torch.bfloat16, device="meta", requires_grad=True)
            (max_pool(x).sum() + mean_pool(x).sum()).backward()
        weight = torch.empty(64, 64, 3, 3, dtype=torch.bfloat16, device="meta")
        kernels.launch(flip_weights, (1, 1, 9), weight, torch.empty_like(weight), 64, TAPS=9, BLOCK=64, num_warps=4)
    return tuple(recorded.values())


def _trained() -> Iterator[tuple[EncoderSpec, str, torch.dtype]]:
    for rule in ("sgd", "", "nesterov", "lars"):
        yield EncoderSpec("resnet18"), rule, torch.bfloat16
        yield EncoderSpec("resnet50"), rule, torch.bfloat16
    yield EncoderSpec("resnet50"), "sgd", torch.float32
    yield EncoderSpec("alexnet"), "sgd", torch.bfloat16
    yield EncoderSpec("resnet18", bn_group_size=16), "sgd", torch.bfloat16
    yield EncoderSpec("resnet18", bn_group_size=16), "", torch.bfloat16
    yield EncoderSpec("alexnet", bn_group_size=16), "sgd", torch.bfloat16
    yield EncoderSpec("resnet18-edges"), "sgd", torch.bfloat16


def _compile(launch: partial) -> None:
    """Compile as Triton would, which specialises integers that are 1 or divisible by 16."""
    kernel = launch.func.__self__  # type: ignore[attr-defined]
    wanted = ("num_warps", "num_stages", "enable_fp_fusion")
    options = {name: launch.keywords[name] for name in wanted if name in launch.keywords}
    given = dict(zip(kernel.arg_names, launch.args, strict=False)) | launch.keywords
    types, constants, aligned = {}, {}, set()
    for parameter in kernel.params:
        name, value = parameter.name, given[parameter.name]
        if parameter.is_constexpr or (type(value) is int and value == 1 and not parameter.do_not_specialize):
            constants[name] = value
        elif isinstance(value, Tensor):
            types[name] = TYPES[value.dtype]
            aligned.add(name)
        else:
            types[name] = "i32" if isinstance(value, int) else "fp32"
            if isinstance(value, int) and value % 16 == 0 and not parameter.do_not_specialize:
                aligned.add(name)
    compiled(kernel, types, constants, aligned, **options)


def _module(launch: partial) -> str:
    return launch.func.__self__.__module__.removeprefix("aag.kernels.")  # type: ignore[attr-defined]


def _name(launch: partial) -> str:
    return launch.func.__self__.__name__  # type: ignore[attr-defined]


@pytest.mark.parametrize("module", MODULES)
def test_kernels_compile_in_every_variant_of_training(module):
    found = [launch for launch in launches() if _module(launch) == module]
    assert found
    for launch in found:
        _compile(launch)


def test_every_kernel_module_is_compiled():
    assert set(map(_module, launches())) == set(MODULES)


def test_only_several_groups_take_the_grouped_variants():
    """One group costs nothing extra, even with ghost batch norm."""
    grouped = {(_name(launch), launch.keywords["GROUPED"]) for launch in launches() if "GROUPED" in launch.keywords}
    names = "statistics", "normalise", "backward_sums", "backward_inputs", "stem_convolution", "stem_gradient"
    assert grouped == {(name, several) for name in names for several in (False, True)}
    for launch in launches():
        if "GROUPED" in launch.keywords:
            assert (launch.keywords["grid"][2] > 1) is launch.keywords["GROUPED"]
    for groups, processors in ((1, 132), (8, 132), (64, 132), (3, 2)):
        for channels in (16, 64, 512):
            (programs, blocks, last), sizes = row_grid(10**6, channels, groups, REDUCTION, processors)
            assert blocks * sizes["BLOCK_C"] == channels
            assert last == groups
            assert programs == max(1, processors // (blocks * groups))
