"""Small encoders and methods, ready for a step."""

from typing import Any

from aag import nets
from aag.methods import Method, MethodContext
from aag.nets import Encoder
from aag.settings import TrainSettings

SMALL = {"network": "resnet18", "width": 4}


def make_encoder(**spec: Any) -> Encoder:
    return nets.build(nets.EncoderSpec(**SMALL | spec), seed=0)


def make_method(
    kind: type[Method],
    encoder: Encoder | None = None,
    images: int = 100,
    train: TrainSettings | None = None,
    **settings: Any,
) -> Any:
    """Make a method, set up for an encoder (by default one with 6 dimensions) and so many images."""
    method = kind(kind.settings_type(**settings))
    method.setup(MethodContext(encoder or make_encoder(embedding=6), images, train or TrainSettings()))
    return method
