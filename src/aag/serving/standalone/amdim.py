"""Part of load_encoder.py for amdim."""

import torch.nn.functional as F
from torch import Tensor, nn


class Residual(nn.Module):
    """Mean of x over each patch, plus two convolutions of the patch."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> None:
        super().__init__()
        self.kernel, self.stride, self.new_channels = kernel, stride, outputs - inputs
        self.patch = nn.Conv2d(inputs, outputs, kernel, stride, bias=False)
        self.point = nn.Conv2d(outputs, outputs, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.point(F.relu(self.patch(x)))
        return y + F.pad(F.avg_pool2d(x, self.kernel, self.stride), (0, 0, 0, 0, 0, self.new_channels))


def stage(inputs: int, outputs: int, depth: int, kernel: int, stride: int = 1) -> list[Residual]:
    return [Residual(inputs, outputs, kernel, stride), *(Residual(outputs, outputs) for _ in range(depth - 1))]


class AMDIMNet(nn.Module):
    """AMDIM's network for 32×32 images, without the projections that only its loss uses."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        first, last = 2 * width, 16 * width
        self.to7 = nn.Sequential(
            nn.Conv2d(3, first, 3),
            nn.ReLU(),
            Residual(first, first),
            *stage(first, 2 * first, depth, kernel=4, stride=2),
            *stage(2 * first, 4 * first, depth, kernel=2, stride=2),
        )
        self.to5 = nn.Sequential(*stage(4 * first, 4 * first, depth, kernel=3))
        self.to1 = nn.Sequential(
            *stage(4 * first, 4 * first, depth, kernel=3), Residual(4 * first, last, kernel=3), nn.BatchNorm2d(last)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.to1(self.to5(self.to7(x))).flatten(1)


def build_backbone(spec: dict) -> nn.Module:
    return AMDIMNet(spec["width"], spec["depth"])
