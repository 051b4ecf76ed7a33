"""Backbones by name: ours, and any of timm's."""

from dataclasses import replace
from difflib import get_close_matches
from typing import NamedTuple

import torch
from torch import nn

from aag.errors import AAGError, unknown
from aag.nets.alexnet import alexnet, alexnet_ip
from aag.nets.resnet import resnet18, resnet50
from aag.nets.spec import EDGES, EncoderSpec

NETWORKS = ("alexnet", "alexnet-ip", "resnet18", "resnet50", "amdim")


class Backbone(NamedTuple):
    module: nn.Module  # [B, 3, H, W] → [B, feature_dim]
    feature_dim: int
    one_size: bool  # takes images of spec.image_size only


def backbone(spec: EncoderSpec) -> Backbone:
    """The network that `spec` names, freshly initialised."""
    plain = spec.network.replace("+sobel", "", 1)
    if plain != spec.network:
        if EDGES in plain:
            raise AAGError(f"one of the two in {spec.network} sees edges anyway; use {plain.replace(EDGES, '')}+sobel")
        from aag.nets.sobel import SobelPair

        pair = SobelPair(lambda: backbone(replace(spec, network=plain)))
        return Backbone(pair, pair.feature_dim, pair.one_size)
    match spec.plain_network:
        case "amdim":
            if spec.image_size != 32:
                raise AAGError(f"the network amdim takes images of 32×32, not {spec.image_size}×{spec.image_size}")
            from aag.nets.amdim import AMDIMNet

            amdim = AMDIMNet(2 * spec.width, 16 * spec.width, depth=3)
            return Backbone(amdim, amdim.feature_dim, one_size=True)
        case "resnet18" | "resnet50" as name:
            resnet = (resnet18 if name == "resnet18" else resnet50)(spec.width)
            return Backbone(resnet, resnet.feature_dim, one_size=False)
        case "alexnet" | "alexnet-ip" as name:
            alex = (alexnet if name == "alexnet" else alexnet_ip)(spec.image_size)
            return Backbone(alex, alex.feature_dim, one_size=True)
        case name:
            return _from_timm(name, spec.image_size)


def _from_timm(name: str, image_size: int) -> Backbone:
    import timm  # a second or two, which our own networks need not pay

    model_name = name.removeprefix("timm/")
    if not timm.is_model(model_name):
        near = get_close_matches(model_name, {*NETWORKS, *timm.list_models()}, cutoff=0.5)
        raise unknown("network", name, near or NETWORKS, "timm's models go by their timm names")
    try:
        try:
            module = timm.create_model(model_name, pretrained=False, num_classes=0, img_size=image_size)
            one_size = True
        except TypeError:  # convolutional networks take any size, and so no such argument
            module = timm.create_model(model_name, pretrained=False, num_classes=0)
            one_size = False
        # timm's num_features is not always what comes out (some models keep a hidden layer after the pooling),
        # and only a forward pass tells whether every stage survives this image size.
        shape = _output_shape(module, image_size)
    except Exception as error:  # third-party constructors raise what they like
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise AAGError(f"{name} cannot take {image_size}×{image_size} images: {reason}") from error
    if len(shape) != 2 or shape[1] == 0:
        raise AAGError(f"{name} gives an output of shape {list(shape)} where one vector an image is needed")
    return Backbone(module, shape[1], one_size)


@torch.no_grad()
def _output_shape(module: nn.Module, image_size: int) -> torch.Size:
    training = module.training
    shape = module.eval()(torch.zeros(1, 3, image_size, image_size)).shape
    module.train(training)
    return shape
