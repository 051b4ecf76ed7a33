"""SGD, LARS and Adam as a captured step needs them: the learning rate is a tensor, and all state has a name.

`torch.optim` has the same arithmetic for the first and the last, but building one of its optimisers takes seconds.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from aag.config import TrainConfig


class Optimizer:
    """Weights without a gradient stay as they are. `lr` may change between replays of a graph."""

    kinds: tuple[str, ...] = ("momentum",)  # of state, one tensor each for every weight
    fused_rule = ""  # of its steps, for kernels that can take them during backward; empty where none can

    def __init__(self, parameters: Mapping[str, Tensor], momentum: float, weight_decay: float) -> None:
        self.parameters = dict(parameters)
        self.momentum, self.weight_decay = momentum, weight_decay
        self.lr = torch.zeros((), device=next(iter(self.parameters.values())).device)
        self._held = {
            kind: {parameter: torch.zeros_like(parameter) for parameter in self.parameters.values()}
            for kind in self.kinds
        }
        self.velocity = self._held["momentum"]

    def weight_decay_of(self, weight: Tensor) -> float:
        return self.weight_decay

    def trust_coefficient(self, weight: Tensor) -> float:
        """By which factor its step is in proportion to |weight| / |slope|; 0: it is not."""
        return 0.0

    def zero_grad(self) -> None:
        for parameter in self.parameters.values():
            parameter.grad = None

    def state(self) -> dict[str, Tensor]:
        """What a step changes besides the weights."""
        return {
            f"{kind}.{name}": held[parameter]
            for kind, held in self._held.items()
            for name, parameter in self.parameters.items()
        }

    @torch.no_grad()
    def forget(self, parameters: Iterable[Tensor]) -> None:
        """These start anew."""
        for parameter in parameters:
            for held in self._held.values():
                held[parameter].zero_()

    @torch.no_grad()
    def step(self) -> None:
        used = [parameter for parameter in self.parameters.values() if parameter.grad is not None]
        if used:
            self._update(used, [parameter.grad for parameter in used])  # type: ignore[misc]

    def _update(self, weights: list[Tensor], grads: list[Tensor]) -> None:
        raise NotImplementedError


class SGD(Optimizer):
    """velocity ← momentum · velocity + (grad + weight_decay · weight); weight ← weight − lr · velocity.

    With Nesterov's momentum the weights move by grad + weight_decay · weight + momentum · velocity instead.
    """

    def __init__(
        self, parameters: Mapping[str, Tensor], momentum: float, weight_decay: float, nesterov: bool = False
    ) -> None:
        super().__init__(parameters, momentum, weight_decay)
        self.fused_rule = "nesterov" if nesterov else "sgd"

    def _update(self, weights: list[Tensor], grads: list[Tensor]) -> None:
        torch._fused_sgd_(
            weights, grads, [self.velocity[weight] for weight in weights],
            weight_decay=self.weight_decay, momentum=self.momentum, lr=self.lr,
            dampening=0.0, nesterov=self.fused_rule == "nesterov", maximize=False, is_first_step=False,
        )  # fmt: skip


class LARS(Optimizer):
    """SGD whose step is in proportion to the layer's weights, as SimCLR has it (You et al. 2017).

    slope = grad + weight_decay · weight; velocity ← momentum · velocity + lr · (0.001 |weight| / |slope|) · slope;
    weight ← weight − velocity. Vectors (biases, batch norms) take plain steps without decay.
    """

    fused_rule = "lars"
    trust = 0.001

    def trust_coefficient(self, weight: Tensor) -> float:
        return self.trust if weight.ndim > 1 else 0.0

    def weight_decay_of(self, weight: Tensor) -> float:
        return self.weight_decay if self.trust_coefficient(weight) else 0.0

    def _update(self, weights: list[Tensor], grads: list[Tensor]) -> None:
        for layers in (True, False):
            chosen = [(w, g) for w, g in zip(weights, grads, strict=True) if (self.trust_coefficient(w) > 0) == layers]
            if not chosen:
                continue
            own, slopes = [w for w, _ in chosen], [g for _, g in chosen]
            rates = [self.lr] * len(own)
            if layers:
                slopes = list(torch._foreach_add(slopes, own, alpha=self.weight_decay))
                w, s = (torch.stack(torch._foreach_norm(values)) for values in (own, slopes))
                rates = list((self.lr * torch.where((w > 0) & (s > 0), self.trust * w / s, 1.0)).unbind())
            velocity = [self.velocity[weight] for weight in own]
            torch._foreach_mul_(velocity, self.momentum)
            torch._foreach_addcmul_(velocity, slopes, [rate.expand_as(w) for rate, w in zip(rates, own, strict=True)])
            torch._foreach_sub_(own, velocity)


class Adam(Optimizer):
    """Kingma and Ba 2014; `momentum` is β₁. The decay is added to the gradient."""

    kinds = ("momentum", "square")
    beta2, eps = 0.999, 1e-8

    def __init__(self, parameters: Mapping[str, Tensor], momentum: float, weight_decay: float) -> None:
        super().__init__(parameters, momentum, weight_decay)
        self.steps = torch.zeros((), device=self.lr.device)

    def state(self) -> dict[str, Tensor]:
        return {**super().state(), "steps": self.steps}

    def _update(self, weights: list[Tensor], grads: list[Tensor]) -> None:
        self.steps += 1
        squares = self._held["square"]
        torch._fused_adam_(
            weights, grads, [self.velocity[w] for w in weights], [squares[w] for w in weights], [],
            [self.steps] * len(weights), lr=self.lr, beta1=self.momentum, beta2=self.beta2,
            weight_decay=self.weight_decay, eps=self.eps, amsgrad=False, maximize=False,
        )  # fmt: skip


def build(config: TrainConfig, parameters: Mapping[str, Tensor]) -> Optimizer:
    """The optimiser of a configuration for these weights."""
    if config.optimizer == "sgd":
        return SGD(parameters, config.momentum, config.weight_decay, config.nesterov)
    return {"lars": LARS, "adam": Adam}[config.optimizer](parameters, config.momentum, config.weight_decay)
