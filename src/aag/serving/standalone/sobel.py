"""Part of load_encoder.py for networks that see edges."""

import torch
from torch import Tensor, nn
from torch.nn.functional import pad


def sobel(x: Tensor) -> Tensor:
    """Return the grey image's gradients along rows and columns, and zeros: [B, 3, H, W]."""
    grey = pad(x.mean(dim=1), (1, 1, 1, 1))
    across, down = grey[..., :-2] - grey[..., 2:], grey[:, :-2] - grey[:, 2:]
    along_row = across[:, :-2] + 2 * across[:, 1:-1] + across[:, 2:]
    along_column = down[..., :-2] + 2 * down[..., 1:-1] + down[..., 2:]
    return torch.stack([along_row, along_column, torch.zeros_like(along_row)], dim=1)


class Pair(nn.Module):
    """One network that sees colours, and one that sees edges."""

    def __init__(self, colours: nn.Module, edges: nn.Module) -> None:
        super().__init__()
        self.colours, self.edges = colours, edges

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.colours(x), self.edges(sobel(x))], dim=1)
