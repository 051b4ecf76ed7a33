"""Deterministic arithmetic: the same seed on the same machine gives the same bits."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.deterministic

from aag.errors import AAGError, first_line
from aag.text import pluralize

_log = logging.getLogger("aag.training")
CUBLAS = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # a fixed workspace: else cuBLAS may sum in another order


def prepare_deterministic() -> None:
    """Set the environment variable that cuBLAS reads when CUDA starts."""
    os.environ.setdefault(*CUBLAS)


@contextmanager
def deterministic_algorithms() -> Iterator[None]:
    """Make PyTorch use only deterministic algorithms in the block. An operation that has none raises an AAGError.

    Our Triton kernels use no atomic operations and choose nothing by speed: they are deterministic.
    """
    prepare_deterministic()
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    memory: Any = torch.utils.deterministic
    filled, cudnn = memory.fill_uninitialized_memory, torch.backends.cudnn
    choices = cudnn.deterministic, cudnn.benchmark
    torch.use_deterministic_algorithms(True)
    memory.fill_uninitialized_memory = False  # costs time; nothing here reads such memory
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        yield
    except RuntimeError as error:
        if "deterministic" not in str(error):
            raise
        raise AAGError(
            f"--deterministic: {first_line(error).partition(',')[0]}; leave it out, or choose another --network"
        ) from error
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        memory.fill_uninitialized_memory = filled
        cudnn.deterministic, cudnn.benchmark = choices


def restore_threads(threads: int) -> None:
    """Use as many threads as a run began with: on a CPU, the order of sums depends on them. Log a change."""
    before = torch.get_num_threads()
    if threads != before:
        torch.set_num_threads(threads)
        _log.warning(
            "using %s, as this run began with, not %d: its exact numbers depend on them",
            pluralize(threads, "thread"),
            before,
        )
