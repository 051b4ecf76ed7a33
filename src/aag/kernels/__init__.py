"""Triton kernels for the parts of training other than convolutions, and functions that decide when they run.

Each kernel has a plain PyTorch counterpart: its reference in the tests, which runs wherever kernels cannot. Those of
norm, stem, pool and flip are in `aag.nets`, of contrast in `aag.losses`, of steps in the optimizers, of rng in
`aag.rng`. Kernels of augmentations are in `aag.augment.kernels`. Triton is imported with the first kernel.
"""

import os
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

_allowed = ContextVar("kernels", default=True)
_NO_TENSOR = torch.empty(0)
_dry_run_launches: dict[Any, Callable[[], Any]] | None = None  # shared by all threads: backward runs in its own


def enabled(tensor: Tensor) -> bool:
    """Return whether kernels can take this tensor: on a GPU with Triton, or on a CPU in Triton's interpreter."""
    if torch.compiler.is_compiling() or not _allowed.get():
        return False
    if not tensor.is_cuda:
        return tensor.device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
    return not unavailable_reason(tensor.device)


@contextmanager
def disabled() -> Iterator[None]:
    """Use plain PyTorch on any device."""
    token = _allowed.set(False)
    try:
        yield
    finally:
        _allowed.reset(token)


@cache
def unavailable_reason(device: torch.device) -> str:
    """Return why kernels cannot run on a device, or "": Triton, a C compiler or Python's headers may be missing."""
    try:
        from aag.kernels.smoke_test import run_kernel  # imported late: it needs Triton

        run_kernel(device)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        warnings.warn(f"Triton kernels are unavailable, so training is several times slower: {reason}", stacklevel=3)
        return reason
    return ""


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **settings: Any) -> None:
    """Launch kernel[grid](*arguments, **settings), or record it in a dry run; do nothing for an empty grid.

    `enable_fp_fusion` (a · b + c rounded once) is on by default; Triton's own default depends on its version.
    """
    if 0 in grid:
        return
    settings.setdefault("enable_fp_fusion", True)
    if _dry_run_launches is None:
        with torch.cuda.device_of(next((value for value in arguments if isinstance(value, Tensor)), _NO_TENSOR)):
            kernel[grid](*arguments, **settings)
    else:
        variant = (kernel, *map(_argument_key, arguments), *settings.items())
        _dry_run_launches.setdefault(variant, partial(kernel.warmup, *arguments, grid=grid, **settings))


@contextmanager
def dry_run() -> Iterator[None]:
    """Launch no kernels in the block; on exit, compile all kernels that were called, on all cores.

    Compiling the kernels of a training step one by one, at their first use, takes four times as long.
    """
    global _dry_run_launches
    _dry_run_launches = {}
    try:
        yield
    finally:
        recorded, _dry_run_launches = _dry_run_launches, None
    if recorded:
        device = torch.cuda.current_device()

        def compile_kernel(warmup: Callable[[], Any]) -> None:
            torch.cuda.set_device(device)
            _ = warmup().run  # also loads the kernel and builds its launcher

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(compile_kernel, recorded.values()))


def channel_block(channels: int, most: int = 64) -> int:
    """Return the number of channels per program: the largest power of two that divides them all, at most `most`."""
    return min(most, channels & -channels)


def in_dry_run() -> bool:
    """Return whether kernels are compiled but not launched now, so that results are meaningless."""
    return _dry_run_launches is not None


def _argument_key(argument: Any) -> Any:
    """Return the properties of an argument that select a compiled kernel."""
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    if isinstance(argument, int):
        return int, argument == 1, argument % 16 == 0, -(2**31) <= argument < 2**31
    return type(argument)
