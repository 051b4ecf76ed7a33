"""Contrastive losses in the paper's notation: pure functions of embeddings.

x and y are the embeddings of the two basic (core) views of n images, and z those of an auxiliary view. Each is [n, d],
and row i belongs to image i. The losses L2-normalise the rows. Similarities s are cosines divided by the temperature τ.
The paper has one auxiliary view; these functions take any number, each with the same two terms.

GNT-Xent (Algorithm 1) is NT-Xent without the positive in the denominator, so its gradient on a positive pair is
constant: ∂L/∂s⁺ = −1. The loss becomes negative during training: it has no lower bound at zero.

Other methods' losses compare two views (`simclr`, `dcl`, `dclw`, `isif`), or a view with a queue (`queue_xent`).
"""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from aag.errors import AAGError, describe
from aag.vectors import check_floats, unit_rows

TEMPERATURE_RANGE = (0.001, 1000.0)  # below, cosines over τ lose their digits in float32; above, all pairs look alike


class Component(NamedTuple):
    """One term of the loss, such as L_xy, per image, and its gradient on the positives (Figure 4 of the paper).

    The gradients on an image's negatives sum to −positive_gradient.
    """

    loss: Tensor  # [n]
    positive_gradient: Tensor  # [n]  ∂L/∂s⁺; with GNT-Xent it is −1 in L_xy, and −2 in L_zx and L_zy, of two logs each


class Similarities(NamedTuple):
    """All cosines over τ that Algorithm 1 uses: rows are images of the first letter's view, columns of the second's."""

    xy: Tensor  # each [n, n]
    xx: Tensor
    yy: Tensor
    zx: tuple[Tensor, ...] = ()  # one for each auxiliary view
    zy: tuple[Tensor, ...] = ()


def gnt_xent(x: Tensor, y: Tensor, *z: Tensor, temperature: float = 0.1, one_way: bool = False) -> Tensor:
    """Return GNT-Xent of Algorithm 1, the mean over the n images of L_xy + L_zx + L_zy.

    Without z, this is the two-view loss L_xy. Each further auxiliary view adds its own L_zx + L_zy. Gradients flow
    through both operands of every similarity; with `one_way`, z gets gradients from L_zx and L_zy, but x and y do not.
    """
    return _mean_total(components(x, y, *z, temperature=temperature, keep_positive=False, one_way=one_way))


def nt_xent(x: Tensor, y: Tensor, *z: Tensor, temperature: float = 0.1, one_way: bool = False) -> Tensor:
    """Return `gnt_xent` with the positive in every denominator: the paper's NT-Xent ablation."""
    return _mean_total(components(x, y, *z, temperature=temperature, keep_positive=True, one_way=one_way))


def similarities(x: Tensor, y: Tensor, *z: Tensor, temperature: float = 0.1, one_way: bool = False) -> Similarities:
    """Return cosines over τ, in float32 or better: a sum of three e^10 overflows half precision."""
    check_embeddings((x, y, *z), temperature)
    _check_flag("one_way", one_way)
    with torch.autocast(x.device.type, enabled=False):
        x, y, *z_scaled = (_scaled(v, temperature) for v in (x, y, *z))
        to_x, to_y = (v.detach() if one_way else v for v in (x, y))
        return Similarities(
            x @ y.T, x @ x.T, y @ y.T, tuple(v @ to_x.T for v in z_scaled), tuple(v @ to_y.T for v in z_scaled)
        )


# --- other methods' losses: each of the 2n views is an anchor once ----------------------------------------------------


def simclr(x: Tensor, y: Tensor, *, temperature: float = 0.1) -> Tensor:
    """Return SimCLR's NT-Xent: the mean over 2n anchors, each contrasted with the 2n − 2 views of other images.

    `nt_xent` instead takes one log per image, over the negatives of both views.
    """
    return _log_ratio(*_anchors(x, y, temperature), keep_positive=True).loss.mean()


def dcl(x: Tensor, y: Tensor, *, temperature: float = 0.1) -> Tensor:
    """Return `simclr` without the positive in the denominator. Yeh et al., "Decoupled Contrastive Learning" (2021)."""
    return _log_ratio(*_anchors(x, y, temperature), keep_positive=False).loss.mean()


def dclw(x: Tensor, y: Tensor, *, temperature: float = 0.1, sigma: float = 0.5) -> Tensor:
    """Return DCL with positives weighted by 2 − n · softmax(cos⁺ / σ) over the batch: distant pairs weigh more.

    The weights have mean 1 and no gradient.
    """
    _check_temperature(sigma, "sigma")
    positive, negatives = _anchors(x, y, temperature)
    own = positive.detach()[: len(x)] * temperature / sigma  # [n]; the second half repeats it
    weight = (2 - len(x) * own.softmax(dim=0)).repeat(2)
    return (negatives.logsumexp(dim=1) - weight * positive).mean()


