"""SGD, LARS and Adam for CUDA graphs: the learning rate is a tensor, and all state has a name.

`torch.optim` computes SGD and Adam alike, but building one of its optimizers imports the compiler, which takes seconds.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from aag.errors import AAGError
from aag.settings import TrainSettings


class Optimizer:
    """Steps all parameters that have a gradient. `lr` may change between replays of a graph."""

    state_kinds: tuple[str, ...] = ("momentum",)  # one tensor each per parameter
    fused_rule = ""  # update rule of the kernels that step during backward; empty where there is none

    def __init__(self, parameters: Mapping[str, Tensor], momentum: float, weight_decay: float) -> None:
        self.parameters = dict(parameters)
        self.momentum, self.weight_decay = momentum, weight_decay
        self.lr = torch.zeros((), device=next(iter(self.parameters.values())).device)
        self._state = {
            kind: {parameter: torch.zeros_like(parameter) for parameter in self.parameters.values()}
            for kind in self.state_kinds
        }
        self.velocity = self._state["momentum"]

    def weight_decay_of(self, weight: Tensor) -> float:
        return self.weight_decay

    def trust_coefficient(self, weight: Tensor) -> float:
        """Return LARS's factor of |weight| / |gradient| for a parameter; 0 where its step is not scaled so."""
        return 0.0

    def zero_grad(self) -> None:
        for parameter in self.parameters.values():
            parameter.grad = None

    def state(self) -> dict[str, Tensor]:
        """Return what a step changes besides the parameters, by name."""
        return {
            f"{kind}.{name}": tensors[parameter]
            for kind, tensors in self._state.items()
            for name, parameter in self.parameters.items()
        }

    @torch.no_grad()
    def reset(self, parameters: Iterable[Tensor]) -> None:
        """Clear the state of parameters that were re-initialized."""
        for parameter in parameters:
            for tensors in self._state.values():
                tensors[parameter].zero_()

    @torch.no_grad()
    def step(self) -> None:
        used = [parameter for parameter in self.parameters.values() if parameter.grad is not None]
        if used:
            self._update(used, [parameter.grad for parameter in used])  # type: ignore[misc]

    def _update(self, weights: list[Tensor], grads: list[Tensor]) -> None:
        raise NotImplementedError


class SGD(Optimizer):
    """velocity ← momentum · velocity + (grad + weight_decay · weight); weight ← weight − lr · velocity.

    With Nesterov momentum the weights move by grad + weight_decay · weight + momentum · velocity instead. `momenta`:
    parameters with a momentum of their own; the kernels must not update them.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        momentum: float,
        weight_decay: float,
        nesterov: bool = False,
        momenta: Mapping[Tensor, float] = MappingProxyType({}),
    ) -> None:
        super().__init__(parameters, momentum, weight_decay)
        self.fused_rule = "nesterov" if nesterov else "sgd"
        self.momenta = momenta

    def _update(self, weights: list[Tensor], grads: list[Tensor]) -> None:
        for momentum in dict.fromkeys([self.momentum, *self.momenta.values()]):
            chosen = [
                (weight, grad)
                for weight, grad in zip(weights, grads, strict=True)
                if self.momenta.get(weight, self.momentum) == momentum
            ]
            if not chosen:
                continue
            own, gradients = [weight for weight, _ in chosen], [grad for _, grad in chosen]
            torch._fused_sgd_(
                own, gradients, [self.velocity[weight] for weight in own] if momentum else [],  # as torch requires
                weight_decay=self.weight_decay, momentum=momentum, lr=self.lr,
                dampening=0.0, nesterov=self.fused_rule == "nesterov" and momentum > 0, maximize=False,
                is_first_step=False,
            )  # fmt: skip


class LARS(Optimizer):
    """Layer-wise adaptive rate scaling, in SimCLR's variant (You et al. 2017).

    g = grad + weight_decay · weight; velocity ← momentum · velocity + lr · (0.001 |weight| / |g|) · g;
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
            own, gradients = [w for w, _ in chosen], [g for _, g in chosen]
            rates = [self.lr] * len(own)
            if layers:
                gradients = list(torch._foreach_add(gradients, own, alpha=self.weight_decay))
                w, g = (torch.stack(torch._foreach_norm(values)) for values in (own, gradients))
                rates = list((self.lr * torch.where((w > 0) & (g > 0), self.trust * w / g, 1.0)).unbind())
            velocity = [self.velocity[weight] for weight in own]
            torch._foreach_mul_(velocity, self.momentum)
            torch._foreach_addcmul_(
                velocity, gradients, [rate.expand_as(w) for rate, w in zip(rates, own, strict=True)]
            )
            torch._foreach_sub_(own, velocity)


class Adam(Optimizer):
    """Kingma and Ba 2014; `momentum` is β₁. The decay is added to the gradient."""

    state_kinds = ("momentum", "square")
    beta2, eps = 0.999, 1e-8

    def __init__(self, parameters: Mapping[str, Tensor], momentum: float, weight_decay: float) -> None:
        super().__init__(parameters, momentum, weight_decay)
        self.steps = torch.zeros((), device=self.lr.device)

    def state(self) -> dict[str, Tensor]:
        return {**super().state(), "steps": self.steps}

    def _update(self, weights: list[Tensor], grads: list[Tensor]) -> None:
        self.steps += 1
        squares = self._state["square"]
        torch._fused_adam_(
            weights, grads, [self.velocity[w] for w in weights], [squares[w] for w in weights], [],
            [self.steps] * len(weights), lr=self.lr, beta1=self.momentum, beta2=self.beta2,
            weight_decay=self.weight_decay, eps=self.eps, amsgrad=False, maximize=False,
        )  # fmt: skip


def build_optimizer(
    settings: TrainSettings, parameters: Mapping[str, Tensor], momenta: Mapping[Tensor, float] = MappingProxyType({})
) -> Optimizer:
    """Return the optimizer of the settings. `momenta`: parameters with a momentum of their own, for SGD."""
    if settings.optimizer == "sgd":
        return SGD(parameters, settings.momentum, settings.weight_decay, settings.nesterov, momenta)
    if momenta:
        raise AAGError(
            f"a momentum per parameter (--classifier-momentum) needs --optimizer sgd, not {settings.optimizer}"
        )
    return {"lars": LARS, "adam": Adam}[settings.optimizer](parameters, settings.momentum, settings.weight_decay)
