"""Weighted k-nearest-neighbour classification, the lineage's protocol: k = 200, cosine, votes exp(cos / 0.1)."""

from collections.abc import Iterator
from math import sqrt
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from aag.errors import AAGError

# Similarities held at once: on a CPU few enough to be still in a cache when they are read back.
BYTES, CPU_BYTES = 256 << 20, 24 << 20


class KnnPrediction(NamedTuple):
    labels: Tensor  # [M] the winning label
    scores: Tensor  # [M, C] each class's share of the votes; rows sum to 1
    classes: Tensor  # [C] the label that each column stands for


def knn_protocol(*, k: int = 200, temperature: float = 0.1, layer: str = "embedding") -> dict[str, Any]:
    """What a kNN number must say about itself, for JSON."""
    return {
        "evaluation": "knn",
        "layer": layer,
        "k": k,
        "temperature": temperature,
        "metric": "cosine",
        "vote": "sum of exp(cosine / temperature)",
        "augmentation": "none",
    }


def knn_accuracy(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    test_labels: Tensor,
    *,
    k: int = 200,
    temperature: float = 0.1,
) -> float:
    """Accuracy of `knn_predict` on the test set, in percent (0–100)."""
    test_features, test_labels = labelled("test", test_features, test_labels)
    predicted = knn_predict(train_features, train_labels, test_features, k=k, temperature=temperature).labels
    return 100 * int((predicted == test_labels.to(predicted.device)).sum()) / len(test_labels)


@torch.no_grad()
def knn_predict(
    train_features: Tensor,  # [N, D]
    train_labels: Tensor,  # [N]
    test_features: Tensor,  # [M, D]
    *,
    k: int = 200,
    temperature: float = 0.1,
    classes: int | None = None,
) -> KnnPrediction:
    """Each test row's class by the votes exp(cos / temperature) of its k nearest training rows.

    Features need no normalising beforehand. Where k exceeds the training set, all of it votes. The work is done on the
    training features' device, in float32. `classes` fixes the columns of the scores to the labels 0 … classes − 1;
    without it they are the labels that occur.
    """
    train_features, train_labels = labelled("training", train_features, train_labels)
    test_features = matrix("test", test_features)
    same_width(train_features, test_features)
    if k < 1:
        raise AAGError(f"k must be at least 1, got {k}")
    if not temperature > 0:
        raise AAGError(f"temperature must be above 0, got {temperature}")
    device = train_features.device
    columns, column_of = _columns(train_labels, classes)

    neighbours = min(k, len(train_features))
    train = F.normalize(train_features, dim=1)
    test = F.normalize(test_features.to(device), dim=1)
    scores = torch.empty(len(test), len(columns), device=device)
    for rows, cosine, index in nearest(train, test, neighbours):
        # Relative to the nearest neighbour no exponential overflows, and the largest never underflows.
        votes = ((cosine - cosine.amax(dim=1, keepdim=True)) / temperature).exp()  # [m, k]
        scores[rows].zero_().scatter_add_(1, column_of[index], votes)
    scores /= scores.sum(dim=1, keepdim=True)
    return KnnPrediction(columns[scores.argmax(dim=1)], scores, columns)


def nearest(train: Tensor, test: Tensor, k: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Chunks (rows, cosine [m, k], index [m, k]) of the k largest entries, unsorted, in each row of test · trainᵀ.

    Exact, with a selection over a small part of each row. Split a row's N entries into groups of g and take the k
    groups with the largest maxima: they hold the k largest entries. For if an entry's group is not among them, k other
    groups each hold an entry at least as large, and it may be left out. (Between equal entries any choice is right; the
    values come out the same.) The selections see N/g and k·g entries, least in sum at g = √(N/k): 6,350 of 50,000.
    """
    n, device = len(train), train.device
    group = max(1, round(sqrt(n / k)))
    groups = -(-n // group)  # at least k, since n is
    width = groups * group
    # Group j is {j, j + groups, j + 2·groups, …}: its maximum is an elementwise one over contiguous runs, which
    # vectorises; with neighbours as a group it would be a reduction over very short rows.
    offsets = torch.arange(0, width, groups, device=device).view(1, group, 1)
    limit = CPU_BYTES if device.type == "cpu" else BYTES
    chunk = max(1, min(len(test), limit // (4 * width)))
    # Columns past n pad the last group; they stay below every cosine. One buffer for all chunks: allocating (and on
    # a CPU first touching) this much memory anew each time costs as much as a pass over it.
    buffer = torch.full((chunk, width), -2.0, device=device)
    for start in range(0, len(test), chunk):
        rows = slice(start, min(start + chunk, len(test)))
        similarity = buffer[: rows.stop - rows.start]  # [m, width]
        torch.mm(test[rows], train.T, out=similarity[:, :n])
        if group == 1:
            cosine, index = similarity.topk(k, dim=1, sorted=False)
        else:
            maxima = similarity.view(-1, group, groups).amax(dim=1)  # [m, groups]
            best = maxima.topk(k, dim=1, sorted=False).indices
            candidates = (best.unsqueeze(1) + offsets).flatten(1)  # [m, group · k] columns of similarity
            cosine, place = similarity.gather(1, candidates).topk(k, dim=1, sorted=False)
            index = candidates.gather(1, place)
        yield rows, cosine, index


def _columns(labels: Tensor, classes: int | None) -> tuple[Tensor, Tensor]:
    """The label of each column of the scores [C], and the column of each training row [N]."""
    if classes is None:
        return torch.unique(labels, return_inverse=True)
    low, high = labels.min().item(), labels.max().item()
    if low < 0 or high >= classes:
        raise AAGError(f"labels must lie in 0 … {classes - 1} for classes={classes}; they span {low} … {high}")
    return torch.arange(classes, device=labels.device), labels


def labelled(name: str, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """A checked set: float32 features [N, D] and int64 labels [N] on one device; N is at least 1."""
    features = matrix(name, features)
    if not isinstance(labels, Tensor) or labels.dtype.is_floating_point or labels.dtype.is_complex:
        kind = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise AAGError(f"the {name} labels must be a tensor of whole numbers, got {kind}")
    if labels.shape != features.shape[:1]:
        raise AAGError(f"the {name} set has {len(features)} features but labels of shape {list(labels.shape)}")
    return features, labels.to(features.device, torch.int64)


def matrix(name: str, features: Tensor) -> Tensor:
    """Checked features: float32, [N, D], N at least 1, every number finite."""
    if not isinstance(features, Tensor) or not features.is_floating_point():
        kind = features.dtype if isinstance(features, Tensor) else type(features).__name__
        raise AAGError(f"the {name} features must be a float tensor [N, D], got {kind}")
    if features.ndim != 2:
        raise AAGError(f"the {name} features must be a float tensor [N, D], got shape {list(features.shape)}")
    if features.numel() == 0:
        raise AAGError(f"the {name} set is empty: features of shape {list(features.shape)}")
    features = features.detach().float()
    if not torch.stack(torch.aminmax(features)).isfinite().all():  # one pass, and NaN passes through
        raise AAGError(f"the {name} features hold NaN or infinity")
    return features


def same_width(train_features: Tensor, test_features: Tensor) -> None:
    train, test = train_features.shape[1], test_features.shape[1]
    if train != test:
        raise AAGError(f"training features have {train} dimensions, test features {test}")
