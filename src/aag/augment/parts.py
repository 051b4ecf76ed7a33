"""A batch on a CPU in parts, a core for each: PyTorch's own way, many cores for each operation, waits after every one.

The basic family is a hundred operations on a megabyte or two. Cores that meet after each of them stand idle where there
are many, and nearly stop where another process holds one: a core that works alone on its own images does neither. Every
image has its own draw, so that the parts' results are the batch's, bit for bit.

It is for the basic family. Policies run each operation on the few images that drew it: in parts these are so few that
Python's lock decides, and two cores are a third slower than on the whole batch.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from threading import Barrier

import torch
from torch import Tensor

from aag import kernels

LEAST, MOST = 32, 256  # images of a part: enough to be worth a call, few enough for a core's cache


def by_parts(draw: Callable[[Tensor, Tensor], Tensor], images: Tensor, key: Tensor) -> Tensor:
    """draw(images, key)."""
    threads, n = torch.get_num_threads(), len(images)
    whole = threads == 1 or n < 2 * LEAST or torch.compiler.is_compiling() or kernels.enabled(images)
    if whole or images.device.type != "cpu":
        return draw(images, key)
    size = min(MOST, max(LEAST, -(-n // threads)))
    return torch.cat(list(_pool(threads, os.getpid()).map(draw, images.split(size), key.split(size))))


@lru_cache(maxsize=1)
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Threads that compute alone. A forked process needs its own: threads are not copied."""
    started = Barrier(threads)

    def alone() -> None:
        torch.get_num_threads()  # a thread's first call gives it everybody's number, and must not come later
        torch.set_num_threads(1)
        started.wait()

    pool = ThreadPoolExecutor(threads, "augment", alone)
    list(pool.map(lambda _: None, range(threads)))
    torch.set_num_threads(threads)  # libraries that know no threads' own settings took over the last
    return pool
