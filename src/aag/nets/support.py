"""Which encoders the kernels can train: those whose every module is exactly one of ours, with nothing overridden."""

from collections.abc import Iterator
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import _has_any_global_hook

from aag.nets.alexnet import AlexNet
from aag.nets.encoder import Encoder
from aag.nets.layers import ConvNorm, GhostBatchNorm1d, GhostBatchNorm2d, Linear, MaxPool, ScaleBatchNorm1d
from aag.nets.resnet import BasicBlock, Bottleneck, ResNet
from aag.nets.sobel import SobelPair

_SUPPORTED_TYPES: tuple[type[nn.Module], ...] = (
    Encoder, SobelPair, ResNet, AlexNet, BasicBlock, Bottleneck, ConvNorm, nn.Conv2d, nn.BatchNorm2d, GhostBatchNorm2d,
    MaxPool, Linear, nn.BatchNorm1d, ScaleBatchNorm1d, GhostBatchNorm1d, nn.ModuleList, nn.Sequential, nn.Flatten,
    nn.ReLU, nn.Identity,
)  # fmt: skip


def _methods(cls: type[nn.Module]) -> dict[str, object]:
    names = (name for name in dir(cls) if name == "__call__" or not name.startswith("__"))
    return {name: method for name in names if isinstance(method := getattr(cls, name), FunctionType | property)}


# Compared with the classes later, to detect replaced methods. `aag.nets` is imported before users can replace any.
_ORIGINAL_METHODS = {cls: _methods(cls) for cls in _SUPPORTED_TYPES}


def unsupported_reason(encoder: nn.Module) -> str:
    """Return why the kernels cannot train `encoder`, in plain words; "" where they can."""
    return next(_reasons(encoder), "")


def _reasons(encoder: nn.Module) -> Iterator[str]:
    if type(encoder) is not Encoder:
        yield f"{type(encoder).__name__} is not exactly an aag.nets.Encoder"
        return
    pair = encoder.backbone
    backbones = [pair.colours, pair.edges] if isinstance(pair, SobelPair) else [pair]
    for backbone in backbones:
        if type(backbone) not in (ResNet, AlexNet):
            package = backbone.__module__.partition(".")[0]
            name = "timm's networks are" if package == "timm" else f"the backbone {type(backbone).__name__} is"
            yield f"{name} not supported"
            return
    if _has_any_global_hook():
        yield "all modules have hooks"
    for name, module in encoder.named_modules():
        cls = type(module)
        if cls not in _ORIGINAL_METHODS:
            yield f"{cls.__name__} ({name}) is not supported"
            continue
        for method, original in _ORIGINAL_METHODS[cls].items():
            if getattr(cls, method, None) is not original or method in vars(module):
                yield f"{method} of {name or 'the encoder'} is overridden"
        if name and _has_hooks(module):
            yield f"{name} has hooks"
    weights = list(encoder.named_parameters(remove_duplicate=False))
    if len({weight for _, weight in weights}) < len(weights):
        yield "several layers share a weight"
    for name, weight in weights:
        if weight.dtype != torch.float32:
            yield f"weights in {weight.dtype}"
        elif type(weight) is not nn.Parameter:
            yield f"{name} is a {type(weight).__name__}"
        elif weight._backward_hooks or weight._post_accumulate_grad_hooks:
            yield f"{name} has gradient hooks"
    for backbone in backbones:
        yield from _layer_reasons(backbone, encoder.training)


def _layer_reasons(backbone: nn.Module, training: bool) -> Iterator[str]:
    layers = [module for module in backbone.modules() if type(module) is ConvNorm]
    stem = layers[0].conv
    if (stem.in_channels, stem.kernel_size, stem.stride, stem.padding) != (3, (3, 3), (1, 1), (1, 1)):
        yield "the first convolution is not 3×3 on three channels"
    children = sum(type(module) in (nn.Conv2d, nn.BatchNorm2d, GhostBatchNorm2d) for module in backbone.modules())
    if children != 2 * len(layers) or any(len(layer) != 2 for layer in layers):
        yield "a convolution or batch norm is not part of a ConvNorm"
        return
    for layer in layers:
        conv, norm = layer.conv, layer.norm
        if conv.groups != 1 or conv.dilation != (1, 1) or conv.padding_mode != "zeros" or isinstance(conv.padding, str):
            yield "a convolution with groups, dilation or other padding than zeros"
        if conv.out_channels % 16:
            yield f"a width of {conv.out_channels} is not a multiple of 16"
        tracks = norm.track_running_stats and norm.running_mean is not None and norm.momentum is not None
        if norm.weight is None or norm.bias is None or not tracks:
            yield "a batch norm without weights, running statistics or momentum"
        if norm.training != training:
            yield "a batch norm frozen in eval mode"
    for block in backbone.modules():
        if isinstance(block, BasicBlock | Bottleneck) and block.shortcut is not None:
            last, shortcut = block.residual[-1], block.shortcut
            if shortcut.conv.bias is not None or _norm_settings(last.norm) != _norm_settings(shortcut.norm):
                yield "a shortcut with a bias, or with other batch norm settings than its block"


def _norm_settings(norm: Any) -> tuple[object, ...]:
    return norm.eps, norm.momentum, getattr(norm, "group_size", 0)


def _has_hooks(module: nn.Module) -> bool:
    names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, name) for name in names)
