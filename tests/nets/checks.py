"""Checks of kernels that run in Triton's interpreter and on a GPU alike, and weights that look trained."""

from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from aag import kernels
from aag.methods.aag import AAG, AAGSettings


def as_if_trained(encoder: nn.Module, seed: int = 2) -> None:
    """Draw the weights and running statistics of all batch norms.

    Their biases keep most activations away from zero, where rounding would decide whether a ReLU passes a gradient.
    """
    random = torch.Generator().manual_seed(seed)
    for module in encoder.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            shape = module.weight.shape
            drawn = {"weight": torch.rand(shape, generator=random) + 0.5}
            drawn["bias"] = torch.where(torch.rand(shape, generator=random) < 0.5, -1.5, 2.0)
            drawn["running_mean"] = torch.randn(shape, generator=random)
            drawn["running_var"] = torch.rand(shape, generator=random) + 0.5
            drawn["num_batches_tracked"] = torch.tensor(7)
            for name, value in module.state_dict().items():
                value.copy_(drawn[name])


def check_contrast(
    views: int, n: int, width: int, temperature: float, loss: str, dtype: torch.dtype, device: str, **options: Any
) -> None:
    """The loss, its log and its gradient by kernels are those of plain float64."""
    options |= {"auxiliary": "none"} if views == 2 else {"auxiliary": "basic", "auxiliary_views": views - 2}
    method = AAG(AAGSettings(temperature=temperature, loss=loss, **options))  # type: ignore[arg-type]
    random = torch.Generator().manual_seed(8)
    given = torch.randn(n, width, generator=random) + torch.randn(views, n, width, generator=random)
    given *= torch.rand(views, n, 1, generator=random)
    found = []
    for kind in (dtype, torch.float64):
        v = given.to(dtype).to(device, kind).detach().requires_grad_()
        with kernels.disabled() if kind == torch.float64 else nullcontext():
            result = method.loss(v, torch.arange(n))
        (0.37 * result.loss).backward()
        log = dict(zip(method.log_names, result.log, strict=True))
        found.append({"loss": result.loss.detach(), **log, "gradient": v.grad})
    ours, exact = found
    assert len(exact) == (7 if views == 2 else 9)
    assert ours["gradient"].dtype == dtype
    for name, expected in exact.items():
        tolerance = 1e-2 if name == "gradient" and dtype == torch.bfloat16 else 1e-5
        size = max(expected.norm().item(), 1 / temperature if "loss" in name else 0)  # it is a difference of such
        error = (ours[name].double() - expected).norm()
        assert error < tolerance * size + 1e-6, f"{name}: {ours[name]} is not {expected}"


def check_pools(shape: tuple[int, ...], dtype: torch.dtype, device: str, nonnegative: bool = False) -> None:
    """Both pools and their gradients are the library's, also where maxima are equal or x is not channels last."""
    from aag.kernels.pool import max_pool, mean_pool  # imported late: it needs Triton

    random = torch.Generator().manual_seed(6)
    ties = torch.randint(-2, 3, shape, generator=random).to(memory_format=torch.channels_last)
    for x in (ties, torch.randn(shape, generator=random)):
        x = (x.abs() if nonnegative else x).to(device, dtype)
        for ours, reference, tolerance in (
            (max_pool, lambda x: F.max_pool2d(x, 2), 0.0),
            (mean_pool, lambda x: x.mean(dim=(2, 3)), 1e-2 if dtype == torch.bfloat16 else 1e-5),
        ):
            found = []
            for pool in (ours, reference):
                given = x.clone().requires_grad_()
                result = pool(given)
                grad = torch.randn(result.shape, generator=random.manual_seed(6)).to(device, dtype)
                result.backward(grad)
                found.append((result.detach(), given.grad))
            for mine, expected in zip(*found, strict=True):
                torch.testing.assert_close(mine, expected, rtol=tolerance, atol=tolerance)
