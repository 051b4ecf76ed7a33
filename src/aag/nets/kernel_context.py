"""The state that all fused layers of an encoder share: the GPU's size, and weight updates during backward."""

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from aag.errors import KernelsUnsupportedError
from aag.kernels import launch
from aag.kernels.steps import MAX_PARTS, squares, step


class BackwardOptimizer(Protocol):
    """What the kernels need of an optimizer to update weights during backward."""

    lr: Tensor
    momentum: float
    fused_rule: str  # sgd, nesterov or lars

    @property
    def velocity(self) -> Mapping[Tensor, Tensor]: ...  # by weight

    def weight_decay_of(self, weight: Tensor) -> float: ...

    def trust_coefficient(self, weight: Tensor) -> float: ...  # LARS: step ∝ |weight| / |gradient|; 0 for a plain step


class KernelContext:
    """The device's size and the side streams of the fused layers.

    With an `optimizer`, each weight is updated during backward, as soon as its gradient is computed. This happens on a
    side stream, in parallel with the next layer's passes over activations: weight gradients are compute-bound, those
    passes memory-bound. Each stream that runs layers has its own side stream.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype, optimizer: BackwardOptimizer | None) -> None:
        self.dtype, self.optimizer = dtype, optimizer
        cuda = device.type == "cuda"
        gpu = torch.cuda.get_device_properties(device) if cuda else None
        self.processors = gpu.multi_processor_count if gpu else 2
        self.has_large_shared_memory = gpu is not None and gpu.shared_memory_per_block_optin >= 200_000  # bytes
        self.updates_weights = True  # False: backward leaves the weights as they are, for timing
        self._seen: set[object] = set()  # layers with a forward pass in this step
        self._uses_streams = cuda and optimizer is not None
        self._branch_stream = torch.cuda.Stream(device) if self._uses_streams else None
        self._side_streams: dict[torch.cuda.Stream, torch.cuda.Stream] = {}
        self._in_flight: dict[torch.cuda.Stream, list[tuple[torch.cuda.Event, tuple[Tensor, ...]]]] = {}

    def begin_pass(self) -> None:
        """Forget which layers ran: a new step begins."""
        self._seen = set()

    def check_single_pass(self, layer: object) -> None:
        """Raise if a layer runs twice while backward updates its weights: the first update would spoil the second."""
        if self.optimizer is not None and torch.is_grad_enabled():
            if layer in self._seen:
                raise KernelsUnsupportedError("the encoder runs more than once per step")
            self._seen.add(layer)

    def join(self) -> None:
        """Make the current stream wait for all weight updates."""
        for stream in self._in_flight:
            torch.cuda.current_stream().wait_stream(stream)
            torch.cuda.current_stream().wait_stream(self._side_streams[stream])
        self._in_flight.clear()

    def run_branches(self, first: Callable[[], Tensor], second: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
        """Return the results of both. If weights are updated on side streams, `second` runs on its own stream, too."""
        if self._branch_stream is None:
            return first(), second()
        main = torch.cuda.current_stream()
        self._branch_stream.wait_stream(main)
        with torch.cuda.stream(self._branch_stream):
            other = second()
        one = first()
        main.wait_stream(self._branch_stream)
        other.record_stream(main)
        return one, other

    def on_side_stream(self, work: Callable[..., None], *tensors: Tensor) -> None:
        """Run `work(*tensors)` after the current stream's work so far, in parallel with what follows."""
        if not self._uses_streams:
            return work(*tensors)
        main = torch.cuda.current_stream()
        side = self._side_streams.get(main) or self._side_streams.setdefault(main, torch.cuda.Stream(main.device))
        side.wait_stream(main)
        with torch.cuda.stream(side):
            work(*tensors)
        in_flight = self._in_flight.setdefault(main, [])
        in_flight.append((side.record_event(), tensors))  # keeps their memory from being reused
        if len(in_flight) > 2:
            main.wait_event(in_flight.pop(0)[0])
        return None

    def step(self, weight: Tensor, copy: Tensor, grad: Tensor) -> None:
        """Update a weight, and its copy in `dtype` for the next step."""
        if not self.updates_weights:
            return
        assert self.optimizer is not None
        optimizer, size = self.optimizer, weight.numel()
        decay, trust = optimizer.weight_decay_of(weight), optimizer.trust_coefficient(weight)
        parts, partial = 0, optimizer.lr  # a tensor that the kernel does not read without trust
        if trust:
            parts = min(MAX_PARTS, -(-size // 2048))
            partial = weight.new_empty(parts, 2)
            launch(squares, (parts,), weight, grad, partial, decay, size, BLOCK=2048, num_warps=8)
        launch(
            step, (-(-size // 1024),), weight, copy, optimizer.velocity[weight], grad, partial, optimizer.lr,
            optimizer.momentum, decay, trust, size, parts,
            RULE=optimizer.fused_rule, TRUST=trust > 0, COPY=copy.dtype != weight.dtype, BLOCK=1024,
            MAX_PARTS=MAX_PARTS, num_warps=4,
        )  # fmt: skip


def allocate_copy(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Return memory for the weights in `dtype`; the weights themselves where they have that dtype."""
    return weight.detach() if weight.dtype == dtype else torch.empty_like(weight, dtype=dtype)
