"""The layers that networks and heads are made of; `fused`, where it is set, computes the same by kernels."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aag import kernels


class ConvNorm(nn.Sequential):
    """A convolution and its batch norm, then what mostly follows: a shortcut added, a ReLU."""

    fused: Callable[..., Any] | None = None

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, bias: bool = False) -> None:
        conv = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=bias)
        super().__init__(conv, nn.BatchNorm2d(outputs))

    @property
    def conv(self) -> nn.Conv2d:
        return self[0]  # type: ignore[return-value]

    @property
    def norm(self) -> nn.BatchNorm2d:
        return self[1]  # type: ignore[return-value]

    def forward(self, x: Tensor, relu: bool = True) -> Tensor:
        return self.twice(x, relu=relu)[0]

    def twice(
        self,
        x: Tensor,
        add: Tensor | None = None,
        through: "ConvNorm | None" = None,
        relu: bool = True,
        every: int = 1,
    ) -> tuple[Tensor, Tensor]:
        """relu(norm(conv(x)) + through(add)) for two uses, the second of every `every`-th pixel in both directions.

        All in one for the kernels' sake: each step by itself would be one more pass over the activations, and so would
        be the sum of the two uses' gradients.
        """
        if self.fused is not None:
            return self.fused(x, add, through, relu, every)
        y = self.norm(self.conv(x))
        if add is not None:
            y = y + (add if through is None else through(add, relu=False))
        if relu:
            y = F.relu(y, inplace=True)
        return y, y[:, :, ::every, ::every]


class Linear(nn.Linear):
    """Fully connected."""

    fused: Callable[[Tensor], Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if self.fused is None else self.fused(x)


class MaxPool(nn.MaxPool2d):
    """2×2."""

    def __init__(self) -> None:
        super().__init__(2)

    def forward(self, x: Tensor) -> Tensor:
        if kernels.usable(x):
            from aag.kernels.pool import max_pool

            return max_pool(x)
        return super().forward(x)


def mean_pool(x: Tensor) -> Tensor:
    """[B, C, H, W] → [B, C]."""
    if kernels.usable(x) and x.dtype != torch.float64:
        from aag.kernels.pool import mean_pool

        return mean_pool(x)
    return x.mean(dim=(2, 3))
