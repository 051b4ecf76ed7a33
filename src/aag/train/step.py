"""One training step: views in, statistics out. Eager, compiled, or a CUDA graph replayed; the same numbers' worth."""

from collections.abc import Callable

import torch
from torch import Tensor

from aag.config import TrainConfig
from aag.methods import Method
from aag.nets import Encoder
from aag.train.runtime import Runtime


class Step:
    """Forward, loss, backward and SGD on uint8 views [V, n, 3, H, W]; returns float32 statistics, `names` long."""

    def __init__(self, encoder: Encoder, method: Method, config: TrainConfig, runtime: Runtime) -> None:
        self.encoder, self.method, self.runtime = encoder, method, runtime
        self.joint = config.forward == "joint"
        self.names = ["loss", *method.loss([torch.eye(2)] * len(method.views))[1]]
        cuda = runtime.device.type == "cuda"
        # As a tensor on the GPU the learning rate can change between replays of a graph.
        self.lr = torch.zeros((), device=runtime.device) if cuda else 0.0
        self.optimizer = torch.optim.SGD(
            encoder.parameters(), self.lr, config.momentum, weight_decay=config.weight_decay, fused=True
        )
        for parameter in encoder.parameters():
            # Zeros make the first step the same as all others, so that it can be captured and resumed alike.
            self.optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        self._objective = torch.compile(self._loss, dynamic=False) if runtime.compile else self._loss
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, views: Tensor, lr: float) -> Tensor:
        """The statistics tensor is overwritten by the next call where a graph is replayed."""
        if isinstance(self.lr, Tensor):
            self.lr.fill_(lr)
        else:
            self.optimizer.param_groups[0]["lr"] = lr
        if not self.runtime.graph:
            return self._run(views)
        if self._graph is None:
            self.warm_up(views)
        self._views.copy_(views)
        self._graph.replay()  # type: ignore[union-attr]
        return self._statistics

    def state(self) -> dict[str, Tensor]:
        """Everything a step changes, by name."""
        tensors = {f"encoder.{name}": value for name, value in self.encoder.state_dict().items()}
        for name, parameter in self.encoder.named_parameters():
            tensors[f"momentum.{name}"] = self.optimizer.state[parameter]["momentum_buffer"]
        return tensors

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        for name, own in self.state().items():
            own.copy_(tensors[name])

    def warm_up(self, views: Tensor) -> None:
        """Compiles and captures, and leaves no trace in the weights, whether it succeeds or fails."""
        kept = {name: value.clone() for name, value in self.state().items()}
        try:
            if self.runtime.graph:
                self._capture(views)
            else:
                self._run(views)
        finally:
            self.load_state(kept)

    def _loss(self, views: Tensor) -> tuple[Tensor, Tensor]:
        n = views.shape[1]
        with torch.autocast(views.device.type, torch.bfloat16, enabled=self.runtime.dtype == torch.bfloat16):
            if self.joint:  # batch norm sees all views together
                embeddings = list(self.encoder(views.flatten(0, 1))[1].split(n))
            else:
                embeddings = [self.encoder(view)[1] for view in views]
        loss, log = self.method.loss(embeddings)
        return loss, torch.stack([loss.detach(), *log.values()]).float()

    def _run(self, views: Tensor) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        loss, statistics = self._objective(views)
        loss.backward()
        self.optimizer.step()
        return statistics

    def _capture(self, views: Tensor) -> None:
        self._views = views.clone()
        _on_side_stream(lambda: [self._run(self._views) for _ in range(3)])
        self.optimizer.zero_grad(set_to_none=True)  # the graph's own pool then holds the gradients
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._statistics = self._run(self._views)
        self._graph = graph


def _on_side_stream(work: Callable[[], object]) -> None:
    """What a graph will hold must have run before, and not on the default stream."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)
