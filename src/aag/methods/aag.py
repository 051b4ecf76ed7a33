"""AAG: two basic views and an auxiliary one, with GNT-Xent.

Tu, Feng, Yang: "AAG: Self-Supervised Representation Learning by Auxiliary Augmentation with GNT-Xent Loss" (2021).

    aag train --data cifar10 --recipe paper

CIFAR-10, ResNet-18: kNN 88.3 in the paper, 88.9 here in 5 minutes on one H200. The ablations are options: `--auxiliary
none` (two basic views), `--auxiliary basic` (three basic views), `--auxiliary randaugment`, `--loss nt-xent`,
`--schedule step`. Beyond the paper: several auxiliary views (`--auxiliary-views`), their crops, and `--one-way`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, Self

import torch
from torch import Tensor
from torch.distributed import ProcessGroup, group

from aag import kernels
from aag.augment import Augmentation, AutoAugment, AuxiliaryAugment, RandAugment
from aag.data.datasets import Dataset
from aag.distributed import scale_gradient, world_size
from aag.errors import AAGError
from aag.large_batch import contrast, gnt_xent_pairs, is_large
from aag.losses import check_embeddings, components_from_similarities, similarities
from aag.methods.base import Embeddings, Method, MethodSettings, MultiViewSettings, Recipe, StepOutput
from aag.settings import AddedLater, Range, Temperature, option

LOG_NAMES = (
    "positive_similarity", "negative_similarity", "positive_gradient", "negative_gradient",
    "loss_xy", "loss_zx", "loss_zy",
)  # fmt: skip


@dataclass(frozen=True)
class AAGSettings(MultiViewSettings):
    loss: Literal["gnt-xent", "nt-xent"] = "gnt-xent"
    """gnt-xent leaves the positive out of every denominator; nt-xent keeps it."""
    temperature: Temperature = 0.1
    """τ: cosine similarities are divided by it."""
    auxiliary: Literal["autoaugment", "randaugment", "basic", "none"] = "autoaugment"
    """Augmentation of the third view. basic: three basic views; none: two basic views only."""
    auxiliary_crop: Literal["auto", "resized", "padded", "none"] = "auto"
    """Crop of an auxiliary view, before its policy: resized (random resized crop and flip), padded (shift and flip) or
    none. auto: none on SVHN, else resized."""
    policy: Literal["auto", "cifar10", "svhn", "imagenet"] = "auto"
    """AutoAugment policy. auto: svhn on SVHN, else cifar10."""
    rand_n: Annotated[int, Range(at_least=1, at_most=16)] = 2
    """RandAugment: operations per image."""
    rand_magnitude: Annotated[int, Range(at_least=0, at_most=30)] = 10
    """RandAugment: magnitude, out of 30."""
    auxiliary_views: Annotated[int, Range(at_least=1, at_most=30), AddedLater] = 1
    """Auxiliary views per image, each paired with both basic views. More views learn more per epoch and take longer."""
    auxiliary_weight: Annotated[float, Range(at_least=0), AddedLater] = 1.0
    """Weight of each auxiliary view's terms in the loss."""
    auxiliary_min_crop: Annotated[float, Range(above=0, at_most=1), AddedLater] = 0.2
    """Smallest crop of an auxiliary view, as a fraction of the image's area (--auxiliary-crop resized)."""
    auxiliary_max_crop: Annotated[float, Range(above=0, at_most=1), AddedLater] = 1.0
    """Largest crop of an auxiliary view, as a fraction of the image's area. Small crops are local views, as in
    multi-crop."""
    one_way: Annotated[bool, AddedLater] = False
    """Pull auxiliary views towards the basic ones, but not the reverse, so that strong distortions do not change the
    targets (directional self-supervised learning)."""
    hard_negatives: Annotated[float, Range(at_least=0, at_most=10), AddedLater] = 0.0
    """β of hard negative sampling: a negative has the weight e^(β s), so that the most similar ones count most. 0:
    equal weights. Runs in plain PyTorch, with memory quadratic in the batch size."""

    def __post_init__(self) -> None:
        super().__post_init__()
        crops = ("auxiliary_min_crop", "auxiliary_max_crop")
        if self.auxiliary != "randaugment":
            self._refuse_changes("auxiliary", "rand_n", "rand_magnitude")
        if self.auxiliary == "none":
            self._refuse_changes("auxiliary", *crops, "auxiliary_views", "auxiliary_weight", "one_way")
        elif self.auxiliary == "basic":
            self._refuse_changes("auxiliary", *crops)
        elif self.auxiliary_crop in ("padded", "none"):
            self._refuse_changes("auxiliary_crop", *crops)
        if self.auxiliary_min_crop > self.auxiliary_max_crop:
            raise AAGError(
                f"--auxiliary-min-crop {self.auxiliary_min_crop:g} exceeds --auxiliary-max-crop "
                f"{self.auxiliary_max_crop:g}; give both"
            )

    def _refuse_changes(self, cause: str, *names: str) -> None:
        """Raise if one of these options is not at its default, although the option `cause` makes it useless."""
        for name in names:
            if (default := getattr(AAGSettings, name)) != getattr(self, name):
                chosen = f"{option(cause)} {getattr(self, cause)}"
                raise AAGError(f"{option(name)} has no effect with {chosen}; leave it out, or set it back to {default}")

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
        "best": Recipe(
            about="beyond the paper: two auxiliary views, an MLP head, gentler basic views, lr 0.06, weight decay 1e-3",
            expect="100 epochs, held-out training images of CIFAR-10: kNN 88.4, where paper has 86.8; no full run yet",
            options={
                "auxiliary_views": 2,
                "head": "mlp",
                "blur": 0.0,
                "grayscale": 0.1,
                "lr": 0.06,
                "weight_decay": 1e-3,
            },
        ),
    }

    def __init__(self, settings: MethodSettings | None = None) -> None:
        super().__init__(settings)
        self.auxiliary_views = self.settings.auxiliary_views if self.settings.auxiliary != "none" else 0
        self.log_names = LOG_NAMES if self.auxiliary_views else LOG_NAMES[:-2]

    def augmentations(self) -> tuple[Augmentation, ...]:
        settings = self.settings.resolve(None)  # outside of training, values may still be `auto`
        basic = settings.basic_augmentation()
        if settings.auxiliary in ("none", "basic"):
            return (basic,) * (2 + self.auxiliary_views)
        policy: Augmentation = RandAugment(settings.rand_n, settings.rand_magnitude)
        if settings.auxiliary == "autoaugment":
            policy = AutoAugment(settings.policy)
        auxiliary = AuxiliaryAugment(
            policy,
            settings.auxiliary_crop,  # type: ignore[arg-type]
            flip=0.5 if settings.flip else 0.0,
            scale=(settings.auxiliary_min_crop, settings.auxiliary_max_crop),
        )
        return (basic, basic, *(auxiliary,) * self.auxiliary_views)

    def describe_views(self) -> str:
        if self.settings.auxiliary in ("none", "basic"):
            return f"{2 + self.auxiliary_views} basic views"
        count = f"{self.auxiliary_views} × " if self.auxiliary_views > 1 else ""
        return f"2 basic views + {count}{self.settings.auxiliary}"

    def loss(self, embeddings: Embeddings, index: Tensor) -> StepOutput:
        assert isinstance(embeddings, Tensor)
        check_embeddings(embeddings.unbind(), self.settings.temperature)
        if kernels.enabled(embeddings) and not self.settings.hard_negatives:
            from aag.kernels import contrast as contrast_kernel  # imports triton

            if contrast_kernel.supports(embeddings):
                return self._kernel_loss(embeddings)
        return (self.large_batch_loss if self._uses_blocks(embeddings.shape[1]) else self._dense_loss)(embeddings)

    def _kernel_loss(self, embeddings: Tensor) -> StepOutput:
        from aag.kernels.contrast import contrast as fused_contrast

        total, statistics = fused_contrast(
            embeddings.flatten(0, 1),
            len(embeddings),
            temperature=self.settings.temperature,
            keep_positive=self.settings.keep_positive,
            auxiliary_weight=self.settings.auxiliary_weight,
            one_way=self.settings.one_way,
        )
        # The loss, then LOG_NAMES, whose last two need auxiliary views.
        return StepOutput(total, statistics[1 : 8 if self.auxiliary_views else 6].unbind())

    def _dense_loss(self, embeddings: Tensor) -> StepOutput:
        """Return `loss` from all similarities at once, with memory quadratic in n."""
        settings, n = self.settings, embeddings.shape[1]
        s = similarities(*embeddings, temperature=settings.temperature, one_way=settings.one_way)
        components = components_from_similarities(s, settings.keep_positive, settings.hard_negatives)
        core, *auxiliary = terms = [component.loss.mean() for component in components]
        total = sum((settings.auxiliary_weight * term for term in auxiliary), start=core)

        cosines = s.xy.detach() * settings.temperature
        positive = cosines.diagonal().mean()
        negative = (cosines.sum() - positive * n) / (n * (n - 1))
        positive_gradient = components[0].positive_gradient.mean()
        return StepOutput(total, self._log(positive, negative, positive_gradient, n, terms))

    def distributed_loss(self, embeddings: Embeddings, index: Tensor) -> StepOutput:
        if self._uses_blocks(len(index) * world_size()):
            assert isinstance(embeddings, Tensor)
            return self.large_batch_loss(scale_gradient(embeddings), group.WORLD)
        return super().distributed_loss(embeddings, index)

    def _uses_blocks(self, images: int) -> bool:
        return is_large(images, self.auxiliary_views) and not self.settings.hard_negatives

    def large_batch_loss(self, embeddings: Tensor, processes: ProcessGroup | None = None) -> StepOutput:
        """Return `loss`, with memory linear in n. With `processes`, embeddings [V, n, d] are this process's share."""
        result = contrast(
            embeddings.unbind(),
            gnt_xent_pairs(self.auxiliary_views, self.settings.auxiliary_weight),
            temperature=self.settings.temperature,
            keep_positive=self.settings.keep_positive,
            one_way=self.settings.one_way,
            group=processes,
        )
        positive, negative = result.positive_similarity, result.negative_similarity
        return StepOutput(
            result.loss, self._log(positive, negative, result.positive_gradient, result.images, result.terms)
        )

    @staticmethod
    def _log(
        positive: Tensor, negative: Tensor, positive_gradient: Tensor, n: int, terms: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """Return the scalars of LOG_NAMES, the first four as in Figure 4.

        positive, negative: mean cosines of x with y. positive_gradient: the mean ∂L_xy/∂s⁺; an image's 4(n − 1)
        negatives share its opposite. terms: L_xy, then L_zx and L_zy of each auxiliary view, which are summed.
        """
        core, *auxiliary = (term.detach() for term in terms)
        sums = [torch.stack(auxiliary[basic::2]).sum() for basic in (0, 1)] if auxiliary else []
        return positive, negative, positive_gradient, -positive_gradient / (4 * (n - 1)), core, *sums
