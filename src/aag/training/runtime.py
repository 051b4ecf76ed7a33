"""The one place that decides where and how a run computes, and says why."""

from dataclasses import dataclass, replace

import torch

from aag.config import TrainConfig
from aag.errors import AAGError
from aag.kernels import unavailable_reason
from aag.nets import NETWORKS
from aag.nets.spec import EDGES
from aag.text import pluralize


@dataclass(frozen=True)
class Runtime:
    device: torch.device
    dtype: torch.dtype  # of the network's arithmetic; weights, loss and optimiser stay float32
    kernels: bool  # run the network's layers, the loss and the augmentation by Triton kernels of our own
    compile: bool  # torch.compile the forward and backward pass, where there are no kernels
    graph: bool  # replay the whole step as one CUDA graph
    reason: str

    def __str__(self) -> str:
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "CPU"
        parts = [name, "bf16" if self.dtype == torch.bfloat16 else "fp32", "channels last"]
        parts += ["Triton kernels"] * self.kernels + ["torch.compile"] * self.compile + ["CUDA graph"] * self.graph
        return ", ".join(parts) + (f" ({self.reason})" if self.reason else "")

    @property
    def is_plain(self) -> bool:
        return not (self.kernels or self.compile or self.graph)

    def fallback(self, reason: str) -> "Runtime":
        """After a failure: torch.compile instead of kernels, then plain PyTorch, which always works."""
        if self.kernels:
            return replace(self, kernels=False, compile=True, reason=f"kernels failed: {reason}")
        return replace(self, compile=False, graph=False, reason=f"compiling failed: {reason}")


def decide(config: TrainConfig) -> Runtime:
    device = _device(config.device)
    if device.type == "cpu":
        if (
            config.precision == "bf16"
        ):  # PyTorch picks instructions for it that some virtual machines only claim to have
            raise AAGError("--precision bf16 needs a GPU; on a CPU use fp32")
        reason = "" if config.device == "cpu" else "no GPU found"
        return Runtime(device, torch.float32, False, config.compile == "on", False, reason)

    reasons = []
    # Not torch.cuda.is_bf16_supported(), which also counts emulation.
    native = torch.cuda.get_device_capability(device) >= (8, 0)
    dtype = torch.bfloat16 if config.precision == "bf16" or (config.precision == "auto" and native) else torch.float32
    if config.precision == "auto" and not native:
        reasons.append("fp32: this GPU has no bf16")
    graph = config.compile != "off"
    against = unavailable_reason(device) if graph else ""
    if against:
        reasons.append(f"neither kernels nor torch.compile: {against}")
    compiled = graph and not against
    kernels = compiled and not (without := _without_kernels(config))
    if compiled and not kernels:
        reasons.append(f"no kernels: {without}")
    return Runtime(device, dtype, kernels, compiled and not kernels, graph, "; ".join(reasons))


def _without_kernels(config: TrainConfig) -> str:
    """Why a run has to do without our kernels for its network; empty where it has not."""
    plain = config.network.removesuffix(EDGES)
    if plain.endswith("+sobel") or plain == "amdim":
        return f"none for {config.network}"
    if plain not in NETWORKS:
        return f"{config.network} is timm's"
    if config.network.startswith("resnet") and config.width % 16:
        return f"{config.width} is no multiple of 16"
    return "" if config.forward == "joint" else "one view at a time"


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        return torch.device("cpu")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    number = int(name.partition(":")[2] or 0)
    if number >= count:
        found = f"sees {pluralize(count, 'CUDA device')}" if count else "sees no CUDA device"
        raise AAGError(f"--device {name} was asked for, but PyTorch {found}; use --device cpu, or auto")
    device = torch.device("cuda", number)
    torch.cuda.set_device(device)  # streams and graphs are made on the current device
    return device