def isif(x: Tensor, y: Tensor, *, temperature: float = 0.1) -> Tensor:
    """Return ISIF's loss: each view should be classified as its image's other view. Ye et al. (2019).

    View a of all 2n is classified as view b ≠ a with P(b|a) = e^s_ab / Σ_{c≠a} e^s_ac. With a' for its other view,
    L = −(1/2n) Σ_a [log P(a'|a) + Σ_{b≠a,a'} log(1 − P(b|a))]. The second operand of s_ab has no gradient.
    """
    check_embeddings((x, y), temperature)
    with torch.autocast(x.device.type, enabled=False):
        v = torch.cat([_scaled(x, temperature), _scaled(y, temperature)])
        return isif_from_similarities(v @ v.detach().T)


def isif_from_similarities(s: Tensor) -> Tensor:
    """Return ISIF's loss from similarities [2n, 2n]: rows 0 … n − 1 are the first views, the others the second."""
    _check_tensors(s)
    if s.ndim != 2 or s.shape[0] != s.shape[1] or len(s) < 2 or len(s) % 2:
        raise AAGError(f"similarities of two views of n images have the shape [2n, 2n], not {list(s.shape)}")
    n = len(s) // 2
    same = torch.eye(2 * n, dtype=torch.bool, device=s.device)
    log_p = s.masked_fill(same, -torch.inf).log_softmax(dim=1)
    rejected = _log_complement(log_p).masked_fill(same.roll(n, dims=1), 0).sum(dim=1)  # b = a adds log(1 − 0)
    return -(torch.cat([log_p.diagonal(n), log_p.diagonal(-n)]) + rejected).mean()


def queue_xent(
    query: Tensor, key: Tensor, queue: Tensor, *, temperature: float = 0.1, keep_positive: bool = True
) -> Tensor:
    """Return MoCo's InfoNCE: row i of query [n, d] should match row i of key [n, d], not the keys of queue [K, d].

    `keep_positive=False` leaves the positive out of the denominator, as GNT-Xent does.
    """
    _check_tensors(query, key, queue)
    _check_flag("keep_positive", keep_positive)
    shapes = [tuple(v.shape) for v in (query, key, queue)]
    if shapes[0] != shapes[1] or any(
        v.ndim != 2 or 0 in v.shape or v.shape[1] != key.shape[-1] for v in (query, queue)
    ):
        raise AAGError(f"InfoNCE takes a query and a key [n, d] and a queue [K, d], not {', '.join(map(str, shapes))}")
    _check_temperature(temperature)
    with torch.autocast(query.device.type, enabled=False):
        query, key, queue = (_scaled(v, temperature) for v in (query, key, queue))
        positive, negatives = (query * key).sum(dim=1), query @ queue.T  # [n], [n, K]
    return _log_ratio(positive, negatives, keep_positive).loss.mean()


