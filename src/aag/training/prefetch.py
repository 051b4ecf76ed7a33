"""Prefetch images from host memory or a memory-mapped file, for sets larger than the GPU's memory."""

from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from aag.provenance import core_count

MAX_MEMORY_FRACTION = 1 / 3  # of the GPU's free memory that images may take; the network needs the rest
ROWS_PER_TASK = 32  # images that one thread gathers at a time


def fits_on_device(images: Tensor, device: torch.device) -> bool:
    """Return whether all images may be copied to the device. On a CPU they always fit."""
    return device.type != "cuda" or images.nbytes <= MAX_MEMORY_FRACTION * torch.cuda.mem_get_info(device)[0]


class HostReader:
    """Gather images by index into pinned memory, one request ahead, and copy them to the device.

    Threads wait for the disk in parallel, and NumPy releases the GIL while it copies. There are two buffers: one is
    copied to the device while the other is filled.
    """

    def __init__(self, images: Tensor, device: torch.device) -> None:
        self.images: np.ndarray = images.numpy()
        self.device, self.shape = device, tuple(images.shape[1:])
        self._pool = ThreadPoolExecutor(min(16, core_count()), thread_name_prefix="read")
        self._buffers: list[Tensor] = [torch.empty(0)] * 2
        self._copied: list[torch.cuda.Event | None] = [None, None]
        self._pending: tuple[Tensor, int, list[Future]] | None = None
        self._turn = 0

    def read(self, index: Tensor, next_index: Tensor | None = None) -> Tensor:
        """Return images [len(index), C, S, S] on the device, and start to gather those of the next request.

        The result is valid until the next call. `index` and `next_index`: int64 on the CPU.
        """
        if self._pending is None or not torch.equal(self._pending[0], index):
            self._wait()
            self._pending = self._start(index)
        _, turn, work = self._pending
        for part in work:
            part.result()
        images = self._buffers[turn][: len(index)].to(self.device, non_blocking=True)
        if self.device.type == "cuda":
            self._copied[turn] = torch.cuda.Event()
            self._copied[turn].record()  # type: ignore[union-attr]
        self._pending = None if next_index is None else self._start(next_index)
        return images

    def close(self) -> None:
        self._wait()
        self._pool.shutdown()

    def _start(self, index: Tensor) -> tuple[Tensor, int, list[Future]]:
        turn, self._turn = self._turn, 1 - self._turn
        copied = self._copied[turn]
        if copied is not None:
            copied.synchronize()  # the copy of two requests ago
        if len(self._buffers[turn]) < len(index):
            pinned = self.device.type == "cuda"
            self._buffers[turn] = torch.empty((len(index), *self.shape), dtype=torch.uint8, pin_memory=pinned)
        rows, buffer = index.numpy(), self._buffers[turn][: len(index)].numpy()
        work = [
            self._pool.submit(
                np.take, self.images, rows[at : at + ROWS_PER_TASK], 0, buffer[at : at + ROWS_PER_TASK], "clip"
            )
            for at in range(0, len(rows), ROWS_PER_TASK)
        ]
        return index, turn, work

    def _wait(self) -> None:
        for part in self._pending[2] if self._pending else ():
            part.result()
        self._pending = None
