"""VICReg: two views with similar embeddings, whose dimensions vary and are not correlated. No negatives.

Bardes, Ponce, LeCun: "VICReg: Variance-Invariance-Covariance Regularization for Self-Supervised Learning" (2022).

    aag train --method examples/vicreg.py:VICReg --data sample
"""

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aag.methods import BasicPreset, Method, MethodContext, MultiViewSettings, Recipe, StepOutput
from aag.nets import Encoder
from aag.settings import Range


@dataclass(frozen=True)
class VICRegSettings(MultiViewSettings):
    basic: BasicPreset = "simclr"
    expander: Annotated[int, Range(at_least=2)] = 2048
    """Width of the expander, whose output the loss compares."""
    invariance_weight: Annotated[float, Range(at_least=0)] = 25.0
    """Weight of the distance between the two views (λ)."""
    variance_weight: Annotated[float, Range(at_least=0)] = 25.0
    """Weight of the variance term (μ)."""
    covariance_weight: Annotated[float, Range(at_least=0)] = 1.0
    """Weight of the covariance term (ν)."""


class VICReg(Method):
    settings_type = VICRegSettings
    settings: VICRegSettings
    recipes = {
        "vicreg": Recipe(
            about="VICReg with its authors' weights of the three terms, on a batch of 256",
            expect="no results yet",
            options={"head": "none", "batch_size": 256, "weight_decay": 1e-4},
            demo={"expander": 256, "lr": 0.03},
        )
    }
    log_names = ("invariance", "variance", "covariance")

    def setup(self, context: MethodContext) -> None:
        features, width = context.encoder.feature_dim, self.settings.expander
        self.expander = nn.Sequential(  # trained with the encoder, saved in checkpoints, not part of the encoder
            nn.Linear(features, width), nn.BatchNorm1d(width), nn.ReLU(inplace=True), nn.Linear(width, width)
        )

    def embed(self, encoder: Encoder, views: Tensor) -> Tensor:
        """Return expanded features [2, n, D] of views [2, n, 3, H, W]."""
        features, _ = encoder(views.flatten(0, 1))
        return self.expander(features).unflatten(0, views.shape[:2])

    def loss(self, embeddings: Tensor, index: Tensor) -> StepOutput:
        z = embeddings.float()  # sums of thousands of squares need float32
        n, width = z.shape[1:]
        invariance = F.mse_loss(z[0], z[1])
        z = z - z.mean(dim=1, keepdim=True)
        deviation = (z.square().sum(dim=1) / (n - 1) + 1e-4).sqrt()  # [2, D]
        variance = F.relu(1 - deviation).mean()
        covariance = z.mT @ z / (n - 1)  # [2, D, D]
        off_diagonal = covariance - torch.diag_embed(covariance.diagonal(dim1=1, dim2=2))
        covariance = off_diagonal.square().sum() / width
        settings = self.settings
        total = (
            settings.invariance_weight * invariance
            + settings.variance_weight * variance
            + settings.covariance_weight * covariance
        )
        return StepOutput(total, (invariance.detach(), variance.detach(), covariance.detach()))
