"""A minimal kernel, to find out whether kernels run on a device."""

import torch
import triton
import triton.language as tl

from aag.kernels import launch


@triton.jit
def _store_seven(out):
    tl.store(out, 7)


def run_kernel(device: torch.device) -> None:
    """Raise where a kernel cannot be compiled and run."""
    out = torch.zeros(1, dtype=torch.int32, device=device)
    launch(_store_seven, (1,), out)
    if out.item() != 7:
        raise RuntimeError("a Triton kernel ran but stored no result")
