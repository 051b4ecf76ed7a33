"""Triton kernels for what training computes between the library's convolutions, and when they are used.

Each has a plain PyTorch counterpart, which is its reference in the tests and runs wherever kernels cannot:
norm, patches, pool and turn: `aag.nets`; contrast: `aag.losses`; steps: `aag.training.optimizers`; rng: `aag.rng`.
Those of the augmentations are in `aag.augment.kernels`. Triton itself is imported with the first kernel.
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

_ALLOWED = ContextVar("kernels", default=True)
_NOWHERE = torch.empty(0)
_dry_run_launches: dict[Any, Callable[[], Any]] | None = None  # for all threads: backward has one of its own


def enabled(tensor: Tensor) -> bool:
    """Whether kernels can work on this tensor: on a GPU with Triton, or on a CPU by Triton's interpreter."""
    if torch.compiler.is_compiling() or not _ALLOWED.get():
        return False
    if not tensor.is_cuda:
        return tensor.device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
    return not unavailable_reason(tensor.device)


@contextmanager
def disabled() -> Iterator[None]:
    """Plain PyTorch on any device."""
    before = _ALLOWED.set(False)
    try:
        yield
    finally:
        _ALLOWED.reset(before)


@cache
def unavailable_reason(device: torch.device) -> str:
    """Tries a small kernel: Triton, a C compiler or Python's headers may be missing, or the GPU too old."""
    try:
        from aag.kernels.trial import trial

        trial(device)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        warnings.warn(f"without Triton kernels, several times slower: {reason}", stacklevel=3)
        return reason
    return ""


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **settings: Any) -> None:
    """kernel[grid](*arguments, **settings), or a note of it in a dry_run; nothing for an empty grid.

    a · b + c may be rounded once, unless `enable_fp_fusion=False`; Triton's own default depends on its version.
    """
    if 0 in grid:
        return
    settings.setdefault("enable_fp_fusion", True)
    if _dry_run_launches is None:
        with torch.cuda.device_of(next((value for value in arguments if isinstance(value, Tensor)), _NOWHERE)):
            kernel[grid](*arguments, **settings)
    else:
        variant = (kernel, *map(_kind, arguments), *settings.items())
        _dry_run_launches.setdefault(variant, partial(kernel.warmup, *arguments, grid=grid, **settings))


@contextmanager
def dry_run() -> Iterator[None]:
    """Launches nothing inside, and at its end compiles all that would have been, on all cores at once.

    One after the other, in the order of their first use, the kernels of a training step take four times as long.
    """
    global _dry_run_launches
    _dry_run_launches = {}
    try:
        yield
    finally:
        found, _dry_run_launches = _dry_run_launches, None
    if found:
        device = torch.cuda.current_device()

        def prepare(compile_it: Callable[[], Any]) -> None:
            torch.cuda.set_device(device)
            _ = compile_it().run  # which also loads it and builds its launcher

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(prepare, found.values()))


def channel_block(channels: int) -> int:
    """How many channels a program takes: a power of two that divides them all."""
    return min(64, channels & -channels)


def in_dry_run() -> bool:
    """Whether results are garbage now, and not worth keeping."""
    return _dry_run_launches is not None


def _kind(argument: Any) -> Any:
    """All that a compiled kernel depends on, of an argument."""
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    if isinstance(argument, int):
        return int, argument == 1, argument % 16 == 0, -(2**31) <= argument < 2**31
    return type(argument)
