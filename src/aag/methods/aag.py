"""AAG: two basic views and an auxiliary one, with GNT-Xent.

Tu, Feng, Yang: "AAG: Self-Supervised Representation Learning by Auxiliary Augmentation with GNT-Xent Loss" (2021).

    aag train --data cifar10 --recipe paper

CIFAR-10, ResNet-18: kNN 88.3 in the paper, 88.9 here in 5 minutes on one H200. The ablations are options: `--auxiliary
none` (two basic views), `--auxiliary basic` (three basic views), `--auxiliary randaugment`, `--loss nt-xent`,
`--schedule step`.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Literal, Self

from torch import Tensor
from torch.distributed import ProcessGroup, group

from aag import kernels
from aag.augment import Augmentation, AutoAugment, AuxiliaryAugment, RandAugment
from aag.data.datasets import Dataset
from aag.distributed import scale_gradient, world_size
from aag.large_batch import ALGORITHM_1, TWO_VIEWS, contrast, is_large
from aag.losses import check, components_from_similarities, similarities
from aag.methods.base import Embeddings, Method, MethodSettings, MultiViewSettings, Recipe, StepOutput
from aag.settings import Range, Temperature

LOG_NAMES = (
    "positive_similarity", "negative_similarity", "positive_gradient", "negative_gradient",
    "loss_xy", "loss_zx", "loss_zy",
)  # fmt: skip


@dataclass(frozen=True)
class AAGSettings(MultiViewSettings):
    loss: Literal["gnt-xent", "nt-xent"] = "gnt-xent"
    """nt-xent keeps the positive in every denominator."""
    temperature: Temperature = 0.1
    """τ: cosine similarities are divided by it."""
    auxiliary: Literal["autoaugment", "randaugment", "basic", "none"] = "autoaugment"
    """The third view. basic: three basic views; none: two basic views only."""
    auxiliary_crop: Literal["auto", "resized", "padded", "none"] = "auto"
    """Before the policy: resized (random resized crop and flip), padded (shift and flip) or none. auto: none on SVHN,
    else resized."""
    policy: Literal["auto", "cifar10", "svhn", "imagenet"] = "auto"
    """AutoAugment policy. auto: svhn on SVHN, else cifar10."""
    rand_n: Annotated[int, Range(at_least=1, at_most=16)] = 2
    """RandAugment: operations per image."""
    rand_magnitude: Annotated[int, Range(at_least=0, at_most=30)] = 10
    """RandAugment: magnitude, out of 30."""

    @property
    def keep_positive(self) -> bool:
        return self.loss == "nt-xent"

    def resolve(self, dataset: Dataset | None) -> Self:
        crop, policy = (dataset.auxiliary_crop, dataset.policy) if dataset else ("resized", "cifar10")
        return replace(
            self,
            auxiliary_crop=crop if self.auxiliary_crop == "auto" else self.auxiliary_crop,  # type: ignore[arg-type]
            policy=policy if self.policy == "auto" else self.policy,  # type: ignore[arg-type]
        )


class AAG(Method):
    name = "aag"
    settings_type = AAGSettings
    settings: AAGSettings
    recipes = {
        "paper": Recipe(
            about="AAG as in the paper: 200 epochs, batch 128, lr 0.03, τ 0.1, AutoAugment as the auxiliary view",
            expect="CIFAR-10, ResNet-18: kNN 88.3 in the paper; 88.9 here, in 5 minutes on one H200",
        ),
        "paper-resnet50": Recipe(
            about="the paper's larger network: ResNet-50 with an MLP head, batch 64, 1000 epochs",
            expect="CIFAR-10: linear 94.5 in the paper; not run here yet",
            options={"network": "resnet50", "batch_size": 64, "epochs": 1000},
        ),
    }

    def __init__(self, settings: MethodSettings | None = None) -> None:
        super().__init__(settings)
        self.log_names = LOG_NAMES if self.settings.auxiliary != "none" else LOG_NAMES[:-2]

    def augmentations(self) -> tuple[Augmentation, ...]:
        settings = self.settings.resolve(None)  # outside of training they may still be automatic
        basic = settings.basic_augmentation()
        if settings.auxiliary == "none":
            return (basic, basic)
        if settings.auxiliary == "basic":
            return (basic, basic, basic)
        policy: Augmentation = RandAugment(settings.rand_n, settings.rand_magnitude)
        if settings.auxiliary == "autoaugment":
            policy = AutoAugment(settings.policy)
        flip = 0.5 if settings.flip else 0.0
        return (basic, basic, AuxiliaryAugment(policy, settings.auxiliary_crop, flip))  # type: ignore[arg-type]

    def describe_views(self) -> str:
        if self.settings.auxiliary in ("none", "basic"):
            return super().describe_views()
        return f"2 basic views + {self.settings.auxiliary}"

    def loss(self, embeddings: Embeddings, index: Tensor) -> StepOutput:
        settings = self.settings
        assert isinstance(embeddings, Tensor)
        x, y, *rest = embeddings
        z = rest[0] if rest else None
        check(x, y, z, settings.temperature)
        if kernels.enabled(x):
            from aag.kernels.contrast import contrast as fused_contrast
            from aag.kernels.contrast import supports

            if supports(x):
                total, numbers = fused_contrast(
                    embeddings.flatten(0, 1),
                    len(embeddings),
                    temperature=settings.temperature,
                    keep_positive=settings.keep_positive,
                )
                return StepOutput(total, numbers[1 : 1 + len(self.log_names)].unbind())
        if is_large(len(x)):
            return self.large_batch_loss(embeddings)
        s = similarities(x, y, z, temperature=settings.temperature)
        parts = components_from_similarities(s, settings.keep_positive)
        total = sum((part.loss.mean() for part in parts[1:]), start=parts[0].loss.mean())

        # Figure 4: the core pair's similarities (as cosines) and the gradients on them, means over the batch.
        n = len(x)
        core, xy = parts[0], s.xy.detach() * settings.temperature
        positive = xy.diagonal().mean()
        negative = (xy.sum() - positive * n) / (n * (n - 1))
        pull = core.pull.mean()
        log = (positive, negative, pull, -pull / (4 * (n - 1)), *(part.loss.detach().mean() for part in parts))
        return StepOutput(total, log)

    def distributed_loss(self, embeddings: Embeddings, index: Tensor) -> StepOutput:
        if is_large(len(index) * world_size()):
            assert isinstance(embeddings, Tensor)
            return self.large_batch_loss(scale_gradient(embeddings), group.WORLD)
        return super().distributed_loss(embeddings, index)

    def large_batch_loss(self, embeddings: Tensor, processes: ProcessGroup | None = None) -> StepOutput:
        """Compute `loss` with memory linear in n. With `processes`, embeddings [V, n, d] are the own share."""
        found = contrast(
            embeddings.unbind(),
            ALGORITHM_1 if len(embeddings) == 3 else TWO_VIEWS,
            temperature=self.settings.temperature,
            keep_positive=self.settings.keep_positive,
            group=processes,
        )
        push = -found.pull / (4 * (found.images - 1))
        return StepOutput(found.loss, (found.positive, found.negative, found.pull, push, *found.parts))
