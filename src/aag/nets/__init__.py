"""Networks: images in, features and embedding out.

encoder = build(EncoderSpec("resnet18"), seed=0)
features, embedding = encoder(images)  # [B, 512], [B, 128]; images uint8 [B, 3, 32, 32]
"""

from aag.nets.backbones import NETWORKS
from aag.nets.encoder import Encoder, build, evaluating, parameter_count
from aag.nets.files import load, save
from aag.nets.spec import EncoderSpec

__all__ = ["NETWORKS", "Encoder", "EncoderSpec", "build", "evaluating", "load", "parameter_count", "save"]