@torch.no_grad()
def mean_cosines(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean cosine of positive pairs (x_i, y_i) and of negative pairs (x_i, y_j), i ≠ j."""
    check_embeddings((x, y), 1.0)
    x, y, n = unit_rows(x), unit_rows(y), len(x)
    positive = (x * y).sum()
    return positive / n, (x.sum(dim=0) @ y.sum(dim=0) - positive) / (n * (n - 1))


# --- components -------------------------------------------------------------------------------------------------------


def components(
    x: Tensor, y: Tensor, *z: Tensor, temperature: float = 0.1, keep_positive: bool = False, one_way: bool = False
) -> list[Component]:
    """Return the terms of the loss, per image: L_xy, then L_zx and L_zy of each auxiliary view."""
    _check_flag("keep_positive", keep_positive)
    s = similarities(x, y, *z, temperature=temperature, one_way=one_way)
    return components_from_similarities(s, keep_positive)


def components_from_similarities(s: Similarities, keep_positive: bool, hard_negatives: float = 0.0) -> list[Component]:
    """Return the same list as `components`, from similarities; `hard_negatives` as in `_log_sum`."""
    own = torch.eye(len(s.xy), dtype=torch.bool, device=s.xy.device)

    def others(similarity: Tensor) -> Tensor:  # an image is not a negative of itself
        return similarity.masked_fill(own, -torch.inf)

    xy = others(s.xy)
    core = torch.cat([xy, xy.T, others(s.xx), others(s.yy)], dim=1)  # [n, 4n]: one log over 4(n − 1) negatives
    parts = [_log_ratio(s.xy.diagonal(), core, keep_positive, hard_negatives)]
    for auxiliary in chain.from_iterable(zip(s.zx, s.zy, strict=True)):
        # Two logs, without z–z and x–x negatives: auxiliary views are noisy.
        positive, negatives = auxiliary.diagonal(), others(auxiliary)
        from_z = _log_ratio(positive, negatives, keep_positive, hard_negatives)  # rows of z are the anchors
        from_basic = _log_ratio(positive, negatives.T, keep_positive, hard_negatives)
        parts.append(Component(*(a + b for a, b in zip(from_z, from_basic, strict=True))))
    return parts


def _log_ratio(positive: Tensor, negatives: Tensor, keep_positive: bool, hard_negatives: float = 0.0) -> Component:
    """Return −log(e^s⁺ / Σ e^s⁻) per row; `keep_positive` adds e^s⁺ to the sum. positive [n], negatives [n, m]."""
    log_negatives = _log_sum(negatives, hard_negatives)
    if not keep_positive:
        return Component(log_negatives - positive, -torch.ones_like(positive))
    log_all = torch.logaddexp(log_negatives, positive)
    share = (log_negatives - log_all).detach().exp()  # the negatives' share of the denominator
    return Component(log_all - positive, -share)


def _log_sum(negatives: Tensor, hard_negatives: float) -> Tensor:
    """Return log Σ w e^s per row. The weights w ∝ e^(hard_negatives · s) have mean 1; similarities of −∞ do not count.

    Robinson, Chuang, Sra, Jegelka: "Contrastive Learning with Hard Negative Samples" (2021), without its debiasing.
    Gradients flow through the weights, too, so those on a row's similarities still sum to 1.
    """
    if not hard_negatives:
        return negatives.logsumexp(dim=1)
    log_weights = hard_negatives * negatives
    count = (negatives > -torch.inf).sum(dim=1, dtype=negatives.dtype)
    return (log_weights + negatives).logsumexp(dim=1) - log_weights.logsumexp(dim=1) + count.log()


def _anchors(x: Tensor, y: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return each anchor's similarity to its positive [2n] and to all views [2n, 2n], −∞ for those of its own image."""
    check_embeddings((x, y), temperature)
    n = len(x)
    with torch.autocast(x.device.type, enabled=False):
        v = torch.cat([_scaled(x, temperature), _scaled(y, temperature)])
        s = v @ v.T
    own = torch.eye(n, dtype=torch.bool, device=s.device).repeat(2, 2)
    return s.diagonal(n).repeat(2), s.masked_fill(own, -torch.inf)


def _log_complement(log_p: Tensor) -> Tensor:
    """Return log(1 − P) for rows of log-probabilities [m, k].

    Only the largest P of a row can be so close to 1 that 1 − P loses its digits; there 1 − P is the sum of the others.
    """
    largest = torch.zeros_like(log_p, dtype=torch.bool).scatter_(1, log_p.argmax(dim=1, keepdim=True), True)
    others = log_p.masked_fill(largest, -torch.inf)
    return torch.where(largest, others.logsumexp(dim=1, keepdim=True), torch.log1p(-others.exp()))


def _mean_total(parts: list[Component]) -> Tensor:
    return torch.stack([part.loss for part in parts]).sum(dim=0).mean()


def _scaled(v: Tensor, temperature: float) -> Tensor:
    """Return unit rows over √τ: a product of two is a cosine over τ, and this scales [n, d] instead of [n, n]."""
    return unit_rows(v) * temperature**-0.5


def check_embeddings(views: Sequence[Tensor], temperature: float) -> None:
    """Raise an AAGError for embeddings or a temperature that a contrastive loss cannot take."""
    _check_tensors(*views)
    x, shapes = views[0], [tuple(v.shape) for v in views]
    if len(set(shapes)) != 1 or x.ndim != 2:
        raise AAGError(f"a contrastive loss takes embeddings of one shape [n, d], not {', '.join(map(str, shapes))}")
    if not x.shape[1]:
        raise AAGError(f"a contrastive loss needs embeddings with at least one dimension, not {list(x.shape)}")
    if len(x) < 2:
        raise AAGError("a contrastive loss needs at least two images: one alone has no negatives")
    _check_temperature(temperature)


def _check_tensors(*embeddings: Tensor) -> None:
    """Raise unless all are float tensors that can be multiplied: on one device, and none or all of them float64."""
    floats = [v for v in embeddings if isinstance(v, Tensor) and v.is_floating_point()]
    if len(floats) == len(embeddings) and len({(v.device, v.dtype == torch.float64) for v in floats}) > 1:
        kinds = ", ".join(f"{v.dtype} on {v.device}" for v in embeddings)
        raise AAGError(f"a contrastive loss takes embeddings of one dtype on one device, not {kinds}")
    for v in embeddings:
        check_floats("the embeddings of a contrastive loss", v)


def _check_temperature(temperature: float, name: str = "the temperature") -> None:
    low, high = TEMPERATURE_RANGE
    if not isinstance(temperature, int | float) or not low <= temperature <= high:  # also refuses NaN
        raise AAGError(f"{name} must be between {low} and {high:g} (usual: 0.05 to 1), not {describe(temperature)}")


def _check_flag(name: str, value: bool) -> None:
    if not isinstance(value, bool):
        raise AAGError(f"{name} must be True or False, not {describe(value)}")
