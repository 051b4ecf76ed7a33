"""Heads: features [B, F] → embedding [B, D]. None of them normalises: the loss does, in float32."""

from torch import nn

from aag.nets.layers import Linear, ScaleBatchNorm1d


def build_head(name: str, features: int, embedding: int, width: int | None = None) -> tuple[nn.Module, int]:
    """Build the head linear, mlp (with `width` hidden units) or none, and return it with the size of its output."""
    if name == "none":
        return nn.Identity(), features
    if name == "mlp":
        return mlp_head(features, embedding, width), embedding
    return Linear(features, embedding), embedding


def mlp_head(features: int, embedding: int, width: int | None = None) -> nn.Module:
    """Return SimCLR's projection head (v1), by default as wide as the features.

    Its linear layers have no bias, because the batch norms after them would cancel it.
    """
    width = width or features
    return nn.Sequential(
        Linear(features, width, bias=False),
        nn.BatchNorm1d(width),
        nn.ReLU(inplace=True),
        Linear(width, embedding, bias=False),
        ScaleBatchNorm1d(embedding),
    )
