"""The smallest kernel: does anything run?"""

import torch
import triton
import triton.language as tl

from aag.kernels import launch


@triton.jit
def _seven(out):
    tl.store(out, 7)


def trial(device: torch.device) -> None:
    out = torch.zeros(1, dtype=torch.int32, device=device)
    launch(_seven, (1,), out)
    if out.item() != 7:
        raise RuntimeError("a Triton kernel ran and left no result")
