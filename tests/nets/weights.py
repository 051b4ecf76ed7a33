"""Weights that look trained."""

import torch
from torch import nn


def as_if_trained(encoder: nn.Module, seed: int = 2) -> None:
    """Draw the weights and running statistics of all batch norms.

    Their biases keep most activations away from zero, where rounding would decide whether a ReLU passes a gradient.
    """
    random = torch.Generator().manual_seed(seed)
    for module in encoder.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            shape = module.weight.shape
            drawn = {"weight": torch.rand(shape, generator=random) + 0.5}
            drawn["bias"] = torch.where(torch.rand(shape, generator=random) < 0.5, -1.5, 2.0)
            drawn["running_mean"] = torch.randn(shape, generator=random)
            drawn["running_var"] = torch.rand(shape, generator=random) + 0.5
            drawn["num_batches_tracked"] = torch.tensor(7)
            for name, value in module.state_dict().items():
                value.copy_(drawn[name])
