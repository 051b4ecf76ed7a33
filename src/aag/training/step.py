"""One training step, from views to statistics: by kernels, torch.compile or plain PyTorch, as a CUDA graph or eager."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from aag.distributed import any_process, is_distributed, world_size
from aag.errors import AAGError, KernelsUnsupportedError
from aag.kernels import dry_run
from aag.methods import Method, StepOutput
from aag.nets import Encoder, unsupported_reason
from aag.nets.sync_norm import SyncBatchNormMode
from aag.settings import TrainSettings
from aag.text import pluralize
from aag.training.batches import Batch
from aag.training.gradients import GradientReducer
from aag.training.memsets import replace_memsets
from aag.training.optimizers import build_optimizer
from aag.training.runtime import Runtime

if TYPE_CHECKING:
    from aag.nets.fused import FusedEncoder


class Step:
    """Run forward, loss, backward, optimizer and `Method.after_step`; return float32 statistics, one per `names`.

    With `accumulate`, a batch is the first, a middle or the last one of those whose gradients are averaged. With
    several processes, each passes its share of the batch, and the result is that of the whole batch.
    """

    def __init__(self, encoder: Encoder, method: Method, settings: TrainSettings, runtime: Runtime) -> None:
        self.encoder, self.method, self.settings, self.runtime = encoder, method, settings, runtime
        self.names = ["loss", *method.log_names]
        named = {**dict(encoder.named_parameters()), **{f"method.{n}": w for n, w in method.named_parameters()}}
        trained = {name: weight for name, weight in named.items() if weight.requires_grad}
        if not trained:
            raise AAGError("all parameters are frozen: there is nothing to train; freeze fewer")
        self.optimizer = build_optimizer(settings, trained, method.momenta())
        self.fused_encoders = self._fuse_encoders() if runtime.kernels else []  # the trained one first
        # Created after the kernels, because its hooks on weights look like a user's, which the kernels refuse.
        self._reducer = GradientReducer(trained.values()) if is_distributed() else None
        self._objective = _compile(self._loss) if runtime.compile else self._loss
        self._graphs: dict[tuple[bool, bool], tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        # Graphs are replayed one after another and leave nothing to each other: they share the activations' memory.
        self._pool = torch.cuda.graph_pool_handle() if runtime.graph else None
        self._inputs: Batch | None = None  # what the graphs read
        self._zeros = torch.empty(0)

    def __call__(self, batch: Batch, lr: float, *, first: bool = True, last: bool = True) -> Tensor:
        """Run a batch. `first` clears the gradients before it, `last` runs the optimizer after it.

        If a CUDA graph is replayed, the next call overwrites the returned statistics.
        """
        self.optimizer.lr.fill_(lr)
        if not self.runtime.graph:
            return self._run(batch, first=first, last=last)
        if not self._graphs:
            self.warm_up(lambda: batch)
        self._copy_inputs(batch)
        graph, statistics = self._graphs[first, last]
        graph.replay()
        return statistics

    def close(self) -> None:
        """Detach from the parameters, before another step is made for them."""
        if self._reducer:
            self._reducer.close()

    def state(self) -> dict[str, Tensor]:
        """Return everything that a step changes, by name."""
        tensors = {f"encoder.{name}": value for name, value in self.encoder.state_dict().items()}
        tensors.update({f"method.{name}": value for name, value in self.method.state_dict().items()})
        return {**tensors, **self.optimizer.state()}

    @torch.no_grad()
    def load_state(self, tensors: dict[str, Tensor]) -> None:
        state = self.state()
        if state.keys() != tensors.keys() or any(state[name].shape != value.shape for name, value in tensors.items()):
            raise AAGError("the checkpoint's weights do not fit this version's network; choose another --out")
        for name, own in state.items():
            own.copy_(tensors[name])
        for fused in self.fused_encoders:
            fused.refresh()

    def warm_up(self, make_batch: Callable[[], Batch]) -> None:
        """Compile and capture; the state is unchanged afterwards, whether that succeeds or fails.

        `make_batch` is compiled along with the step where it has kernels.
        """
        before = {name: value.clone() for name, value in self.state().items()}
        try:
            if self.runtime.kernels:
                self._compile_kernels(make_batch)
            batch = make_batch()
            if self.runtime.graph:
                self._copy_inputs(batch)
                positions = (
                    [(True, True)]
                    if self.settings.accumulate == 1
                    else [(first, last) for first in (True, False) for last in (True, False)]
                )
                self._graphs = {position: self._capture("update", *position) for position in positions}
            else:
                self._run(batch)
                self.optimizer.zero_grad()
        finally:
            self.load_state(before)

    def _compile_kernels(self, make_batch: Callable[[], Batch]) -> None:
        failure: Exception | None = None
        try:
            with dry_run():
                self._run(make_batch())
        except Exception as error:
            failure = error
        (failed,) = any_process(failure is not None)  # the rest communicates: all processes must take part, or none
        if failed:
            raise failure or KernelsUnsupportedError("another process could not compile the kernels")

    def partial_step(self, batch: Batch, until: str) -> Callable[[], object]:
        """Return a function that runs the step up to and including "forward", "backward" or "update", for timing."""
        inputs = self._copy_inputs(batch)
        if not self.runtime.graph:
            return lambda: self._run(inputs, until)
        return self._capture(until, True, True)[0].replay

    def _copy_inputs(self, batch: Batch) -> Batch:
        if self._inputs is None:  # only once: graphs keep the addresses
            self._inputs = Batch(*(torch.empty_like(part, memory_format=torch.contiguous_format) for part in batch))
            self._zeros = torch.zeros(2**20, dtype=torch.uint8, device=batch.views.device)
        for own, part in zip(self._inputs, batch, strict=True):
            own.copy_(part)
        return self._inputs

    def _loss(self, views: Tensor, index: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        with torch.autocast(views.device.type, torch.bfloat16, enabled=self.runtime.dtype == torch.bfloat16):
            output = self.method(self.encoder, views, index)
        known = torch.compiler.is_compiling() or isinstance(output, StepOutput)
        if not known or len(output.log) != len(self.names) - 1:
            name, count = type(self.method).__name__, len(self.names) - 1
            wanted = f"StepOutput that logs {pluralize(count, 'number')}, one for each of its log_names"
            raise AAGError(f"{name}.loss must return a {wanted if count else 'StepOutput(loss)'}")
        loss, log, carry = output
        return loss, torch.stack([loss.detach(), *log]).float(), tuple(carry)

    def _run(self, batch: Batch, until: str = "update", first: bool = True, last: bool = True) -> Tensor:
        if first:
            self._clear_gradients()
        with ExitStack() as stack:
            for fused in self.fused_encoders:
                stack.enter_context(fused)
            if self._reducer:
                stack.enter_context(SyncBatchNormMode())
            loss, statistics, carry = self._objective(*batch)
        if until == "forward":
            return statistics
        for fused in self.fused_encoders:
            fused.updates_weights = until == "update"
        if self._reducer and last:
            self._reducer.start()
        divisor = self.settings.accumulate * world_size()  # `gather_batch` explains the factor world_size()
        (loss if divisor == 1 else loss / divisor).backward()
        for fused in self.fused_encoders:
            fused.join()
        if self._reducer and last:
            self._reducer.finish()
        if until == "update":
            if last:
                self._update()
            with torch.no_grad():
                self.method.after_step(self.encoder, *carry)
            for fused in self.fused_encoders:
                if fused.optimizer is None:
                    fused.refresh()
        return statistics

    def _update(self) -> None:
        if self.settings.clip_grad:
            parameters = self.optimizer.parameters.values()
            torch.nn.utils.clip_grad_norm_(parameters, self.settings.clip_grad, foreach=True)
        self.optimizer.step()

    def _clear_gradients(self) -> None:
        if self.settings.accumulate == 1:
            self.optimizer.zero_grad()
            return
        # Gradients that live from batch to batch stay where they are: the graphs of a window share them.
        for parameter in self.optimizer.parameters.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            else:
                parameter.grad.zero_()

    def _fuse_encoders(self) -> "list[FusedEncoder]":
        from aag.nets.fused import FusedEncoder  # needs triton

        settings, optimizer = self.settings, self.optimizer
        updates_in_backward = (
            self.runtime.fused_step
            and bool(optimizer.fused_rule)
            and all(weight.requires_grad for weight in self.encoder.parameters())
            and settings.accumulate == 1
            and not settings.clip_grad  # the norm is known only after backward
            and not is_distributed()  # gradients are summed over processes before the step
        )
        trained = FusedEncoder(self.encoder, self.runtime.dtype, optimizer if updates_in_backward else None)
        # Encoders that a method keeps for itself are not trained, but change after every step. The kernels may not
        # support each of them, such as a teacher with another network.
        others = [part for part in self.method.modules() if isinstance(part, Encoder) and part.training]
        return [trained, *(FusedEncoder(part, self.runtime.dtype) for part in others if not unsupported_reason(part))]

    def _capture(self, until: str, first: bool, last: bool) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        batch = self._inputs
        assert batch is not None
        _on_side_stream(lambda: [self._run(batch, until, first, last) for _ in range(3)])
        if self.settings.accumulate == 1:
            self.optimizer.zero_grad()  # the graph's own pool then holds the gradients
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(graph, pool=self._pool):
            statistics = self._run(batch, until, first, last)
        replace_memsets(graph, self._zeros)
        graph.instantiate()
        return graph, statistics


def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function, without one fusion of reductions that fails on ghost batch norm (torch 2.11)."""
    from torch._inductor import list_options  # takes seconds

    fusion = "triton.mix_order_reduction"
    return torch.compile(function, dynamic=False, options={fusion: False} if fusion in list_options() else {})


def _on_side_stream(work: Callable[[], object]) -> None:
    """Run work on a side stream, as PyTorch requires before it is captured in a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
