"""ResNet-18 and ResNet-50 with the stem for small images: 3×3, stride 1, no max-pool."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from aag.nets.layers import ConvNorm, mean_pool


class Block(nn.Module):
    """relu(residual(x) + projection(skip)); the projection is the identity unless the shape changes.

    A projection with a stride reads only every other pixel, so the previous block subsamples `skip` for it. For this,
    a block gets the stride of the next one.
    """

    def __init__(self, residual: Sequence[ConvNorm], inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.residual = nn.ModuleList(residual)
        same_shape = stride == 1 and inputs == outputs
        self.shortcut = None if same_shape else ConvNorm(inputs, outputs, 1)

    def forward(self, x: Tensor, skip: Tensor, next_stride: int = 1) -> tuple[Tensor, Tensor]:
        *inner, last = self.residual
        for layer in inner:
            x = layer(x)
        return last(x, skip, self.shortcut, skip_stride=next_stride)


class BasicBlock(Block):
    """Two 3×3 convolutions."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__([ConvNorm(inputs, width, 3, stride), ConvNorm(width, width, 3)], inputs, width, stride)


class Bottleneck(Block):
    """1×1, 3×3, 1×1. The stride is in the 3×3, which reads every pixel; a 1×1 would skip three of four."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        outputs = width * self.expansion
        layers = [ConvNorm(inputs, width, 1), ConvNorm(width, width, 3, stride), ConvNorm(width, outputs, 1)]
        super().__init__(layers, inputs, outputs, stride)


class ResNet(nn.Module):
    """Images [B, 3, H, W] → pooled features [B, 8 · width · expansion], for any H and W."""

    fused: Callable[[Tensor, Tensor], Tensor] | None = None  # kernels that compute `run_blocks` (see `aag.nets.fused`)

    def __init__(self, block: type[BasicBlock] | type[Bottleneck], depths: Sequence[int], width: int = 64) -> None:
        super().__init__()
        self.stem = ConvNorm(3, width, 3)
        blocks: list[Block] = []
        inputs = width
        for stage, depth in enumerate(depths):
            stage_width = width << stage  # 64, 128, 256, 512
            for i in range(depth):
                halve = i == 0 and stage > 0  # strides 1, 2, 2, 2
                blocks.append(block(inputs, stage_width, stride=2 if halve else 1))
                inputs = stage_width * block.expansion
        self.blocks = nn.ModuleList(blocks)
        self.feature_dim = inputs

    def forward(self, x: Tensor) -> Tensor:
        x, skip = self.stem(x, skip_stride=self.blocks[0].stride)
        return mean_pool(self.run_blocks(x, skip) if self.fused is None else self.fused(x, skip))

    def run_blocks(self, x: Tensor, skip: Tensor) -> Tensor:
        for block, next_stride in zip(self.blocks, self.next_strides, strict=True):
            x, skip = block(x, skip, next_stride)
        return x

    @property
    def next_strides(self) -> list[int]:
        """The stride of the block after each."""
        strides: list[Any] = [block.stride for block in self.blocks]
        return [*strides[1:], 1]


def resnet18(width: int = 64) -> ResNet:
    return ResNet(BasicBlock, (2, 2, 2, 2), width)


def resnet50(width: int = 64) -> ResNet:
    return ResNet(Bottleneck, (3, 4, 6, 3), width)
