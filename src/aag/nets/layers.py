"""Layers of our networks and heads. Where `fused` is set, kernels compute the same (see `aag.nets.fused`)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aag import kernels
from aag.errors import AAGError


class ConvNorm(nn.Sequential):
    """Convolution and batch norm, with what usually follows: adding a shortcut, then a ReLU."""

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

    def forward(
        self,
        x: Tensor,
        shortcut: Tensor | None = None,
        projection: "ConvNorm | None" = None,
        relu: bool = True,
        skip_stride: int | None = None,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return y = relu(norm(conv(x)) + projection(shortcut)); with `skip_stride`, the pair (y, y[::skip_stride]).

        The first y is for the next block's convolutions; the second, subsampled in both directions, for its shortcut.
        With all of it in one call, the kernels need fewer passes over the activations and their gradients.
        """
        if self.fused is not None:
            pair = self.fused(x, shortcut, projection, relu, skip_stride or 1)
            return pair[0] if skip_stride is None else pair
        y = self.norm(self.conv(x))
        if shortcut is not None:
            y = y + (shortcut if projection is None else projection(shortcut, relu=False))
        if relu:
            y = F.relu(y, inplace=True)
        return y if skip_stride is None else (y, y[:, :, ::skip_stride, ::skip_stride])


class Linear(nn.Linear):
    """Fully connected layer."""

    fused: Callable[[Tensor], Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if self.fused is None else self.fused(x)


class MaxPool(nn.MaxPool2d):
    """2×2 max pooling."""

    def __init__(self) -> None:
        super().__init__(2)

    def forward(self, x: Tensor) -> Tensor:
        if kernels.enabled(x) and self._kernel_supports(x):
            from aag.kernels.pool import max_pool  # imported late: it needs Triton

            return max_pool(x)
        return super().forward(x)

    def _kernel_supports(self, x: Tensor) -> bool:
        settings = (self.kernel_size, self.stride, self.padding, self.dilation, self.return_indices, self.ceil_mode)
        return (
            type(self) is MaxPool and settings == (2, 2, 0, 1, False, False) and x.ndim == 4 and x.is_floating_point()
        )


def mean_pool(x: Tensor) -> Tensor:
    """Return the mean over positions: [B, C, H, W] → [B, C]."""
    if kernels.enabled(x) and x.ndim == 4 and x.dtype in (torch.float32, torch.bfloat16, torch.float16):
        from aag.kernels.pool import mean_pool  # imported late: it needs Triton

        return mean_pool(x)
    return x.mean(dim=(2, 3))


class ScaleBatchNorm1d(nn.BatchNorm1d):
    """Batch norm with a learnt scale and no shift, which `nn.BatchNorm1d` has no option for."""

    def __init__(self, features: int) -> None:
        super().__init__(features)
        self.register_parameter("bias", None)


class GhostBatchNorm:
    """Batch norm over groups of `group_size` consecutive images in training, as if each group were on its own GPU.

    The running statistics follow the mean over the groups. Evaluation and the names of weights are those of the plain
    batch norm.
    """

    group_size: int

    def forward(self: Any, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)  # type: ignore[misc]
        count_groups(len(x), self.group_size)  # raises where the batch cannot be divided
        groups = x.unflatten(0, (-1, self.group_size)).to(self.weight.dtype)  # [G, group_size, C, …]
        reduced = [dim for dim in range(1, groups.ndim) if dim != 2]
        variance, mean = torch.var_mean(groups, dim=reduced, correction=0, keepdim=True)
        with torch.no_grad():
            count = groups[0].numel() // x.shape[1]
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean.mean(dim=0).flatten(), self.momentum)
            self.running_var.lerp_(variance.mean(dim=0).flatten() * count / (count - 1), self.momentum)
        shape = (-1,) + (1,) * (x.ndim - 2)
        y = (groups - mean) * (variance + self.eps).rsqrt() * self.weight.view(shape)
        if self.bias is not None:
            y = y + self.bias.view(shape)
        return y.flatten(0, 1).to(x.dtype)


class GhostBatchNorm1d(GhostBatchNorm, nn.BatchNorm1d): ...


class GhostBatchNorm2d(GhostBatchNorm, nn.BatchNorm2d): ...


_GHOST_TYPES: dict[type[nn.Module], Any] = {
    nn.BatchNorm1d: GhostBatchNorm1d, ScaleBatchNorm1d: GhostBatchNorm1d, nn.BatchNorm2d: GhostBatchNorm2d,
}  # fmt: skip


def count_groups(images: int, group_size: int) -> int:
    """Return the number of ghost batch norm groups in a batch; 1 for `group_size=0`, the whole batch."""
    if group_size and images % group_size:
        raise AAGError(
            f"a batch of {images} images cannot be divided into groups of {group_size} for batch norm; "
            "change --batch-size or --bn-group-size"
        )
    return images // group_size if group_size else 1


def use_ghost_batch_norm(module: nn.Module, group_size: int) -> None:
    """Turn every batch norm inside `module` into a ghost batch norm, in place, with its weights and names."""
    for part in list(module.modules()):
        if not isinstance(part, nn.modules.batchnorm._BatchNorm):
            continue
        if type(part) not in _GHOST_TYPES or part.weight is None or part.running_mean is None or part.momentum is None:
            raise AAGError(f"ghost batch norm does not support {part}; use --bn-group-size 0")
        part.__class__ = _GHOST_TYPES[type(part)]  # a new module would have to replace it in each of its parents
        part.group_size = group_size  # type: ignore[assignment]


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Switch `module` to eval mode, then back to each submodule's own mode (a part may be frozen in eval mode)."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training
