"""SGD with momentum and weight decay: `torch.optim.SGD`'s arithmetic, without what building one imports (seconds)."""

from collections.abc import Iterable

import torch
from torch import Tensor


class SGD:
    """velocity ← momentum · velocity + (grad + weight_decay · weight); weight ← weight − lr · velocity.

    Weights without a gradient stay as they are. `lr` is a tensor, so that it can change between replays of a graph.
    """

    def __init__(self, parameters: Iterable[Tensor], momentum: float, weight_decay: float) -> None:
        self.parameters = list(parameters)
        self.momentum, self.weight_decay = momentum, weight_decay
        self.lr = torch.zeros((), device=self.parameters[0].device)
        self.velocity = {parameter: torch.zeros_like(parameter) for parameter in self.parameters}

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        used = [parameter for parameter in self.parameters if parameter.grad is not None]
        if not used:
            return
        torch._fused_sgd_(
            used, [parameter.grad for parameter in used], [self.velocity[parameter] for parameter in used],  # type: ignore[misc]
            weight_decay=self.weight_decay, momentum=self.momentum, lr=self.lr,
            dampening=0.0, nesterov=False, maximize=False, is_first_step=False,
        )  # fmt: skip
