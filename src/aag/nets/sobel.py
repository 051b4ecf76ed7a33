"""A pair of backbones: one sees colours, the other edges. Super-AND's network is a pair of ResNet-18s."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

if TYPE_CHECKING:
    from aag.nets.backbones import Backbone


class Sobel(nn.Module):
    """Colours [B, 3, H, W] → how grey changes along a row, how it does along a column, and nothing: [B, 3, H, W].

    Grey is the channels' mean, and outside of the image it is 0. The third channel is empty so that any backbone fits
    behind: weights on zeros do nothing, as if its first layer took two.
    """

    kernel: Tensor  # [3, 3, 3, 3]

    def __init__(self) -> None:
        super().__init__()
        along_row = torch.tensor([[1.0, 0.0, -1.0], [2.0, 0.0, -2.0], [1.0, 0.0, -1.0]])
        filters = torch.stack([along_row, along_row.T, torch.zeros(3, 3)])
        self.register_buffer("kernel", filters[:, None].expand(-1, 3, -1, -1) / 3, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):  # differences of rounded colours would be noise
            return conv2d(x.to(self.kernel.dtype), self.kernel, padding=1)


class SobelPair(nn.Module):
    """Normalised images [B, 3, H, W] → features of the colours and of the edges, side by side."""

    def __init__(self, make: "Callable[[], Backbone]") -> None:
        """`make` gives a fresh backbone at each call."""
        super().__init__()
        colours, edges = make(), make()
        self.colours, self.edges = colours.module, edges.module
        self.sobel = Sobel()
        self.feature_dim = colours.feature_dim + edges.feature_dim
        self.one_size = colours.one_size

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.colours(x), self.edges(self.sobel(x))], dim=1)
