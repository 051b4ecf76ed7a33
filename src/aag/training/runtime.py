"""Decide on which device and by which kernels a run computes, and say why. Nothing else decides this."""

import gc
import os
import sys
import time
from dataclasses import dataclass, replace

import torch
from torch import nn

from aag.distributed import backend, is_distributed, read_launch
from aag.errors import AAGError
from aag.kernels import unavailable_reason
from aag.nets import unsupported_reason
from aag.provenance import core_count, physical_core_count
from aag.settings import Precision
from aag.text import pluralize

COMPILE_MODES = ("auto", "on", "off")
_replaced_threads = 0  # of which `choose_threads` made one; 0 if it did not


@dataclass(frozen=True)
class Runtime:
    """How a run computes. As text, it is what training prints after `runs on`."""

    device: torch.device
    dtype: torch.dtype  # of the network; weights, loss and optimizer stay float32
    kernels: bool = False  # run the network's layers by our Triton kernels
    fused_step: bool = False  # update weights inside backward, where optimizer and settings allow it
    compile: bool = False  # torch.compile the forward and backward pass, where the kernels do not support the network
    graph: bool = False  # replay the whole step as one CUDA graph
    deterministic: bool = False  # without torch.compile: it chooses kernels by speed, and they may sum in another order
    reason: str = ""  # why something faster is not used; empty if all is

    def __str__(self) -> str:
        cuda = self.device.type == "cuda"
        name = (
            torch.cuda.get_device_name(self.device) if cuda else f"CPU, {pluralize(torch.get_num_threads(), 'thread')}"
        )
        parts = [name, self.precision, "channels last"]
        parts += ["Triton kernels"] * self.kernels + ["torch.compile"] * self.compile + ["CUDA graph"] * self.graph
        parts += ["deterministic"] * self.deterministic
        return ", ".join(parts) + (f" ({self.reason})" if self.reason else "")

    @property
    def is_plain(self) -> bool:
        return not (self.kernels or self.compile or self.graph)

    @property
    def precision(self) -> str:
        return "bf16" if self.dtype == torch.bfloat16 else "fp32"

    @property
    def autocast_dtype(self) -> torch.dtype | None:
        """The dtype to encode images with; None for float32."""
        return None if self.dtype == torch.float32 else self.dtype

    def for_processes(self) -> "Runtime":
        """Return the runtime for several processes, whose gradients are summed before the optimizer step."""
        captured = self.graph and backend(self.device) == "nccl"  # gloo sends through the host
        return replace(self, fused_step=False, graph=captured)

    def fallback(self, error: str) -> "Runtime":
        """Return the next simpler way to compute after a failure; plain PyTorch always works."""
        if self.kernels and self.fused_step:
            return replace(self, fused_step=False, reason=f"no update inside backward: {error}")
        if self.kernels:
            return replace(self, kernels=False, compile=not self.deterministic, reason=f"kernels failed: {error}")
        return replace(self, compile=False, graph=False, reason=f"compilation failed: {error}")


def choose_runtime(
    encoder: nn.Module, device: torch.device, precision: str, compile: str = "auto", deterministic: bool = False
) -> Runtime:
    """Return the runtime that trains an encoder on a device with this (resolved) precision."""
    if compile not in COMPILE_MODES:
        raise AAGError(f"--compile must be one of {', '.join(COMPILE_MODES)}, not {compile!r}")
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    if device.type != "cuda":
        return Runtime(device, dtype, compile=compile == "on")
    plain = Runtime(device, dtype, deterministic=deterministic)
    if compile == "off":
        return plain
    if problem := unavailable_reason(device):
        return replace(plain, graph=True, reason=f"no Triton kernels and no torch.compile: {problem}")
    problem = unsupported_reason(encoder)
    return replace(
        plain,
        kernels=not problem,
        fused_step=not problem,
        compile=bool(problem) and not deterministic,
        graph=True,
        reason=f"no kernels: {problem}" if problem else "",
    )


def find_device(name: str = "auto") -> torch.device:
    """Return the device of this name (auto, cpu, cuda or cuda:N) and make it the current one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        return torch.device("cpu")
    kind, colon, number = name.partition(":")
    if kind != "cuda" or (colon and not number.isdecimal()):
        raise AAGError(f"unknown device {name!r}; use auto, cpu, cuda or cuda:N")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(number or 0) >= count:
        found = f"finds {pluralize(count, 'CUDA device')}" if count else "finds no CUDA device"
        raise AAGError(f"--device {name}: PyTorch {found}; use --device cpu or auto")
    launch = read_launch()
    own = launch.local_rank % count if launch.world_size > 1 else int(number or 0)  # processes may share GPUs
    if colon and int(number) != own:
        raise AAGError(f"--device {name} puts several processes on one GPU; use --device cuda")
    device = torch.device("cuda", own)
    torch.cuda.set_device(device)  # streams and graphs are made on the current device
    return device


def choose_precision(device: torch.device, wanted: Precision = "auto") -> Precision:
    """Return bf16 or fp32. auto: bf16 where the GPU has it natively."""
    if wanted == "bf16" and device.type != "cuda":
        # PyTorch picks instructions for it that some virtual machines only claim to have.
        raise AAGError("--precision bf16 needs a GPU; on a CPU use fp32")
    if wanted != "auto":
        return wanted
    # Not torch.cuda.is_bf16_supported(), which also counts emulation.
    native = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    return "bf16" if native else "fp32"


def choose_threads(device: torch.device) -> None:
    """Use all cores of a CPU or one, whichever is faster now, unless OMP_NUM_THREADS is set.

    Threads wait for each other after every operation. If other processes use some of the cores, all of ours wait for
    the slowest, and one thread alone is several times faster. A later call decides anew.
    """
    global _replaced_threads
    threads = torch.get_num_threads()
    if threads == 1 and _replaced_threads:
        threads = _replaced_threads
    if (
        device.type != "cpu"
        or is_distributed()
        or threads == 1
        or threads not in (core_count(), physical_core_count())  # PyTorch's defaults; else the user has chosen
        or "OMP_NUM_THREADS" in os.environ
    ):
        return
    layer, x = nn.Conv2d(16, 16, 3, padding=1), torch.zeros(64, 16, 32, 32)

    def seconds(count: int) -> float:
        torch.set_num_threads(count)
        started = time.perf_counter()
        for _ in range(8):
            layer(x).relu_().sum().backward()
        return time.perf_counter() - started

    seconds(threads)  # the first call sets up
    many, one = (min(seconds(count) for _ in range(2)) for count in (threads, 1))
    _replaced_threads = threads if one < many else 0
    torch.set_num_threads(1 if one < many else threads)


def free_memory() -> None:
    """Free the GPU memory and compiled functions that a run leaves behind.

    The next run's peak memory would include the memory, and torch.compile stops compiling after many networks.
    """
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
        if "torch._dynamo" in sys.modules:
            torch.compiler.reset()
