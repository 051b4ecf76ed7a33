"""AMDIM's network for 32×32 images: feature maps of 7×7, 5×5 and 1×1 positions, which the loss compares.

Bachman, Hjelm, Buchwalter: "Learning Representations by Maximizing Mutual Information Across Views" (2019).

No convolution is padded and blocks end in 1×1 convolutions, so a position sees only its own patch of the image.
Otherwise one position could predict another by looking at it.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aag.errors import AAGError

IMAGE_SIZE = 32


class Residual(nn.Module):
    """Mean of x over each patch, plus two convolutions of the patch; no batch norm.

    The second convolution starts at zero, so an untrained network computes averages, at any depth.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> None:
        super().__init__()
        self.kernel, self.stride, self.new_channels = kernel, stride, outputs - inputs
        self.patch = nn.Conv2d(inputs, outputs, kernel, stride, bias=False)
        self.point = nn.Conv2d(outputs, outputs, 1, bias=False)
        nn.init.zeros_(self.point.weight)

    def forward(self, x: Tensor) -> Tensor:
        y = self.point(F.relu(self.patch(x), inplace=True))
        if self.kernel > 1:
            x = F.avg_pool2d(x, self.kernel, self.stride)
        return y + (F.pad(x, (0, 0, 0, 0, 0, self.new_channels)) if self.new_channels else x)  # padded with zeros


class Projection(nn.Module):
    """Project each position of a map into the space where the loss compares maps."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.hidden = nn.Conv2d(inputs, outputs, 1, bias=False)
        self.point = nn.Conv2d(outputs, outputs, 1, bias=False)
        self.shortcut = nn.Conv2d(inputs, outputs, 1)
        self.norm = nn.BatchNorm2d(outputs)
        nn.init.zeros_(self.point.weight)
        nn.init.uniform_(self.shortcut.weight, -0.01, 0.01)
        with torch.no_grad():  # start close to the identity
            self.shortcut.weight[:, :, 0, 0].diagonal().fill_(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.point(F.relu(self.hidden(x), inplace=True)) + self.shortcut(x))


class AMDIMNet(nn.Module):
    """Images [B, 3, 32, 32] → global features [B, rkhs]; `maps` also returns the local ones.

    ndf: channels of the first layer. rkhs: size of the space where maps are compared. depth: blocks per stage.
    """

    def __init__(self, ndf: int = 128, rkhs: int = 1024, depth: int = 3) -> None:
        super().__init__()
        if rkhs < 4 * ndf:
            raise AAGError(f"AMDIM's maps have 4 · ndf = {4 * ndf} channels; rkhs must be no smaller, not {rkhs}")
        self.feature_dim = rkhs
        self.to7 = nn.Sequential(
            nn.Conv2d(3, ndf, 3),
            nn.ReLU(inplace=True),  # 30×30
            Residual(ndf, ndf),
            *_stage(ndf, 2 * ndf, depth, kernel=4, stride=2),  # 14×14
            *_stage(2 * ndf, 4 * ndf, depth, kernel=2, stride=2),
        )
        self.to5 = nn.Sequential(*_stage(4 * ndf, 4 * ndf, depth, kernel=3))
        self.to1 = nn.Sequential(
            *_stage(4 * ndf, 4 * ndf, depth, kernel=3),  # 3×3
            Residual(4 * ndf, rkhs, kernel=3),
            nn.BatchNorm2d(rkhs),
        )
        self.project7, self.project5 = Projection(4 * ndf, rkhs), Projection(4 * ndf, rkhs)

    def forward(self, x: Tensor) -> Tensor:
        return self.to1(self.to5(self.to7(_check_size(x)))).flatten(1)

    def maps(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return r1 [B, R, 1, 1], r5 [B, R, 5, 5] and r7 [B, R, 7, 7] with R = rkhs."""
        x7 = self.to7(_check_size(x))
        x5 = self.to5(x7)
        return self.to1(x5), self.project5(x5), self.project7(x7)


def _stage(inputs: int, outputs: int, depth: int, kernel: int, stride: int = 1) -> list[Residual]:
    """Return one block over patches, then depth − 1 blocks over single positions."""
    return [Residual(inputs, outputs, kernel, stride), *(Residual(outputs, outputs) for _ in range(depth - 1))]


def _check_size(x: Tensor) -> Tensor:
    if x.shape[2:] != (IMAGE_SIZE, IMAGE_SIZE):
        height, width = x.shape[2:]
        raise AAGError(f"AMDIM takes images of {IMAGE_SIZE}×{IMAGE_SIZE} only; got {height}×{width}")
    return x
