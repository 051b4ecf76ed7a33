"""Timing: warm-up calls, then repeats, each waited for."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Timing:
    seconds: tuple[float, ...]  # of each repeat

    @property
    def median(self) -> float:
        return median(self.seconds)

    def rate(self, count: int) -> dict[str, object]:
        """`count` things in each repeat, as things a second."""
        return {"per_second": count / self.median, "count": count, "seconds": list(self.seconds)}


def measure(work: Callable[[], object], *, repeats: int, warm_up: int = 1, device: torch.device = CPU) -> Timing:
    """The clock stops when the device has finished, not when its queue has been filled."""
    for _ in range(warm_up):
        work()
    seconds = []
    for _ in range(repeats):
        wait(device)
        started = time.perf_counter()
        work()
        wait(device)
        seconds.append(time.perf_counter() - started)
    return Timing(tuple(seconds))


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
