"""Evaluation by several processes, each with its share of the images. All processes must call these functions."""

from typing import Any

import torch
from torch import Tensor

from aag.distributed import gather_rows, process_slice, sum_in_place
from aag.evaluate import knn
from aag.nets import Encoder


def encode(encoder: Encoder, images: Tensor, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
    """Return features [N, F] and unit embeddings [N, d] of all images, as `Encoder.encode` does."""
    outputs = encoder.encode(images[process_slice(len(images))], dtype=dtype)
    features, embeddings = (gather_rows(each, len(images)) for each in outputs)
    return features, embeddings


def embed(encoder: Encoder, images: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return unit embeddings [N, d] of all images, as `Encoder.embed` does; features are not gathered."""
    return gather_rows(encoder.encode(images[process_slice(len(images))], dtype=dtype)[1], len(images))


def knn_accuracy(
    train_features: Tensor, train_labels: Tensor, test_features: Tensor, test_labels: Tensor, **options: Any
) -> float:
    """Return `aag.evaluate.knn_accuracy` of all test rows, of which each process classifies its share."""
    own, correct = process_slice(len(test_labels)), 0
    if count := own.stop - own.start:  # there may be more processes than images
        accuracy = knn.knn_accuracy(train_features, train_labels, test_features[own], test_labels[own], **options)
        correct = round(accuracy * count / 100)
    return 100 * int(sum_in_place(torch.tensor(correct, device=train_features.device))) / len(test_labels)
