"""Training by kernels: which networks, that plain layers come back, and the kernels without a GPU to run them."""

import copy
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from aag import kernels
from aag.nets import NETWORKS, Encoder, EncoderSpec, build
from aag.nets.layers import ConvNorm, Linear
from by_triton import compiled, interpret

pytest.importorskip("triton")

from aag.kernels.contrast import contrast
from aag.kernels.pool import max_pool, mean_pool
from aag.kernels.turn import turn
from aag.nets.fused import Fused
from aag.nets.products import FEW, shared
from aag.training.optimizers import LARS, SGD

INTERPRETED = Path(__file__).with_name("interpreted_fused.py")


# --- which networks --------------------------------------------------------------------------------------------------


def built(network: str, **settings: Any) -> Encoder:
    return build(EncoderSpec(network, **{"width": 16, "image_size": 8} | settings))


@pytest.mark.parametrize("network", [name for name in NETWORKS if name != "amdim"])
def test_every_convolution_of_ours_is_of_the_kernels_kind(network):
    encoder = built(network)
    layers = [module for module in encoder.modules() if isinstance(module, ConvNorm)]
    assert len(layers) == sum(isinstance(module, nn.Conv2d) for module in encoder.modules())
    assert all(layer.conv.out_channels % 16 == 0 for layer in layers)  # masks are bytes of eight, products of sixteen
    assert all(layer.conv.padding == (layer.conv.kernel_size[0] // 2,) * 2 for layer in layers)
    assert [layer.conv.in_channels for layer in layers].index(3) == 0


def test_layers_are_plain_again_outside_whatever_happens():
    encoder = built("resnet18")
    before = copy.deepcopy(encoder.state_dict())
    layers = [module for module in encoder.modules() if isinstance(module, ConvNorm | Linear)]
    fused = Fused(encoder, torch.float32)

    def fails() -> None:
        with fused:
            assert encoder.prepare is not None
            assert all(layer.fused is not None for layer in layers)
            raise ValueError("stop")

    assert len(layers) == 21
    with pytest.raises(ValueError, match="stop"):
        fails()
    assert encoder.prepare is None
    assert all(layer.fused is None for layer in layers)
    after = encoder.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(value, before[name]) for name, value in after.items())


# --- interpreted -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["test_network", "not test_network"])
def test_interpreted_kernels_agree_with_plain_pytorch(part):
    interpret(INTERPRETED, part)


# --- compiled for a GPU that need not be there -----------------------------------------------------------------------

MODULES = ("norm", "patches", "pool", "contrast", "steps", "turn")  # of aag.kernels
TYPES = {
    torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.uint8: "*u8", torch.int8: "*i8", torch.int64: "*i64",
}  # fmt: skip


@cache
def launches() -> tuple[partial, ...]:
    """What training in bf16 launches, each variant once, taken down where tensors have no memory."""
    with pytest.MonkeyPatch.context() as patch:
        noted: dict[Any, partial] = {}
        patch.setattr(kernels, "_dry_run_launches", noted)
        for spec, rule in _trained():
            encoder = build(spec).to("meta", memory_format=torch.channels_last)
            weights = dict(encoder.named_parameters())
            ways = {"": None, "sgd": SGD(weights, 0.9, 1e-4), "lars": LARS(weights, 0.9, 1e-4)}
            ways["nesterov"] = SGD(weights, 0.9, 1e-4, nesterov=True)
            with Fused(encoder, torch.bfloat16, ways[rule]):
                images = torch.empty(48, 3, 32, 32, dtype=torch.uint8, device="meta")
                embedding = encoder(images)[1]
            embedding.sum().backward()
        for views, keep_positive in ((2, False), (3, False), (3, True)):
            v = torch.empty(views * 128, 128, dtype=torch.bfloat16, device="meta", requires_grad=True)
            contrast(v, views, temperature=0.1, keep_positive=keep_positive)[0].backward()
        for size in (8, 7):
            x = torch.empty(16, 192, size, size, dtype=torch.bfloat16, device="meta", requires_grad=True)
            (max_pool(x).sum() + mean_pool(x).sum()).backward()
        weight = torch.empty(64, 64, 3, 3, dtype=torch.bfloat16, device="meta")
        kernels.launch(turn, (1, 1, 9), weight, torch.empty_like(weight), 64, TAPS=9, BLOCK=64, num_warps=4)
    return tuple(noted.values())


def _trained() -> Iterator[tuple[EncoderSpec, str]]:
    yield EncoderSpec("resnet18"), "sgd"
    yield EncoderSpec("resnet18"), ""
    yield EncoderSpec("resnet18"), "nesterov"
    yield EncoderSpec("resnet18"), "lars"
    yield EncoderSpec("alexnet"), "sgd"
    yield EncoderSpec("resnet18", norm_images=16), "sgd"
    yield EncoderSpec("resnet18", norm_images=16), ""
    yield EncoderSpec("alexnet", norm_images=16), "sgd"
    yield EncoderSpec("resnet18-edges"), "sgd"


def _compile(launch: partial) -> None:
    """As Triton would: of whole numbers it looks for those that 16 divides, and for 1."""
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
def test_kernels_compile_in_every_form_that_training_takes(module):
    found = [launch for launch in launches() if _module(launch) == module]
    assert found
    for launch in found:
        _compile(launch)


def test_no_module_is_left_out():
    assert set(map(_module, launches())) == set(MODULES)


def test_lots_take_the_variants_for_them_and_the_whole_batch_none():
    """As one lot does, be it by a batch norm for lots: nothing is to be paid where there is nothing to divide."""
    split = {(_name(launch), launch.keywords["SPLIT"]) for launch in launches() if "SPLIT" in launch.keywords}
    names = "statistics", "normalise", "backward_sums", "backward_inputs", "first_convolution", "first_gradient"
    assert split == {(name, lots) for name in names for lots in (False, True)}
    for launch in launches():
        if "SPLIT" in launch.keywords:
            assert (launch.keywords["grid"][2] > 1) is launch.keywords["SPLIT"]
    for lots, processors in ((1, 132), (8, 132), (64, 132), (3, 2)):
        for channels in (16, 64, 512):
            (programs, groups, last), sizes = shared(10**6, channels, lots, FEW, processors)
            assert groups * sizes["BLOCK_C"] == channels
            assert last == lots
            assert programs == max(1, processors // (groups * lots))
