"""Edges in the place of colours, as DeepCluster has them, or beside them: Super-AND's network is a pair."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

if TYPE_CHECKING:
    from aag.nets.backbones import Backbone


def sobel(x: Tensor) -> Tensor:
    """Colours [B, 3, H, W] → how grey changes along a row, how it does along a column, and nothing: [B, 3, H, W].

    Grey is the channels' mean, and outside of the image it is 0. The third channel is empty so that any backbone fits
    behind: weights on zeros do nothing, as if its first layer took two. The result is channels last.
    """
    # By differences: under autocast a convolution would round the colours first, and leave noise.
    grey = pad(x.mean(dim=1), (1, 1, 1, 1))  # [B, H + 2, W + 2]
    across, down = grey[..., :-2] - grey[..., 2:], grey[:, :-2] - grey[:, 2:]
    along_row = across[:, :-2] + 2 * across[:, 1:-1] + across[:, 2:]
    along_column = down[..., :-2] + 2 * down[..., 1:-1] + down[..., 2:]
    return torch.stack([along_row, along_column, torch.zeros_like(along_row)], dim=-1).movedim(-1, 1)


class SobelPair(nn.Module):
    """Normalised images [B, 3, H, W] → features of the colours and of the edges, side by side."""

    def __init__(self, make: "Callable[[], Backbone]") -> None:
        """`make` gives a fresh backbone at each call."""
        super().__init__()
        colours, edges = make(), make()
        self.colours, self.edges = colours.module, edges.module
        self.feature_dim = colours.feature_dim + edges.feature_dim
        self.one_size = colours.one_size

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.colours(x), self.edges(sobel(x))], dim=1)
