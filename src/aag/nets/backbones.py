"""Build backbones by name (ours, and any of timm's), or take a module of the user's own."""

from dataclasses import replace
from difflib import get_close_matches
from typing import Any, NamedTuple

import torch
from torch import nn

from aag.errors import AAGError, first_line, unknown_name
from aag.nets.alexnet import alexnet, alexnet_ip
from aag.nets.amdim import AMDIMNet
from aag.nets.layers import eval_mode
from aag.nets.resnet import resnet18, resnet50
from aag.nets.sobel import SobelPair
from aag.nets.spec import EDGES, SOBEL, EncoderSpec, NetworkSettings

NETWORKS = ("alexnet", "alexnet-ip", "resnet18", "resnet50", "amdim")


class Backbone(NamedTuple):
    module: nn.Module  # [B, C, H, W] → [B, feature_dim]
    feature_dim: int
    fixed_size: bool  # takes images of spec.image_size only


def build_backbone(spec: EncoderSpec) -> Backbone:
    """Build the network that a resolved `spec` names, with fresh weights."""
    if spec.is_custom:
        raise AAGError(f"{spec.network} is a backbone of your own; pass the module as backbone=")
    single = spec.network.replace(SOBEL, "", 1)
    if single != spec.network:
        if EDGES in single:
            raise AAGError(f"{SOBEL} already adds a network that sees edges; use {single.replace(EDGES, '')}{SOBEL}")
        colours, edges = (build_backbone(replace(spec, network=single)) for _ in range(2))
        pair = SobelPair(colours.module, edges.module)
        return Backbone(pair, colours.feature_dim + edges.feature_dim, colours.fixed_size)
    name, width = spec.base_network, spec.width or 0
    if name not in NETWORKS:
        return _from_timm(name, spec)
    if spec.channels != 3:
        raise AAGError(f"{name} takes images of 3 channels; mean and std have {spec.channels}")
    module: nn.Module
    match name:
        case "amdim":
            if spec.image_size != 32:
                size = f"{spec.image_size}×{spec.image_size}"
                raise AAGError(f"the network amdim takes images of 32×32, not {size}; use --image-size 32")
            module = AMDIMNet(2 * width, 16 * width, spec.depth or 3)
        case "resnet18" | "resnet50":
            module = (resnet18 if name == "resnet18" else resnet50)(width)
        case _:
            module = (alexnet if name == "alexnet" else alexnet_ip)(spec.image_size)
    return Backbone(module, module.feature_dim, fixed_size=not name.startswith("resnet"))


def wrap_backbone(module: nn.Module, spec: EncoderSpec) -> Backbone:
    """Find the feature size of the user's `module`: its `feature_dim`, or what one image gives."""
    feature_dim = getattr(module, "feature_dim", None)
    if not isinstance(feature_dim, int):
        feature_dim = _feature_dim(module, spec, type(module).__name__)
    return Backbone(module, feature_dim, fixed_size=False)


def _from_timm(name: str, spec: EncoderSpec) -> Backbone:
    try:
        module, fixed_size = create_timm(check_timm_name(name), spec)
    except AAGError:
        raise
    except Exception as error:  # third-party constructors raise anything
        raise _size_error(name, spec, error) from error
    return Backbone(module, _feature_dim(module, spec, name), fixed_size)


def check_network(settings: NetworkSettings) -> None:
    """Raise if there is no network of that name."""
    name = settings.network.replace(SOBEL, "", 1).removesuffix(EDGES)
    if not settings.is_custom and name not in NETWORKS:
        check_timm_name(name)


def check_timm_name(name: str) -> str:
    """Return the name of a timm model without `timm/`; raise where there is none, or no weights of its tag."""
    import timm  # imported late: it takes a second or two, which our own networks need not pay

    model_name = name.removeprefix("timm/")
    if not timm.is_model(model_name):
        matches = get_close_matches(model_name, {*NETWORKS, *timm.list_models()}, cutoff=0.5)
        raise unknown_name("network", name, matches or NETWORKS, "timm's models go by their timm names")
    base, dot, _ = model_name.partition(".")
    if dot and model_name not in (tagged := timm.list_pretrained(f"{base}.*")):
        raise unknown_name("pretrained weights", model_name, tagged or [base])
    return model_name


def create_timm(name: str, spec: EncoderSpec, *, pretrained: bool = False) -> tuple[nn.Module, bool]:
    """Create a timm model without classifier for images of the spec, and return whether it takes no other size."""
    import timm

    options: dict[str, Any] = {"pretrained": pretrained, "num_classes": 0}
    if spec.channels != 3:
        options["in_chans"] = spec.channels
    try:
        return timm.create_model(name, **options, img_size=spec.image_size), True
    except TypeError:  # convolutional networks take any size, so they have no such argument
        return timm.create_model(name, **options), False


@torch.no_grad()
def _feature_dim(module: nn.Module, spec: EncoderSpec, name: str) -> int:
    """Return the number of features of one image, in eval mode.

    timm's `num_features` is not always right (some models keep a hidden layer after the pooling), and only a forward
    pass tells whether every stage survives this image size.
    """
    like = next(module.parameters(), torch.empty(0))
    with eval_mode(module):
        try:
            features = module(like.new_zeros(1, spec.channels, spec.image_size, spec.image_size))
        except Exception as error:  # third-party modules raise anything
            raise _size_error(name, spec, error) from error
    shape = list(features.shape) if isinstance(features, torch.Tensor) else None
    if shape is None or len(shape) != 2 or shape[1] == 0:
        found = f"a {type(features).__name__}" if shape is None else f"shape {shape}"
        raise AAGError(f"{name} returns {found} for one image; a backbone must return a tensor [1, features]")
    return shape[1]


def _size_error(name: str, spec: EncoderSpec, error: Exception) -> AAGError:
    import timm

    published = timm.get_pretrained_cfg(name.removeprefix("timm/"))
    size = published.input_size[-1] if published else spec.image_size
    advice = f"; use --image-size {size} or another --network" if size != spec.image_size else ""
    return AAGError(f"{name} cannot take {spec.image_size}×{spec.image_size} images: {first_line(error)}{advice}")
