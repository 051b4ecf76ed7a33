"""Heads: features [B, F] → embedding [B, D]. None of them normalises: the loss does, in float32."""

from torch import nn

from aag.nets.layers import Linear, ScaleBatchNorm1d


def build_head(name: str, features: int, embedding: int) -> tuple[nn.Module, int]:
    """Build the head linear, mlp or none, and return it with the size of its output."""
    if name == "none":
        return nn.Identity(), features
    return (mlp_head if name == "mlp" else Linear)(features, embedding), embedding


def mlp_head(features: int, embedding: int) -> nn.Module:
    """SimCLR's projection head (v1). The batch norms would cancel a bias of the layers before them."""
    return nn.Sequential(
        Linear(features, features, bias=False),
        nn.BatchNorm1d(features),
        nn.ReLU(inplace=True),
        Linear(features, embedding, bias=False),
        ScaleBatchNorm1d(embedding),
    )
