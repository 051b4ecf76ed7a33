"""One training step: views in, statistics out. By kernels, compiled or plain; as a CUDA graph where it can be."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from aag.config import TrainConfig
from aag.errors import AAGError
from aag.kernels import rehearsal
from aag.methods import Method
from aag.nets import Encoder
from aag.sgd import SGD
from aag.train.graph import copies_for_sets
from aag.train.runtime import Runtime


class Step:
    """Forward, loss, backward and SGD on uint8 views [V, n, 3, H, W]; returns float32 statistics, `names` long."""

    def __init__(self, encoder: Encoder, method: Method, config: TrainConfig, runtime: Runtime) -> None:
        self.encoder, self.method, self.runtime = encoder, method, runtime
        self.joint = config.forward == "joint"
        self.names = ["loss", *method.loss([torch.eye(2)] * len(method.views))[1]]
        self.optimizer = SGD(encoder.parameters(), config.momentum, config.weight_decay)
        self.fused = None
        if runtime.kernels:
            from aag.nets.fused import Fused

            self.fused = Fused(encoder, runtime.dtype, self.optimizer)
        self._objective = torch.compile(self._loss, dynamic=False) if runtime.compile else self._loss
        self._graph: torch.cuda.CUDAGraph | None = None
        self._views = self._zeros = self._statistics = torch.empty(0)

    def __call__(self, views: Tensor, lr: float) -> Tensor:
        """The statistics tensor is overwritten by the next call where a graph is replayed."""
        self.optimizer.lr.fill_(lr)
        if not self.runtime.graph:
            return self._run(views)
        if self._graph is None:
            self.warm_up(lambda: views)
        self._hold(views)
        self._graph.replay()  # type: ignore[union-attr]
        return self._statistics

    def state(self) -> dict[str, Tensor]:
        """Everything a step changes, by name."""
        tensors = {f"encoder.{name}": value for name, value in self.encoder.state_dict().items()}
        for name, parameter in self.encoder.named_parameters():
            tensors[f"momentum.{name}"] = self.optimizer.velocity[parameter]
        return tensors

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        state = self.state()
        if state.keys() != tensors.keys():
            raise AAGError("the checkpoint's weights have other names than this version's; choose another --out")
        for name, own in state.items():
            own.copy_(tensors[name])
        if self.fused is not None:
            self.fused.refresh()

    def warm_up(self, make_views: Callable[[], Tensor]) -> None:
        """Compiles and captures, and leaves no trace in the weights, whether it succeeds or fails.

        `make_views` is compiled along with the step where it has kernels.
        """
        kept = {name: value.clone() for name, value in self.state().items()}
        try:
            if self.runtime.kernels:
                with rehearsal():
                    self._run(make_views())
            views = make_views()
            if self.runtime.graph:
                self._hold(views)
                self._graph, self._statistics = self._capture("update")
            else:
                self._run(views)
        finally:
            self.load_state(kept)

    def replayable(self, views: Tensor, until: str) -> Callable[[], object]:
        """The step up to and including "forward", "backward" or "update", as training runs it, to be timed."""
        self._hold(views)
        if not self.runtime.graph:
            return lambda: self._run(self._views, until)
        return self._capture(until)[0].replay

    def _hold(self, views: Tensor) -> None:
        """What all graphs read: their views, and zeros."""
        if not self._views.numel():  # only once: a graph keeps the addresses
            self._views = torch.empty_like(views, memory_format=torch.contiguous_format)
            self._zeros = torch.zeros(2**20, dtype=torch.uint8, device=views.device)
        self._views.copy_(views)

    def _loss(self, views: Tensor) -> tuple[Tensor, Tensor]:
        embeddings: Sequence[Tensor] | Tensor
        with torch.autocast(views.device.type, torch.bfloat16, enabled=self.runtime.dtype == torch.bfloat16):
            if self.joint:  # batch norm sees all views together
                embeddings = self.encoder(views.flatten(0, 1))[1].unflatten(0, views.shape[:2])
            else:
                embeddings = [self.encoder(view)[1] for view in views]
        loss, log = self.method.loss(embeddings)
        return loss, torch.stack([loss.detach(), *log.values()]).float()

    def _run(self, views: Tensor, until: str = "update") -> Tensor:
        self.optimizer.zero_grad()
        with self.fused or nullcontext():
            loss, statistics = self._objective(views)
        if until == "forward":
            return statistics
        if self.fused is None:
            loss.backward()
        else:
            self.fused.learning = until == "update"
            loss.backward()
            self.fused.join()
        if until == "update":
            self.optimizer.step()
        return statistics

    def _capture(self, until: str) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        _on_side_stream(lambda: [self._run(self._views, until) for _ in range(3)])
        self.optimizer.zero_grad()  # the graph's own pool then holds the gradients
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(graph):
            statistics = self._run(self._views, until)
        copies_for_sets(graph, self._zeros)
        graph.instantiate()
        return graph, statistics


def _on_side_stream(work: Callable[[], object]) -> None:
    """What a graph will hold must have run before, and not on the default stream."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
