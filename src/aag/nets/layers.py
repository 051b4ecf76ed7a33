"""The layers that networks and heads are made of; `fused`, where it is set, computes the same by kernels."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aag import kernels
from aag.errors import AAGError


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


class SplitNorm(nn.Module):
    """A batch norm that sees `images` consecutive ones at a time in training, as if each lot were on a GPU of its own.

    The running statistics move by the mean over the lots. Evaluation is the batch norm's.
    """

    def __init__(self, norm: nn.BatchNorm1d | nn.BatchNorm2d, images: int) -> None:
        super().__init__()
        self.norm, self.images = norm, images

    def forward(self, x: Tensor) -> Tensor:
        norm: Any = self.norm
        if not self.training:
            return norm(x)
        if len(x) % self.images:
            raise AAGError(f"a pass of {len(x)} images cannot be divided into lots of {self.images} for batch norm")
        lots = x.unflatten(0, (-1, self.images)).to(norm.weight.dtype)  # [L, images, C, …]
        seen = [dim for dim in range(1, lots.ndim) if dim != 2]
        variance, mean = torch.var_mean(lots, dim=seen, correction=0, keepdim=True)
        with torch.no_grad():
            count = lots[0].numel() // x.shape[1]
            norm.num_batches_tracked += 1
            norm.running_mean.lerp_(mean.mean(dim=0).flatten(), norm.momentum)
            norm.running_var.lerp_(variance.mean(dim=0).flatten() * count / (count - 1), norm.momentum)
        shape = (-1,) + (1,) * (x.ndim - 2)
        y = (lots - mean) * (variance + norm.eps).rsqrt() * norm.weight.view(shape)
        if norm.bias is not None:
            y = y + norm.bias.view(shape)
        return y.flatten(0, 1).to(x.dtype)


def split_norms(module: nn.Module, images: int) -> None:
    """Splits all batch norms inside, in place."""
    for name, part in list(module.named_children()):
        if isinstance(part, nn.BatchNorm1d | nn.BatchNorm2d):
            setattr(module, name, SplitNorm(part, images))
        else:
            split_norms(part, images)
