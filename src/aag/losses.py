"""Contrastive losses in the paper's notation: pure functions of embeddings.

x, y are the embeddings of the two basic (core) views of n images and z those of the auxiliary view, each
[n, d], normalised inside. Row i of each belongs to image i. Similarities are cosines divided by τ.

GNT-Xent (Algorithm 1) is NT-Xent without the positive in the denominator: its pull on a positive pair never
fades. It falls below zero as training goes on, and that is no error: nothing bounds it at zero.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from aag.errors import AAGError, unknown


class Component(NamedTuple):
    """One positive pair's term, image by image, and what it does to its similarities (Figure 4 of the paper)."""

    loss: Tensor  # [n]
    pull: Tensor  # [n]  ∂L/∂s⁺, where s is the cosine over τ; −1 for each log of GNT-Xent, always. Σ_k ∂L/∂s⁻_k = −pull


class Similarities(NamedTuple):
    """All cosines over τ that Algorithm 1 uses. Row index: the first letter's image; column: the second's."""

    xy: Tensor  # each [n, n]
    xx: Tensor
    yy: Tensor
    zx: Tensor | None
    zy: Tensor | None


def gnt_xent(x: Tensor, y: Tensor, z: Tensor | None = None, *, temperature: float = 0.1) -> Tensor:
    """GNT-Xent of Algorithm 1, the mean over the n images of L_xy + L_zx + L_zy.

    `z=None` leaves L_xy alone: the two-view loss. Gradients flow through both operands of every similarity.
    """
    return _mean_total(components(x, y, z, temperature=temperature, keep_positive=False))


def nt_xent(x: Tensor, y: Tensor, z: Tensor | None = None, *, temperature: float = 0.1) -> Tensor:
    """The same components with the positive kept in every denominator: the paper's NT-Xent ablation."""
    return _mean_total(components(x, y, z, temperature=temperature, keep_positive=True))


LOSSES = {"gnt-xent": gnt_xent, "nt-xent": nt_xent}


def keeps_positive(name: str) -> bool:
    """Whether the loss of this name keeps the positive in its denominators."""
    if name not in LOSSES:
        raise unknown("loss", name, LOSSES)
    return name == "nt-xent"


def similarities(x: Tensor, y: Tensor, z: Tensor | None = None, *, temperature: float = 0.1) -> Similarities:
    """Cosines over τ, in float32 or better: e^10 overflows half precision after three terms."""
    check(x, y, z, temperature)
    with torch.autocast(x.device.type, enabled=False):
        x, y = _scaled(x, temperature), _scaled(y, temperature)
        xy, xx, yy = x @ y.T, x @ x.T, y @ y.T
        if z is None:
            return Similarities(xy, xx, yy, None, None)
        z = _scaled(z, temperature)
        return Similarities(xy, xx, yy, z @ x.T, z @ y.T)


def components(
    x: Tensor, y: Tensor, z: Tensor | None = None, *, temperature: float = 0.1, keep_positive: bool = False
) -> list[Component]:
    """L_xy, and with an auxiliary view L_zx and L_zy, each image by image."""
    return components_of(similarities(x, y, z, temperature=temperature), keep_positive)


def components_of(s: Similarities, keep_positive: bool) -> list[Component]:
    """The components from similarities already at hand."""
    own = torch.eye(len(s.xy), dtype=torch.bool, device=s.xy.device)

    def others(similarity: Tensor) -> Tensor:  # j ≠ i: an image is no negative of itself
        return similarity.masked_fill(own, -torch.inf)

    xy = others(s.xy)
    core = torch.cat([xy, xy.T, others(s.xx), others(s.yy)], dim=1)  # [n, 4n]: one log over 4(n − 1) negatives
    parts = [_log_ratio(s.xy.diagonal(), core, keep_positive)]
    for auxiliary in (s.zx, s.zy):
        if auxiliary is not None:  # two logs, and neither z–z nor x–x negatives: auxiliary views are noisy
            positive, negatives = auxiliary.diagonal(), others(auxiliary)
            forth = _log_ratio(positive, negatives, keep_positive)
            back = _log_ratio(positive, negatives.T, keep_positive)
            parts.append(Component(*(f + b for f, b in zip(forth, back, strict=True))))
    return parts


def _log_ratio(positive: Tensor, negatives: Tensor, keep_positive: bool) -> Component:
    """−log(e^s⁺ / Σ e^s⁻) by rows; with `keep_positive`, e^s⁺ joins the sum. positive [n], negatives [n, m]."""
    log_negatives = negatives.logsumexp(dim=1)
    if not keep_positive:
        return Component(log_negatives - positive, -torch.ones_like(positive))
    log_all = torch.logaddexp(log_negatives, positive)
    share = (log_negatives - log_all).detach().exp()  # of the denominator held by the negatives
    return Component(log_all - positive, -share)


def _mean_total(parts: list[Component]) -> Tensor:
    return torch.stack([part.loss for part in parts]).sum(dim=0).mean()


def _scaled(v: Tensor, temperature: float) -> Tensor:
    """Unit rows over √τ: a product of two such is a cosine over τ, and [n, d] is scaled instead of [n, n]."""
    return normalize(v if v.dtype == torch.float64 else v.float(), dim=1) * temperature**-0.5


def check(x: Tensor, y: Tensor, z: Tensor | None, temperature: float) -> None:
    """Raises where these cannot be contrasted."""
    shapes = [tuple(v.shape) for v in (x, y, z) if v is not None]
    if len(set(shapes)) != 1 or x.ndim != 2:
        raise AAGError(f"a contrastive loss takes embeddings of one shape [n, d], not {', '.join(map(str, shapes))}")
    if len(x) < 2:
        raise AAGError("a contrastive loss needs at least two images: one alone has no negatives")
    if not temperature > 0:
        raise AAGError(f"the temperature must be positive, not {temperature}")
