"""Weighted k-nearest-neighbour classification, as since Wu et al. (2018): k = 200, cosine, votes exp(cos / 0.1)."""

from collections.abc import Iterator
from math import sqrt
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from aag.errors import AAGError
from aag.settings import Range, check_value
from aag.vectors import check_floats, unit_rows

MIN_TEMPERATURE = 1e-6  # about the resolution of cosines in float32
# Size of a chunk of similarities; on a CPU it should still be in the cache when it is read again.
CHUNK_BYTES, CPU_CHUNK_BYTES = 256 << 20, 24 << 20


INTEGER_DTYPES = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


class KnnPrediction(NamedTuple):
    labels: Tensor  # [M] the winning label
    scores: Tensor  # [M, C] share of the votes per class; rows sum to 1
    classes: Tensor  # [C] the label of each column


def knn_protocol(*, k: int = 200, temperature: float = 0.1, layer: str = "embedding") -> dict[str, Any]:
    """Return how a kNN accuracy was measured, for JSON. `k` is the number of neighbours that voted."""
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
    """Return the accuracy of `knn_predict` on the test set, in percent (0–100)."""
    test_features, test_labels = check_labelled("test", test_features, test_labels)
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
    leave_one_out: bool = False,
) -> KnnPrediction:
    """Classify each test row by the votes exp(cos / temperature) of its k nearest training rows.

    Features are L2-normalised here. If k exceeds the training set, all rows vote. Runs on the training features'
    device, in float32. With `classes`, the scores have columns 0 … classes − 1; by default, one per label that occurs.
    With `leave_one_out`, the test rows are the training rows, and no row votes for itself.
    """
    train_features, train_labels = check_labelled("training", train_features, train_labels)
    test_features = check_features("test", test_features)
    check_same_width(train_features, test_features)
    k = check_value("k", k, Annotated[int, Range(at_least=1)])
    temperature = check_value(
        "temperature", temperature, Annotated[float, Range(at_least=MIN_TEMPERATURE, at_most=1e6)]
    )
    classes = check_value("classes", classes, Annotated[int, Range(at_least=1, below=2**31)] | None)
    check_value("leave_one_out", leave_one_out, bool)
    device = train_features.device
    columns, column_of = _columns(train_labels, classes)

    train = unit_rows(train_features)
    test = unit_rows(test_features.to(device))
    scores = torch.empty(len(test), len(columns), device=device)
    if leave_one_out and (len(train) < 2 or len(test) != len(train)):
        raise AAGError(
            f"leave-one-out needs the training rows, at least two, as test rows; got {len(train)} and {len(test)} rows"
        )
    for rows, cosine, index in find_neighbours(train, test, min(k + leave_one_out, len(train))):
        if leave_one_out:
            is_self = index == torch.arange(rows.start, rows.stop, device=device)[:, None]
            cosine, position = cosine.masked_fill(is_self, -2.0).topk(
                cosine.shape[1] - 1, dim=1
            )  # -2: below any cosine
            index = index.gather(1, position)
        # Relative to the nearest neighbour, no exponential overflows and the largest is 1.
        votes = ((cosine - cosine.amax(dim=1, keepdim=True)) / temperature).exp()  # [m, k]
        scores[rows].zero_().scatter_add_(1, column_of[index], votes)
    scores /= scores.sum(dim=1, keepdim=True)
    return KnnPrediction(columns[scores.argmax(dim=1)], scores, columns)


def find_neighbours(train: Tensor, test: Tensor, k: int) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yield chunks (rows, cosine [m, k], index [m, k]) of the k largest entries, unsorted, per row of test · trainᵀ.

    Exact, though it selects from a small part of each row. Split a row's N entries into groups of g; the k groups with
    the largest maxima contain the k largest entries. If an entry's group is not among them, then k other groups each
    have an entry at least as large. The two selections see N/g and k·g entries, fewest at g = √(N/k): 6,350 of 50,000.
    """
    n, device = len(train), train.device
    group = max(1, round(sqrt(n / k)))
    groups = -(-n // group)  # at least k, since n is
    width = groups * group
    # Group j is {j, j + groups, j + 2·groups, …}: its maximum is elementwise over contiguous rows, which vectorises.
    # Groups of adjacent entries would need reductions over very short rows.
    offsets = torch.arange(0, width, groups, device=device).view(1, group, 1)
    limit = CPU_CHUNK_BYTES if device.type == "cpu" else CHUNK_BYTES
    chunk = max(1, min(len(test), limit // (4 * width)))
    # Columns past n pad the last group, with less than any cosine. All chunks share one buffer: to allocate it for each
    # (and on a CPU to touch it first) costs as much as a pass over it.
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
            cosine, position = similarity.gather(1, candidates).topk(k, dim=1, sorted=False)
            index = candidates.gather(1, position)
        yield rows, cosine, index


def _columns(labels: Tensor, classes: int | None) -> tuple[Tensor, Tensor]:
    """Return the label of each column of the scores [C], and the column of each training row [N]."""
    if classes is None:
        return torch.unique(labels, return_inverse=True)
    low, high = labels.min().item(), labels.max().item()
    if low < 0 or high >= classes:
        raise AAGError(f"labels must be 0 to {classes - 1} for classes={classes}; they range from {low} to {high}")
    return torch.arange(classes, device=labels.device), labels


def check_labelled(name: str, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return float32 features [N, D] and int64 labels [N] on one device, N ≥ 1, or raise."""
    features = check_features(name, features)
    is_integer = isinstance(labels, Tensor) and labels.dtype in INTEGER_DTYPES
    if not is_integer or labels.layout != torch.strided or labels.is_meta:
        kind = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise AAGError(
            f"the {name} labels must be a tensor of whole numbers, not {kind}; use torch.as_tensor(...).long()"
        )
    if labels.shape != features.shape[:1]:
        raise AAGError(f"the {name} set has {len(features)} features but labels of shape {list(labels.shape)}")
    return features, labels.to(features.device, torch.int64)


def check_features(name: str, features: Tensor) -> Tensor:
    """Return features as float32 [N, D] with N ≥ 1 and finite numbers, or raise."""
    check_floats(f"the {name} features", features, "[N, D]")
    if features.ndim != 2:
        raise AAGError(f"the {name} features must be a float tensor [N, D], got shape {list(features.shape)}")
    if features.numel() == 0:
        raise AAGError(f"the {name} set is empty: features of shape {list(features.shape)}")
    features = features.detach().float()
    if not torch.stack(torch.aminmax(features)).isfinite().all():  # one pass; NaN propagates
        raise AAGError(f"the {name} features hold NaN or infinity, in float32")
    return features


def check_same_width(train_features: Tensor, test_features: Tensor) -> None:
    train, test = train_features.shape[1], test_features.shape[1]
    if train != test:
        raise AAGError(
            f"training features have {train} dimensions, test features {test}; take both from the same layer"
        )
