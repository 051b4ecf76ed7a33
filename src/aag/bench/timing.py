"""Timing: warm-up calls, then repeats, each waited for; and where the count of memory starts."""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Timing:
    seconds: tuple[float, ...]  # of each repeat

    @property
    def median(self) -> float:
        return median(self.seconds)

    @property
    def best(self) -> float:
        return min(self.seconds)

    def rate(self, count: int) -> dict[str, Any]:
        """`count` things in each repeat, as things a second."""
        return {"per_second": count / self.median, "count": count, "seconds": list(self.seconds)}


def measure(work: Callable[[], object], *, repeats: int, warm_up: int = 1, device: torch.device = CPU) -> Timing:
    """The clock stops when the device has finished, not when its queue has been filled."""
    return interleaved([work], repeats=repeats, warm_up=warm_up, device=device)[0]


def interleaved(
    works: list[Callable[[], object]], *, repeats: int, warm_up: int = 1, device: torch.device = CPU
) -> list[Timing]:
    """Each work once, then each again …: what slows the machine for a while meets them all, and differences hold."""
    for work in works * warm_up:
        work()
    seconds: list[list[float]] = [[] for _ in works]
    for _ in range(repeats):
        for work, taken in zip(works, seconds, strict=True):
            taken.append(once(work, device))
    return [Timing(tuple(taken)) for taken in seconds]


def once(work: Callable[[], object], device: torch.device = CPU) -> float:
    wait(device)
    started = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - started


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def fresh_memory(device: torch.device) -> None:
    """Gives back what earlier measurements left, and starts the count of the peak."""
    gc.collect()
    if device.type != "cuda":
        return
    torch._dynamo.reset()  # compiled functions hold on to their tensors
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> int | None:
    """Bytes that PyTorch's allocator has held at most since `fresh_memory`; None on a CPU."""
    return torch.cuda.max_memory_reserved(device) if device.type == "cuda" else None
