"""Evaluation by several processes, each with its share of the images. All processes must call these functions."""

import torch
from torch import Tensor

from aag.distributed import gather_rows, share, sum_in_place
from aag.evaluate.knn import check_labelled, knn_predict
from aag.nets import Encoder


def encode(encoder: Encoder, images: Tensor, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
    """Return features [N, F] and unit embeddings [N, d] of all images, as `Encoder.encode` does."""
    outputs = encoder.encode(images[share(len(images))], dtype=dtype)
    features, embeddings = (gather_rows(each, len(images)) for each in outputs)
    return features, embeddings


def embed(encoder: Encoder, images: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return unit embeddings [N, d] of all images, as `Encoder.embed` does; features are not gathered."""
    return gather_rows(encoder.encode(images[share(len(images))], dtype=dtype)[1], len(images))


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
    own, correct = share(len(test_labels)), 0
    if own.start < own.stop:  # there may be more processes than images
        found = knn_predict(train_features, train_labels, test_features[own], k=k, temperature=temperature).labels
        correct = int((found == test_labels[own].to(found.device)).sum())
    return 100 * int(sum_in_place(torch.tensor(correct, device=train_features.device))) / len(test_labels)
