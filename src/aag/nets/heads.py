"""Heads: features [B, F] → embedding [B, D]. Neither normalises: the loss does, in fp32."""

from torch import nn

from aag.nets.layers import Linear, ScaleBatchNorm1d
from aag.nets.spec import EncoderSpec


def head(spec: EncoderSpec, features: int) -> tuple[nn.Module, int]:
    """The head that `spec` names, for so many features, and the size of what comes out."""
    if spec.head == "none":
        return nn.Identity(), features
    mlp = spec.head == "mlp" or (spec.head == "auto" and spec.plain_network == "resnet50")
    return (mlp_head if mlp else linear_head)(features, spec.embedding), spec.embedding


def linear_head(features: int, embedding: int) -> nn.Module:
    return Linear(features, embedding)


def mlp_head(features: int, embedding: int) -> nn.Module:
    """SimCLR v1's projection: each batch norm follows a layer whose bias it would cancel."""
    return nn.Sequential(
        Linear(features, features, bias=False),
        nn.BatchNorm1d(features),
        nn.ReLU(inplace=True),
        Linear(features, embedding, bias=False),
        ScaleBatchNorm1d(embedding),
    )
