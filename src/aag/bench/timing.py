"""Timings: warm-up calls, then repeats, each until the device is done; and peak memory."""

import gc
import time
from collections.abc import Callable, Sequence
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
        """Return how many things are done per second, with `count` of them in each repeat."""
        return {"per_second": count / self.median, "count": count, "seconds": list(self.seconds)}


def timed_row(name: str, size: str, timing: Timing, count: int, unit: str, **more: Any) -> dict[str, Any]:
    """Return a row of a record: the median time, and `count` units per repeat as a rate."""
    return {"name": name, "size": size, **more, "median_seconds": timing.median, **timing.rate(count), "of": unit}


def measure(work: Callable[[], object], *, repeats: int, warm_up: int = 1, device: torch.device = CPU) -> Timing:
    """Time calls until the device is done, not until its queue is filled."""
    return measure_interleaved([work], repeats=repeats, warm_up=warm_up, device=device)[0]


def measure_interleaved(
    works: Sequence[Callable[[], object]], *, repeats: int, warm_up: int = 1, device: torch.device = CPU
) -> list[Timing]:
    """Time several functions in turns, so that a slow phase of the machine affects all and differences stay valid."""
    for work in list(works) * warm_up:
        work()
    seconds: list[list[float]] = [[] for _ in works]
    for _ in range(repeats):
        for work, times in zip(works, seconds, strict=True):
            times.append(time_once(work, device))
    return [Timing(tuple(times)) for times in seconds]


def time_once(work: Callable[[], object], device: torch.device = CPU) -> float:
    """Return the seconds of one call."""
    synchronise(device)
    started = time.perf_counter()
    work()
    synchronise(device)
    return time.perf_counter() - started


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def reset_memory(device: torch.device) -> None:
    """Free what earlier measurements left, and restart the count of peak memory."""
    gc.collect()
    if device.type != "cuda":
        return
    torch._dynamo.reset()  # compiled functions keep tensors alive
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> int | None:
    """Return the most bytes that PyTorch's allocator reserved since `reset_memory`; None on a CPU."""
    return torch.cuda.max_memory_reserved(device) if device.type == "cuda" else None
