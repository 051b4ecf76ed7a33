"""ResNet-18 and ResNet-50 with the small-image stem: 3×3, stride 1, no max-pool."""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn


def conv_bn(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """A convolution that keeps the size at stride 1, and its batch norm (whose shift makes a bias idle)."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(outputs),
    )


class Block(nn.Module):
    """relu(residual(x) + shortcut(x)); the shortcut is the identity unless the shape changes."""

    def __init__(self, residual: nn.Module, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.residual = residual
        same = stride == 1 and inputs == outputs
        self.shortcut: nn.Module = nn.Identity() if same else conv_bn(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.residual(x) + self.shortcut(x), inplace=True)


class BasicBlock(Block):
    """Two 3×3 convolutions."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        residual = nn.Sequential(conv_bn(inputs, width, 3, stride), nn.ReLU(inplace=True), conv_bn(width, width, 3))
        super().__init__(residual, inputs, width, stride)


class Bottleneck(Block):
    """1×1, 3×3, 1×1. The stride sits in the 3×3, which sees every pixel; in a 1×1 it would skip three of four."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        outputs = width * self.expansion
        residual = nn.Sequential(
            conv_bn(inputs, width, 1),
            nn.ReLU(inplace=True),
            conv_bn(width, width, 3, stride),
            nn.ReLU(inplace=True),
            conv_bn(width, outputs, 1),
        )
        super().__init__(residual, inputs, outputs, stride)


class ResNet(nn.Module):
    """Images [B, 3, H, W] → pooled features [B, 8 · width · expansion], for any H and W."""

    def __init__(self, block: type[BasicBlock] | type[Bottleneck], depths: Sequence[int], width: int = 64) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv_bn(3, width, 3), nn.ReLU(inplace=True))
        blocks: list[nn.Module] = []
        inputs = width
        for stage, depth in enumerate(depths):
            stage_width = width << stage  # 64, 128, 256, 512
            for i in range(depth):
                halve = i == 0 and stage > 0  # strides 1, 2, 2, 2
                blocks.append(block(inputs, stage_width, stride=2 if halve else 1))
                inputs = stage_width * block.expansion
        self.blocks = nn.Sequential(*blocks)
        self.feature_dim = inputs

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(self.stem(x)).mean(dim=(2, 3))


def resnet18(width: int = 64) -> ResNet:
    return ResNet(BasicBlock, (2, 2, 2, 2), width)


def resnet50(width: int = 64) -> ResNet:
    return ResNet(Bottleneck, (3, 4, 6, 3), width)
