"""Networks: images in, features and embedding out.

encoder = build(EncoderSpec("resnet18"), seed=0)
features, embedding = encoder(images)  # [B, 512], [B, 128]; images uint8 [B, 3, 32, 32]
"""

from aag.nets.backbones import NETWORKS
from aag.nets.encoder import Encoder, build, parameter_count
from aag.nets.files import is_saved, load, read_spec, save
from aag.nets.layers import eval_mode
from aag.nets.spec import EncoderSpec, NetworkSettings
from aag.nets.support import unsupported_reason

__all__ = [
    "NETWORKS", "Encoder", "EncoderSpec", "NetworkSettings", "build", "eval_mode", "is_saved", "load",
    "parameter_count",
    "read_spec", "save", "unsupported_reason",
]  # fmt: skip
