"""Sobel edges: DeepCluster's networks see them instead of colours; Super-AND's pair sees both."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import pad


def sobel(x: Tensor) -> Tensor:
    """Return the grey image's gradient along rows, along columns, and zeros: [B, 3, H, W] → [B, 3, H, W].

    Grey is the mean over channels, 0 outside the image. The third channel is zero so that any backbone for three
    channels fits: its weights for that channel do nothing. The result is channels last.
    """
    # Differences instead of a convolution, which autocast would compute in half precision.
    grey = pad(x.mean(dim=1), (1, 1, 1, 1))  # [B, H + 2, W + 2]
    across, down = grey[..., :-2] - grey[..., 2:], grey[:, :-2] - grey[:, 2:]
    along_row = across[:, :-2] + 2 * across[:, 1:-1] + across[:, 2:]
    along_column = down[..., :-2] + 2 * down[..., 1:-1] + down[..., 2:]
    return torch.stack([along_row, along_column, torch.zeros_like(along_row)], dim=-1).movedim(-1, 1)


class SobelPair(nn.Module):
    """Normalised images [B, 3, H, W] → the features of `colours` and those of `edges`, concatenated."""

    fused: Callable[[Tensor], Tensor] | None = None  # computes the same with kernels, see `aag.nets.fused`

    def __init__(self, colours: nn.Module, edges: nn.Module) -> None:
        super().__init__()
        self.colours, self.edges = colours, edges

    def forward(self, x: Tensor) -> Tensor:
        if self.fused is not None:
            return self.fused(x)
        return torch.cat([self.colours(x), self.edges(sobel(x))], dim=1)
