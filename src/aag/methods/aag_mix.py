"""AAG with mixtures: further views are weighted means of two images; the loss pulls them to both, by these weights.

Lee, Zhu, Sohn, Li, Shin, Lee: "i-Mix: A Domain-Agnostic Strategy for Contrastive Representation Learning" (2021).

    aag train --data cifar10 --method aag-mix

The embedding of a mixture should lie between those of its two images. There are too many mixtures to memorize, which
should regularize long training. As in i-Mix (with its α = 1), each image draws its own mixing coefficient λ, and
mixtures are compared with views that are not mixed. Four things differ from i-Mix:

- Mixtures are added to AAG's views; i-Mix replaces a view by its mixture.
- An image is mixed with its neighbour in the batch, and the neighbour with it. i-Mix draws partners by a random
  permutation. It also gives the image itself the larger weight, λ ≥ ½.
- Each pair of views has two logs, like an auxiliary view in AAG; i-Mix has one softmax per mixture.
- The denominators leave out the positives, unless `--loss nt-xent`.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from aag.augment import Augmentation
from aag.distributed import world_size
from aag.errors import AAGError
from aag.losses import check_embeddings, unit_rows
from aag.methods.aag import AAG, AAGSettings
from aag.methods.base import Embeddings, Method, MethodContext, MethodSettings, Recipe, StepOutput
from aag.rng import NO_EPOCH, Stream, keys, uniforms
from aag.settings import Range
from aag.text import pluralize


@dataclass(frozen=True)
class MixtureAAGSettings(AAGSettings):
    mixtures: Annotated[int, Range(at_least=1, at_most=16)] = 1
    """Mixtures per image: further views, each the weighted mean of the image's basic view and its partner's."""
    mixture_weight: Annotated[float, Range(at_least=0)] = 1.0
    """Weight of each mixture's terms in the loss; --auxiliary-weight is that of the auxiliary views."""


class MixtureAAG(AAG):
    name = "aag-mix"
    settings_type = MixtureAAGSettings
    settings: MixtureAAGSettings
    recipes = {
        "aag-mix": Recipe(
            about="AAG with one more view, a mixture of two images (i-Mix)",
            expect="not run here yet",
        )
    }

    def __init__(self, settings: MethodSettings | None = None) -> None:
        super().__init__(settings)
        self.log_names = (*self.log_names, "loss_mixture")

    def augmentations(self) -> tuple[Augmentation, ...]:
        basic = self.settings.basic_augmentation()
        return (*super().augmentations(), *(basic,) * self.settings.mixtures)

    def describe_views(self) -> str:
        return f"{super().describe_views()} + {pluralize(self.settings.mixtures, 'mixture')}"

    def setup(self, context: MethodContext) -> None:
        super().setup(context)
        self.seed, batch, processes = context.train.seed, context.train.batch_size, world_size()
        if batch % (2 * processes) or batch < 4:
            raise AAGError(
                f"--method aag-mix pairs the images of a batch; use a --batch-size that is a multiple of "
                f"{2 * processes} and at least 4, not {batch}"
            )

    def prepare_views(self, views: Tensor, index: Tensor) -> Tensor:
        """Replace the last views of each image by λ · view + (1 − λ) · the partner's view."""
        own = views[-self.settings.mixtures :].float()
        coefficients = self.mixing_coefficients(index)[..., None, None, None]
        mixed = torch.lerp(swap_pairs(own, dim=1), own, coefficients).round().to(views.dtype)
        return torch.cat([views[: -self.settings.mixtures], mixed])

    def mixing_coefficients(self, index: Tensor) -> Tensor:
        """Draw λ for each mixture of each image, uniform in [0, 1), float32 [mixtures, n].

        The draw depends on the image and its partner, so that mixtures differ from epoch to epoch.
        """
        pair = (index << 16) ^ swap_pairs(index, dim=0)
        return uniforms(keys(self.seed, NO_EPOCH, pair & 0xFFFFFFFF, Stream.MIXTURES), self.settings.mixtures).T

    def loss(self, embeddings: Embeddings, index: Tensor) -> StepOutput:
        """Return AAG's loss + mixture_weight · Σ (L_mx + L_my) over the mixtures m.

        --hard-negatives does not change the mixtures' terms.
        """
        assert isinstance(embeddings, Tensor)
        settings = self.settings
        plain = super().loss(embeddings[: -settings.mixtures], index)
        x, y = (v.detach() if settings.one_way else v for v in embeddings[:2])
        terms = [
            mixture_loss(m, v, coefficients, settings.temperature, settings.keep_positive)
            for m, coefficients in zip(embeddings[-settings.mixtures :], self.mixing_coefficients(index), strict=True)
            for v in (x, y)
        ]
        extra = torch.stack(terms).sum()
        return StepOutput(plain.loss + settings.mixture_weight * extra, (*plain.log, extra.detach()))

    # Mixtures need the embeddings of all processes, whatever the size of the batch.
    distributed_loss = Method.distributed_loss


def swap_pairs(tensor: Tensor, dim: int) -> Tensor:
    """Swap positions 2k and 2k + 1 of a dimension: images that are neighbours in a batch are partners."""
    return tensor.unflatten(dim, (-1, 2)).flip(dim + 1).flatten(dim, dim + 1)


def mixture_loss(m: Tensor, x: Tensor, coefficients: Tensor, temperature: float, keep_positive: bool = False) -> Tensor:
    """Return the mean of −2 (λ_i s_ii + (1 − λ_i) s_ip) + log Σ_j e^s_ij + log Σ_j e^s_ji over images i.

    m_i is the embedding of a mixture of image i and its partner p, with `coefficients` λ [n]; m and x are [n, d], and
    s_ij is the cosine of m_i and x_j over τ. Each pair has two logs, as an auxiliary view has in Algorithm 1. The sums
    leave out i and p, which are both positives; with `keep_positive` they are over all images.
    """
    check_embeddings((m, x), temperature)
    s = unit_rows(m) @ unit_rows(x).T / temperature
    own = coefficients.to(s.dtype)
    image = torch.arange(len(s), device=s.device)
    positive = own * s.diagonal() + (1 - own) * s[image, swap_pairs(image, dim=0)]
    if not keep_positive:
        s = s.masked_fill(image[:, None] // 2 == image // 2, -torch.inf)
    return (s.logsumexp(dim=1) + s.logsumexp(dim=0) - 2 * positive).mean()
