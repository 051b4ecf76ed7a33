"""Rows of unit length, for features of any magnitude."""

import torch
from torch import Tensor
from torch.nn.functional import normalize

# Of a float, the bits that hold its exponent: without the others it is a power of two.
EXPONENT_BITS = {torch.float32: (torch.int32, 0xFF << 23), torch.float64: (torch.int64, 0x7FF << 52)}


def unit(v: Tensor) -> Tensor:
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
