"""AAG without negatives: a small network predicts, from each view, the mean embedding of the image's other views.

Chen, He: "Exploring Simple Siamese Representation Learning" (2021), SimSiam; Pototzky, Sultan, Schmidt-Thieme, Schmidt:
"FastSiam: Resource-Efficient Self-supervised Learning on a Single GPU" (2022).

    aag train --data cifar10 --method aag-siam

SimSiam predicts one view from another, which is a noisy target. The mean of several views is a steadier one, so
FastSiam learns faster, with small batches. Here, some of these views are auxiliary ones.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aag.losses import check_embeddings
from aag.methods.aag import AAG, AAGSettings
from aag.methods.base import Embeddings, Method, MethodContext, MethodSettings, Recipe, StepOutput
from aag.settings import Range


@dataclass(frozen=True)
class SiameseAAGSettings(AAGSettings):
    predictor_width: Annotated[int, Range(at_least=1)] = 512
    """Hidden units of the predictor."""
    contrast_weight: Annotated[float, Range(at_least=0)] = 0.0
    """Weight of AAG's contrastive loss, which is added. 0: no negatives."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.contrast_weight:
            contrast = ("loss", "temperature", "auxiliary_weight", "one_way", "hard_negatives")
            self._refuse_changes("contrast_weight", *contrast)


class SiameseAAG(AAG):
    name = "aag-siam"
    settings_type = SiameseAAGSettings
    settings: SiameseAAGSettings
    recipes = {
        "aag-siam": Recipe(
            about="AAG's views, two of them auxiliary; each predicts the mean of the others (FastSiam), no negatives",
            expect="not run here yet",
            options={"auxiliary_views": 2, "head": "mlp", "head_width": 2048, "embedding": 2048, "lr": 0.06},
            demo={"head_width": 256, "embedding": 256, "predictor_width": 64},
        )
    }

    def __init__(self, settings: MethodSettings | None = None) -> None:
        super().__init__(settings)
        self.log_names = (*(self.log_names if self.settings.contrast_weight else ()), "loss_prediction")

    def setup(self, context: MethodContext) -> None:
        super().setup(context)
        size, width = context.encoder.embedding_dim, self.settings.predictor_width
        self.predictor = nn.Sequential(
            nn.Linear(size, width, bias=False),  # batch norm would cancel a bias
            nn.BatchNorm1d(width, track_running_stats=False),  # never evaluated
            nn.ReLU(inplace=True),
            nn.Linear(width, size),
        )

    def loss(self, embeddings: Embeddings, index: Tensor) -> StepOutput:
        """Return `prediction_loss` + contrast_weight · AAG's loss."""
        assert isinstance(embeddings, Tensor)
        check_embeddings(embeddings.unbind(), self.settings.temperature)
        z = embeddings if embeddings.dtype == torch.float64 else embeddings.float()
        # One view at a time, because batch norm should see only one kind of view, as it does in SimSiam.
        total = prediction = prediction_loss(torch.stack([self.predictor(view) for view in z]), z)
        log: tuple[Tensor, ...] = ()
        if self.settings.contrast_weight:
            plain = super().loss(embeddings, index)
            total, log = prediction + self.settings.contrast_weight * plain.loss, plain.log
        return StepOutput(total, (*log, prediction.detach()))

    def describe_loss(self) -> str:
        weight = self.settings.contrast_weight
        return "prediction of other views" + (f" + {weight} × {super().describe_loss()}" if weight else "")

    # The predictor's batch norm needs the embeddings of all processes, whatever the size of the batch.
    distributed_loss = Method.distributed_loss


def prediction_loss(predictions: Tensor, z: Tensor) -> Tensor:
    """Return the mean of −cos(p_v, mean of z_u over the other views u ≠ v), without a gradient through z.

    Predictions p and embeddings z: [V, n, d], V at least 2.
    """
    z = z.detach()
    others = (z.sum(dim=0) - z) / (len(z) - 1)
    return -F.cosine_similarity(predictions, others, dim=-1).mean()
