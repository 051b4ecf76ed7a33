"""L2-normalise rows of any magnitude, and check that tensors hold floats."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from aag.errors import AAGError

# Of a float, the bits that hold its exponent: without the others it is a power of two.
EXPONENT_BITS = {torch.float32: (torch.int32, 0xFF << 23), torch.float64: (torch.int64, 0x7FF << 52)}


def unit_rows(v: Tensor) -> Tensor:
    """Return the rows of v [n, d] with length 1, in float32 or better; rows of zeros stay zeros.

    The squares of a norm overflow above 1e19 and vanish below 1e-19. Each row is therefore first divided by a power of
    two near its largest entry. That is exact: rows of usual size keep every bit, and so do their gradients.
    """
    v = v if v.dtype == torch.float64 else v.float()
    if v.shape[1] == 0:
        return v
    with torch.no_grad():
        whole, exponent = EXPONENT_BITS[v.dtype]
        largest = v.abs().amax(dim=1, keepdim=True)
        power = (largest.view(whole) & exponent).view(v.dtype)
        power = torch.where(power > 0, power, 1)  # zeros, and numbers too small for a float of full precision
    return normalize(v / power, dim=1)


def check_floats(what: str, v: Any, shape: str = "[n, d]") -> Tensor:
    """Return v; refuse what is not an ordinary float tensor: integers, sparse ones, those without data."""
    if not isinstance(v, Tensor) or not v.is_floating_point():
        kind = v.dtype if isinstance(v, Tensor) else type(v).__name__
        raise AAGError(f"{what} must be a float tensor {shape}, not {kind}; use torch.as_tensor(...).float()")
    if v.layout != torch.strided or v.device.type == "meta":
        raise AAGError(f"{what} must be a dense tensor with data, not {v.layout} on {v.device}")
    return v
