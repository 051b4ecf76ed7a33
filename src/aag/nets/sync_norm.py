"""Batch norm over the whole batch of several processes.

`torch.nn.SyncBatchNorm` runs on GPUs only, and layers must be converted to it. `SyncBatchNormMode` intercepts the calls
of `F.batch_norm`, so it works for every network, including your own.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.overrides import TorchFunctionMode

from aag.distributed import average_in_place, gather_stack, sum_in_place
from aag.nets.layers import GhostBatchNorm


class SyncBatchNormMode(TorchFunctionMode):
    """Context in which batch norms in training mode use the statistics of all processes.

    All processes must have the same number of images.
    """

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is F.batch_norm:
            return _batch_norm(*args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))


def _batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    if not training:
        return F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
    y, mean, variance, count = _Normalise.apply(x, eps)
    if running_mean is not None and running_var is not None:
        with torch.no_grad():
            running_mean.lerp_(mean.to(running_mean.dtype), momentum)
            running_var.lerp_((variance * (count / (count - 1))).to(running_var.dtype), momentum)
    shape = (-1,) + (1,) * (x.ndim - 2)
    y = y if weight is None else y * weight.view(shape)
    y = y if bias is None else y + bias.view(shape)
    return y.to(x.dtype)


class _Normalise(Function):
    """(x − mean) / √(variance + ε) by channel, in float32 or better; mean and variance [C] are of all processes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor, int]:
        dtype, x = x.dtype, x if x.dtype == torch.float64 else x.float()
        dims = [dim for dim in range(x.ndim) if dim != 1]
        own_variance, own_mean = torch.var_mean(x, dim=dims, correction=0)
        variances, means = gather_stack(torch.stack([own_variance, own_mean])).unbind(1)  # [processes, C] each
        mean = means.mean(dim=0)
        variance = variances.mean(dim=0) + (means - mean).square().mean(dim=0)  # within and between processes
        shape = (1, -1) + (1,) * (x.ndim - 2)
        scale = (variance + eps).rsqrt().view(shape)
        y = (x - mean.view(shape)) * scale
        ctx.save_for_backward(y, scale)
        ctx.count = x.numel() // x.shape[1] * len(means)
        ctx.dims, ctx.dtype = dims, dtype
        ctx.mark_non_differentiable(mean, variance)
        return y, mean, variance, ctx.count

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        y, scale = ctx.saved_tensors
        grad = grads[0]
        sums = torch.stack([grad.sum(dim=ctx.dims), (grad * y).sum(dim=ctx.dims)])  # [2, C]
        mean_grad, mean_product = (each.view(scale.shape) for each in sum_in_place(sums) / ctx.count)
        return (scale * (grad - mean_grad - y * mean_product)).to(ctx.dtype), None


def average_running_statistics(*modules: nn.Module) -> None:
    """Average the running statistics of ghost batch norms over processes.

    They are moving averages, which are linear: averaging once before they are used equals averaging after each step.
    """
    ghosts = [part for module in modules for part in module.modules() if isinstance(part, GhostBatchNorm)]
    average_in_place([each for part in ghosts for each in (part.running_mean, part.running_var)])  # type: ignore[misc]
