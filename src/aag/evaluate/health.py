"""Label-free health of an encoder: effective rank, alignment, uniformity and agreement of two views.

All are functions of L2-normalised embeddings. They never influence training.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from aag.augment import Augmentation
from aag.errors import AAGError
from aag.evaluate.knn import check_features, check_same_width
from aag.rng import Stream, keys, permutation
from aag.settings import Range, check_value
from aag.text import pluralize

MAX_IMAGES, MIN_IMAGES = 2048, 256  # of the subset
CHUNK_PIXELS = 2**21  # per view that is made at once
SEED = 0  # the same images and views in every run on the same images


@dataclass(frozen=True)
class Health:
    """Label-free measures of an encoder, from two views of the same images."""

    rank: float  # RankMe: 1 (all embeddings are parallel) to `dimensions`
    dimensions: int
    alignment: float  # mean squared distance of two views of an image: 0 (equal) to 4
    uniformity: float  # 0 (all embeddings equal) down to about -4 (spread over the sphere)
    images: int  # measured
    agreement: float  # share of images whose two views find each other among all images, 0 to 1


@torch.no_grad()
def effective_rank(embeddings: Tensor) -> float:
    """Return RankMe of embeddings [N, D]: exp of the entropy of the normalised singular values.

    Garrido et al., "RankMe: Assessing the Downstream Performance of Pretrained Self-Supervised Representations by
    Their Rank" (2023). It ranges from 1 to min(N, D). Embeddings of zeros have rank 1.
    """
    x = check_features("health", embeddings).double().cpu()  # a GPU gains nothing on so few numbers
    gram = x.T @ x if x.shape[0] > x.shape[1] else x @ x.T
    singular = torch.linalg.eigvalsh(gram).clamp(min=0).sqrt()
    total = singular.sum()
    if total == 0:
        return 1.0
    return float(torch.special.entr(singular / total).sum().exp())


@torch.no_grad()
def alignment(first: Tensor, second: Tensor) -> float:
    """Return the mean squared distance of positive pairs of unit embeddings, both [N, D] (Wang & Isola 2020)."""
    first, second = _check_pair(first, second)
    return float((first - second).square().sum(dim=1).mean())


@torch.no_grad()
def uniformity(embeddings: Tensor) -> float:
    """Return log mean exp(-2‖x − y‖²) over all pairs of different rows of unit embeddings [N, D], N ≥ 2.

    Wang & Isola, "Understanding Contrastive Representation Learning through Alignment and Uniformity on the
    Hypersphere" (2020), with t = 2.
    """
    x = check_features("health", embeddings)
    n = len(x)
    if n < 2:
        raise AAGError(f"uniformity needs at least two embeddings, not {n}")
    kernel = (4 * (x @ x.T - 1)).exp()  # ‖x − y‖² = 2 − 2 cos
    return float(((kernel.sum(dtype=torch.float64) - kernel.diagonal().sum(dtype=torch.float64)) / (n * (n - 1))).log())


@torch.no_grad()
def view_agreement(first: Tensor, second: Tensor, k: int = 1) -> float:
    """Return the share of images whose second view is among the k nearest of all second views to their first view.

    Row i of `first` and of `second`, both [N, D] and unit, are views of image i. An image counts if fewer than k other
    images j have cos(first i, second j) ≥ cos(first i, second i). Equal embeddings therefore count as 0; chance is k/N.
    """
    first, second = _check_pair(first, second)
    k = check_value("k", k, Annotated[int, Range(at_least=1, below=2**31)])
    cosine = first @ second.T  # [N, N]
    at_least = cosine >= cosine.diagonal()[:, None]  # each row includes the image itself
    return float((at_least.sum(dim=1) <= k).double().mean())


def subset_indices(count: int) -> Tensor:
    """Return sorted indices int64 of the images to measure: all up to 256, else a quarter, at most 2,048.

    The choice is a hash of the index: the same in every run and on every device. A multiple of 64 keeps the shapes
    that kernels are already compiled for.
    """
    size = count if count <= MIN_IMAGES else min(max(count // 4, MIN_IMAGES), MAX_IMAGES) // 64 * 64
    return permutation(SEED, 0, count, stream=Stream.HEALTH)[:size].sort().values


@torch.no_grad()
def health(
    encode: Callable[[Tensor], Tensor],
    images: Tensor,
    augmentation: Augmentation,
    device: torch.device | str | None = None,
) -> Health:
    """Measure an encoder on two fixed views of a fixed subset of uint8 images [N, 3, H, W].

    `encode` returns unit embeddings [n, D] of views [n, 3, H, W]. Views are made on `device` (default: the images').
    """
    index = subset_indices(len(images))
    target = images.device if device is None else torch.device(device)
    size = max(16, CHUNK_PIXELS // (images.shape[2] * images.shape[3]))
    parts: tuple[list[Tensor], list[Tensor]] = ([], [])
    for chosen in index.split(size):
        batch, chosen = images[chosen.to(images.device)].to(target), chosen.to(target)
        for view, embeddings in enumerate(parts):
            # The index of the view replaces the epoch in the key.
            embeddings.append(encode(augmentation.views(batch, keys(SEED, view, chosen, Stream.HEALTH))))
    first, second = (torch.cat(part) for part in parts)
    return Health(
        rank=round(effective_rank(first), 3),
        dimensions=first.shape[1],
        images=len(first),
        alignment=round(alignment(first, second), 5),
        uniformity=round(uniformity(first), 5),
        agreement=round(view_agreement(first, second), 5),
    )


def _check_pair(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    first, second = check_features("first view's", first), check_features("second view's", second)
    check_same_width(first, second)
    if len(first) != len(second):
        raise AAGError(f"two views of the same images are needed; got {len(first)} and {len(second)} embeddings")
    return first, second


# --- judging a run ----------------------------------------------------------------------------------------------------

# Runs on real photographs that learned had a rank of 7 or more after their first epoch. Runs with a learning rate 40
# times too high had 1.0 to 2.4.
COLLAPSED_RANK = 3.0
COLLAPSED_UNIFORMITY = -0.02  # a mean squared distance of about 0.01: cosines of 0.995
# Share of a run's whole gain that its second quarter brings. On CIFAR-10, the paper's runs of 200 epochs (three seeds,
# kNN 88.8 to 89.0) have 0.05 to 0.10, the run of 1000 epochs (91.6) has 0.05. Their last quarters all have 0.03.
FLAT_SHARE = 0.05
MIN_EVALUATIONS = 6  # after training has begun, to see a trend
MIN_STEPS = 100  # new networks map all images close together, and batch norm takes dozens of steps to settle


def is_collapsed(row: Mapping[str, Any]) -> bool:
    """Return whether a logged row shows a collapse: nearly equal embeddings, or few dimensions in use.

    The first 100 steps are too early to tell, so the answer is False.
    """
    if row["step"] < MIN_STEPS:
        return False
    threshold = min(COLLAPSED_RANK, 1 + (row["dimensions"] - 1) / 10)  # small embeddings need less
    return row["rank"] < threshold or row["uniformity"] > COLLAPSED_UNIFORMITY


def verdict(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return one sentence on a run's health and what to do, from the rows of its metrics; empty without health rows.

    Whether more epochs will help is judged by the kNN where it was logged, else by the agreement of two views.
    """
    rows = list(rows)
    found = [row for row in rows if row["kind"] == "health"]
    trained = [row for row in found if row["epoch"] > 0]
    if not trained:
        return ""
    last = trained[-1]
    if last["step"] < MIN_STEPS:
        steps = pluralize(last["step"], "step")
        return f"Too early to judge, after {steps}: train longer, with more --epochs or --minutes."
    state = f"rank {last['rank']:.0f} of {last['dimensions']}"
    if is_collapsed(last):
        return f"Collapsed: images get nearly the same embedding ({state}); start again with a tenth of --lr."
    agree = f"{100 * last['agreement']:.0f} %"
    noise = 2 * (max(last["agreement"] * (1 - last["agreement"]), 0.01) / max(1, last["images"])) ** 0.5
    if found[0]["epoch"] == 0 and last["agreement"] - found[0]["agreement"] < noise:
        return (
            f"Little learned: two views of an image find each other in {agree} of cases, hardly more often than before "
            f"training ({100 * found[0]['agreement']:.0f} %); train longer, or try another --lr."
        )
    state = f"Healthy: {state}, two views of an image find each other in {agree} of cases"
    kind, name = ("knn", "knn") if any(row["kind"] == "knn" for row in rows) else ("health", "agreement")
    curve = {row["epoch"]: float(row[name]) for row in rows if row["kind"] == kind}
    rates = [row["lr"] for row in rows if row["kind"] == "epoch" and "lr" in row]
    share = _gain_share(curve, anneals=bool(rates) and rates[-1] < 0.5 * max(rates))
    if share is None and last["epoch"] <= MIN_EVALUATIONS:
        return f"{state}; too few epochs to say whether more would help: try it, with --epochs or --minutes."
    if share is None:
        return f"{state}; too few evaluations to say whether more epochs would help (--knn-every 1 adds some)."
    if share < FLAT_SHARE:
        return f"{state}; it has nearly stopped improving: more epochs will add little."
    # Two views also agree more while a small set is memorised, so without labels it is less certain.
    likely = "will probably" if kind == "knn" else "may"
    return f"{state}; it was still improving: more epochs {likely} help (--epochs {2 * last['epoch']})."


def _gain_share(curve: Mapping[int, float], anneals: bool) -> float | None:
    """Return the share of a curve's gain in its second quarter, or without annealing in its last quarter.

    At the end of a schedule the falling learning rate lifts every curve, so the end says nothing about more epochs.
    """
    last = max(curve)
    if len(curve) <= MIN_EVALUATIONS or 0 not in curve or curve[last] <= curve[0]:
        return None

    def level(epoch: float) -> float:  # mean of the three nearest evaluations, which reduces noise
        nearest = sorted((each for each in curve if each), key=lambda each: abs(each - epoch))[:3]
        return sum(curve[each] for each in nearest) / len(nearest)

    start, end = (last / 4, last / 2) if anneals else (last * 3 / 4, last)
    return (level(end) - level(start)) / (curve[last] - curve[0])
