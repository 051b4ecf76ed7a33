"""Part of load_encoder.py for the head mlp."""

from torch import nn


def build_head(features: int, embedding: int) -> nn.Module:
    """Return SimCLR's projection head; its last batch norm has no shift."""
    last = nn.BatchNorm1d(embedding)
    last.register_parameter("bias", None)
    return nn.Sequential(
        nn.Linear(features, features, bias=False),
        nn.BatchNorm1d(features),
        nn.ReLU(),
        nn.Linear(features, embedding, bias=False),
        last,
    )
