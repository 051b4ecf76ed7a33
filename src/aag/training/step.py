"""One training step: views in, statistics out. By kernels, compiled or plain; as a CUDA graph where it can be."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from aag.config import TrainConfig
from aag.errors import AAGError
from aag.kernels import dry_run
from aag.methods import Method
from aag.nets import Encoder
from aag.training import optimizers
from aag.training.graph import copies_for_sets
from aag.training.runtime import Runtime
from aag.training.views import Batch

if TYPE_CHECKING:
    from aag.nets.fused import Fused


class Step:
    """Forward, loss, backward, the optimiser and the method's memory; returns float32 statistics, `names` long."""

    def __init__(self, encoder: Encoder, method: Method, config: TrainConfig, runtime: Runtime) -> None:
        self.encoder, self.method, self.runtime = encoder, method, runtime
        self.names = ["loss", *method.logs]
        trained = {name: weight for name, weight in method.named_parameters() if weight.requires_grad}
        named = {**dict(encoder.named_parameters()), **{f"method.{name}": weight for name, weight in trained.items()}}
        self.optimizer = optimizers.build(config, named)
        self.fused = self._by_kernels() if runtime.kernels else []  # the trained encoder's first
        self._objective = _compiled(self._loss) if runtime.compile else self._loss
        self._graph: torch.cuda.CUDAGraph | None = None
        self._held: Batch | None = None
        self._zeros = self._statistics = torch.empty(0)

    def __call__(self, batch: Batch, lr: float) -> Tensor:
        """The statistics tensor is overwritten by the next call where a graph is replayed."""
        self.optimizer.lr.fill_(lr)
        if not self.runtime.graph:
            return self._run(batch)
        if self._graph is None:
            self.warm_up(lambda: batch)
        self._hold(batch)
        self._graph.replay()  # type: ignore[union-attr]
        return self._statistics

    def state(self) -> dict[str, Tensor]:
        """Everything a step changes, by name."""
        tensors = {f"encoder.{name}": value for name, value in self.encoder.state_dict().items()}
        tensors.update({f"method.{name}": value for name, value in self.method.state_dict().items()})
        return {**tensors, **self.optimizer.state()}

    @torch.no_grad()
    def load_state(self, tensors: dict[str, Tensor]) -> None:
        state = self.state()
        if state.keys() != tensors.keys() or any(state[name].shape != value.shape for name, value in tensors.items()):
            raise AAGError("the checkpoint's weights have other names than this version's; choose another --out")
        for name, own in state.items():
            own.copy_(tensors[name])
        for fused in self.fused:
            fused.refresh()

    def warm_up(self, make_batch: Callable[[], Batch]) -> None:
        """Compiles and captures, and leaves no trace in the state, whether it succeeds or fails.

        `make_batch` is compiled along with the step where it has kernels.
        """
        kept = {name: value.clone() for name, value in self.state().items()}
        try:
            if self.runtime.kernels:
                with dry_run():
                    self._run(make_batch())
            batch = make_batch()
            if self.runtime.graph:
                self._hold(batch)
                self._graph, self._statistics = self._capture("update")
            else:
                self._run(batch)
        finally:
            self.load_state(kept)

    def replayable(self, batch: Batch, until: str) -> Callable[[], object]:
        """The step up to and including "forward", "backward" or "update", as training runs it, to be timed."""
        held = self._hold(batch)
        if not self.runtime.graph:
            return lambda: self._run(held, until)
        return self._capture(until)[0].replay

    def _hold(self, batch: Batch) -> Batch:
        """What all graphs read: their batch, and zeros."""
        if self._held is None:  # only once: a graph keeps the addresses
            self._held = Batch(*(torch.empty_like(part, memory_format=torch.contiguous_format) for part in batch))
            self._zeros = torch.zeros(2**20, dtype=torch.uint8, device=batch.views.device)
        for own, part in zip(self._held, batch, strict=True):
            own.copy_(part)
        return self._held

    def _loss(self, views: Tensor, index: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        with torch.autocast(views.device.type, torch.bfloat16, enabled=self.runtime.dtype == torch.bfloat16):
            loss, log, kept = self.method(self.encoder, views, index)
        return loss, torch.stack([loss.detach(), *log]).float(), kept

    def _run(self, batch: Batch, until: str = "update") -> Tensor:
        self.optimizer.zero_grad()
        with ExitStack() as inside:
            for fused in self.fused:
                inside.enter_context(fused)
            loss, statistics, kept = self._objective(*batch)
        if until == "forward":
            return statistics
        for fused in self.fused:
            fused.learning = until == "update"
        loss.backward()
        for fused in self.fused:
            fused.join()
        if until == "update":
            self.optimizer.step()
            with torch.no_grad():
                self.method.after_step(self.encoder, *kept)
            for fused in self.fused:
                if fused.optimizer is None:
                    fused.refresh()
        return statistics

    def _by_kernels(self) -> "list[Fused]":
        from aag.nets.fused import Fused

        own = self.optimizer if self.optimizer.fused_rule else None  # by which the kernels can step in backward
        trained = Fused(self.encoder, self.runtime.dtype, own)
        # Encoders that a method keeps for itself are not trained, but change after every step.
        others = [part for part in self.method.modules() if isinstance(part, Encoder)]
        return [trained, *(Fused(part, self.runtime.dtype) for part in others)]

    def _capture(self, until: str) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        batch = self._held
        assert batch is not None
        _on_side_stream(lambda: [self._run(batch, until) for _ in range(3)])
        self.optimizer.zero_grad()  # the graph's own pool then holds the gradients
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(graph):
            statistics = self._run(batch, until)
        copies_for_sets(graph, self._zeros)
        graph.instantiate()
        return graph, statistics


def _compiled(work: Callable[..., Any]) -> Callable[..., Any]:
    """Without one fusion of reductions, which stops on batch norm of a part of the batch (torch 2.11)."""
    from torch._inductor import list_options

    fusion = "triton.mix_order_reduction"
    return torch.compile(work, dynamic=False, options={fusion: False} if fusion in list_options() else {})


def _on_side_stream(work: Callable[[], object]) -> None:
    """What a graph will hold must have run before, and not on the default stream."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
