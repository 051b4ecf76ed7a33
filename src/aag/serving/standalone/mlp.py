"""Part of load_encoder.py for the head mlp."""

from torch import nn


def build_head(features: int, width: int, embedding: int) -> nn.Module:
    """Return SimCLR's projection head; its last batch norm has no shift."""
    last = nn.BatchNorm1d(embedding)
    last.register_parameter("bias", None)
    return nn.Sequential(
        nn.Linear(features, width, bias=False),
        nn.BatchNorm1d(width),
        nn.ReLU(),
        nn.Linear(width, embedding, bias=False),
        last,
    )
