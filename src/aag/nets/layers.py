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
        if kernels.enabled(x):
            from aag.kernels.pool import max_pool

            return max_pool(x)
        return super().forward(x)


def mean_pool(x: Tensor) -> Tensor:
    """[B, C, H, W] → [B, C]."""
    if kernels.enabled(x) and x.dtype != torch.float64:
        from aag.kernels.pool import mean_pool

        return mean_pool(x)
    return x.mean(dim=(2, 3))


class ScaleBatchNorm1d(nn.BatchNorm1d):
    """Batch norm with a learnt scale and no shift, which `nn.BatchNorm1d` cannot be asked for."""

    def __init__(self, features: int) -> None:
        super().__init__(features)
        self.register_parameter("bias", None)


class GhostBatchNorm:
    """A batch norm that sees `images` consecutive ones at a time in training, as if each lot were on a GPU of its own.

    The running statistics move by the mean over the lots. Evaluation, and all names, are the batch norm's.
    """

    images: int

    def forward(self: Any, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)  # type: ignore[misc]
        if len(x) % self.images:
            raise AAGError(f"a pass of {len(x)} images cannot be divided into lots of {self.images} for batch norm")
        lots = x.unflatten(0, (-1, self.images)).to(self.weight.dtype)  # [L, images, C, …]
        seen = [dim for dim in range(1, lots.ndim) if dim != 2]
        variance, mean = torch.var_mean(lots, dim=seen, correction=0, keepdim=True)
        with torch.no_grad():
            count = lots[0].numel() // x.shape[1]
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean.mean(dim=0).flatten(), self.momentum)
            self.running_var.lerp_(variance.mean(dim=0).flatten() * count / (count - 1), self.momentum)
        shape = (-1,) + (1,) * (x.ndim - 2)
        y = (lots - mean) * (variance + self.eps).rsqrt() * self.weight.view(shape)
        if self.bias is not None:
            y = y + self.bias.view(shape)
        return y.flatten(0, 1).to(x.dtype)


class GhostBatchNorm1d(GhostBatchNorm, nn.BatchNorm1d): ...


class GhostBatchNorm2d(GhostBatchNorm, nn.BatchNorm2d): ...


_SPLIT: dict[type[nn.Module], Any] = {
    nn.BatchNorm1d: GhostBatchNorm1d, ScaleBatchNorm1d: GhostBatchNorm1d, nn.BatchNorm2d: GhostBatchNorm2d,
}  # fmt: skip


def use_ghost_batch_norm(module: nn.Module, images: int) -> None:
    """Makes all batch norms inside split ones, in place: they keep their weights and their names."""
    for part in list(module.modules()):
        if not isinstance(part, nn.modules.batchnorm._BatchNorm):
            continue
        if type(part) not in _SPLIT or part.weight is None or part.running_mean is None:
            raise AAGError(f"batch norm of a part of the batch is not for {type(part).__name__}; use --norm-images 0")
        part.__class__ = _SPLIT[type(part)]  # a new one in its place would have to be hung in wherever it is
        part.images = images  # type: ignore[assignment]
