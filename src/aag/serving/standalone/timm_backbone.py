"""Part of load_encoder.py for timm's networks."""

from typing import Any

import timm
from torch import nn


def build_backbone(spec: dict) -> nn.Module:
    name = spec["network"].removeprefix("timm/").removesuffix("-edges").removesuffix("+sobel")
    settings: dict[str, Any] = {"num_classes": 0, "in_chans": len(spec["mean"])}
    try:
        return timm.create_model(name, img_size=spec["image_size"], **settings)
    except TypeError:  # convolutional networks take any size
        return timm.create_model(name, **settings)
