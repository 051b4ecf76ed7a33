"""SimCLR: each of two views must recognize the other among the views of all images of the batch.

Chen, Kornblith, Norouzi, Hinton: "A Simple Framework for Contrastive Learning of Visual Representations" (2020).

    aag train --data cifar10 --method simclr

CIFAR-10, ResNet-18: kNN 82.3 in the paper, 82.1 here in 3 minutes on one H200. `--loss dcl` and `--loss dclw` are
Decoupled Contrastive Learning (Yeh et al., 2021). `--loss dcl` is what Table 5 of the paper of AAG calls SimCLR with
GNT-Xent (linear 82.9 → 85.8).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor
from torch.distributed import ProcessGroup, group

from aag import large_batch, losses
from aag.distributed import scale_gradient, world_size
from aag.methods.base import BasicPreset, Embeddings, Method, MultiViewSettings, Recipe, StepOutput
from aag.settings import Temperature

BLOCKWISE_LOSSES: dict[Callable[..., Tensor], dict[str, Any]] = {  # arguments of `large_batch.contrast`
    losses.simclr: {"pairs": large_batch.SIMCLR_PAIRS, "keep_positive": True},
    losses.gnt_xent: {"pairs": large_batch.gnt_xent_pairs(0)},
    losses.dcl: {"pairs": large_batch.SIMCLR_PAIRS},
    losses.dclw: {"pairs": large_batch.SIMCLR_PAIRS, "sigma": 0.5},
}


@dataclass(frozen=True)
class SimCLRSettings(MultiViewSettings):
    basic: BasicPreset = "simclr"
    loss: Literal["nt-xent", "gnt-xent", "dcl", "dclw"] = "nt-xent"
    """nt-xent: SimCLR's. dcl: without the positive in the denominator. dclw: dcl with weighted positives. gnt-xent:
    AAG's L_xy, one log per image over the negatives of both views."""
    temperature: Temperature = 0.5
    """τ: cosine similarities are divided by it."""


class SimCLR(Method):
    name = "simclr"
    settings_type: ClassVar[type[MultiViewSettings]] = SimCLRSettings
    settings: SimCLRSettings
    recipes = {
        "simclr": Recipe(
            about="SimCLR with its authors' CIFAR settings: NT-Xent at τ 0.5, MLP head, batch 512, LARS",
            expect="CIFAR-10, ResNet-18, 200 epochs: kNN 82.3 in the paper; 82.1 here, in 3 minutes on one H200",
            options={"head": "mlp", "batch_size": 512, "optimizer": "lars", "lr": 0.5, "weight_decay": 1e-4},
            demo={"optimizer": "sgd"},
        )
    }
    log_names = ("positive_similarity", "negative_similarity")  # cosines between the two views, means over the batch
    loss_functions: ClassVar[dict[str, Callable[..., Tensor]]] = {  # by the setting `loss`
        "nt-xent": losses.simclr,
        "gnt-xent": losses.gnt_xent,  # L_xy of Algorithm 1
        "dcl": losses.dcl,
        "dclw": losses.dclw,
    }

    def loss(self, embeddings: Embeddings, index: Tensor) -> StepOutput:
        x, y = embeddings
        if self._uses_blocks(len(x)):
            return self.large_batch_loss(embeddings)
        loss = self._loss_function(x, y, temperature=self.settings.temperature)
        return StepOutput(loss, losses.mean_cosines(x, y))

    def distributed_loss(self, embeddings: Embeddings, index: Tensor) -> StepOutput:
        if self._uses_blocks(len(index) * world_size()):
            assert isinstance(embeddings, Tensor)
            return self.large_batch_loss(scale_gradient(embeddings), group.WORLD)
        return super().distributed_loss(embeddings, index)

    @property
    def _loss_function(self) -> Callable[..., Tensor]:
        return self.loss_functions[self.settings.loss]

    def _uses_blocks(self, images: int) -> bool:
        return large_batch.is_large(images) and self._loss_function in BLOCKWISE_LOSSES

    def large_batch_loss(self, embeddings: Embeddings, processes: ProcessGroup | None = None) -> StepOutput:
        """Return `loss`, with memory linear in n. With `processes`, embeddings [2, n, d] are this process's share."""
        arguments = BLOCKWISE_LOSSES[self._loss_function]
        found = large_batch.contrast([*embeddings], temperature=self.settings.temperature, group=processes, **arguments)
        return StepOutput(found.loss, (found.positive_similarity, found.negative_similarity))
