"""The highest speed this device could reach: FLOP per view, at the rate of matrix products measured here."""

from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from aag import nets
from aag.bench.plan import Plan
from aag.bench.timing import measure


def count_flop(spec: nets.EncoderSpec) -> tuple[int, int]:
    """Return the FLOP per view of the forward pass, and of forward and backward; a multiply-add counts as 2.

    Counts convolutions and matrix products as they run, on the meta device. The first convolution computes no
    gradient of its input.
    """
    encoder = nets.build(spec).to("meta")
    views = torch.zeros(2, 3, spec.image_size, spec.image_size, dtype=torch.uint8, device="meta")
    with FlopCounterMode(display=False) as counter:
        embedding = encoder(views)[1]
        forward = counter.get_total_flops()
        embedding.sum().backward()
    return forward // len(views), counter.get_total_flops() // len(views)


def measure_rates(plan: Plan) -> dict[str, Any]:
    """Return the best FLOP/s of a large matrix product in the network's precision, and bytes/s of a large copy."""
    size, device, dtype = plan.matmul_size, plan.device, plan.autocast_dtype or torch.float32
    calls = 20 if plan.cuda else 3
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))  # zeros would draw less power
    product = torch.empty_like(a)
    timed: dict[str, Any] = {"repeats": max(3, plan.repeats), "warm_up": 1, "device": device}
    multiplying = measure(lambda: [torch.mm(a, b, out=product) for _ in range(calls)], **timed)
    count = min(plan.copy_bytes, torch.cuda.mem_get_info(device)[0] // 4) if plan.cuda else plan.copy_bytes
    source = torch.ones(count, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copying = measure(lambda: [target.copy_(source) for _ in range(calls)], **timed)
    return {
        "matmul_flops": 2 * size**3 * calls / multiplying.best,
        "matmul_size": size,
        "matmul_dtype": str(dtype).removeprefix("torch."),
        "copy_bytes_per_second": 2 * count * calls / copying.best,  # each byte is read and written
    }
