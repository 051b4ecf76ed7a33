"""Split a CPU batch over threads: each augments its own images with single-threaded operations.

PyTorch's own threads synchronise after every operation. The basic augmentation is about a hundred operations on one
or two megabytes, so threads would mostly wait, above all if another process uses one of the cores. Draws are per image,
so splitting the batch changes no bit of the result.

Policies run each operation on the few images that drew it. In parts of a batch these are so few that the GIL takes most
of the time. They run different operations in different threads instead, if there are enough cores.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from threading import Barrier

import torch
from torch import Tensor

MIN_IMAGES, MAX_IMAGES = 32, 256  # per part: enough to be worth a call, few enough for a core's cache
# More threads mostly wait for the GIL: on one machine 16 were four times slower than 2. For many cores use many
# processes, such as a DataLoader's workers.
MAX_THREADS = 4


def split_over_threads(augment: Callable[[Tensor, Tensor], Tensor], images: Tensor, rng_key: Tensor) -> Tensor:
    """Return `augment(images, rng_key)`, computed in parts by torch.get_num_threads() threads, at most 4, on a CPU."""
    if images.device.type != "cpu" or torch.compiler.is_compiling():
        return augment(images, rng_key)
    threads, n = min(MAX_THREADS, torch.get_num_threads()), len(images)
    if threads == 1 or n < 2 * MIN_IMAGES:
        return augment(images, rng_key)
    size = min(MAX_IMAGES, max(MIN_IMAGES, -(-n // threads)))
    return torch.cat(list(_pool(threads, os.getpid()).map(augment, images.split(size), rng_key.split(size))))


def run_tasks(tasks: Sequence[Callable[[], None]], images: int) -> None:
    """Run independent tasks on a batch of `images` CPU images, in threads if the batch is large enough."""
    if torch.get_num_threads() < MAX_THREADS or images < MAX_THREADS * MIN_IMAGES:
        for task in tasks:
            task()
    else:
        list(_pool(MAX_THREADS, os.getpid()).map(lambda task: task(), tasks))


@lru_cache(maxsize=1)
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Start threads whose operations are single-threaded. A forked process needs its own: fork copies no threads."""
    started, all_threads = Barrier(threads), torch.get_num_threads()

    def use_one_thread() -> None:
        torch.get_num_threads()  # the first call in a thread resets its number, so it must come before the next line
        torch.set_num_threads(1)
        started.wait()

    pool = ThreadPoolExecutor(threads, "augment", use_one_thread)
    list(pool.map(lambda _: None, range(threads)))
    torch.set_num_threads(all_threads)  # undo the 1 in libraries that have no setting per thread
    return pool
