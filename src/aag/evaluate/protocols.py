"""The paper's evaluations of an encoder, kNN and linear; each accuracy comes with its protocol."""

from typing import Any

import torch

from aag.data import ImageSet
from aag.errors import AAGError
from aag.evaluate import distributed
from aag.evaluate.knn import knn_protocol
from aag.evaluate.linear import linear_probe, linear_protocol
from aag.nets import Encoder


def evaluate_encoder(
    encoder: Encoder,
    train_set: ImageSet,
    test_set: ImageSet | None,
    *,
    k: int = 200,
    temperature: float = 0.1,
    linear: bool = True,
    linear_epochs: int = 50,
    seed: int = 0,
    dtype: torch.dtype | None = None,
) -> list[dict[str, Any]]:
    """Return the accuracies in percent of kNN on the embedding and the features, and of a linear layer on the features.

    Features are extracted once, in eval mode and without augmentation, and kept on the encoder's device. Images
    without a label are left out. Several processes share the images and the kNN; each trains the linear layer itself.
    """
    if train_set.labels is None or (test_set is not None and test_set.labels is None):
        raise AAGError(
            f"{train_set.name} has no labels, and evaluation needs them; give labelled data with --data "
            "(class subfolders, or labels in the .npz)"
        )
    if test_set is None:
        raise AAGError(
            f"{train_set.name} has no test split, and evaluation needs one; train with --holdout 0.1, or add test/ "
            "next to train/"
        )
    assert test_set.labels is not None
    device = encoder.mean.device
    train_rows, test_rows = train_set.labelled(), test_set.labelled()
    train_labels, test_labels = train_set.labels[train_rows].to(device), test_set.labels[test_rows].to(device)
    train_features, train_embedding = (
        each[train_rows.to(each.device)] for each in distributed.encode(encoder, train_set.images, dtype)
    )
    test_features, test_embedding = (
        each[test_rows.to(each.device)] for each in distributed.encode(encoder, test_set.images, dtype)
    )
    shared = {
        "precision": "bf16" if dtype == torch.bfloat16 else "fp32",
        "data": train_set.name,
        "train": len(train_labels),
        "test": len(test_labels),
        "image_size": train_set.image_size,
    }

    results = []
    for layer, train, test in (
        ("embedding", train_embedding, test_embedding),
        ("features", train_features, test_features),
    ):
        accuracy = distributed.knn_accuracy(train, train_labels, test, test_labels, k=k, temperature=temperature)
        protocol = knn_protocol(k=min(k, len(train)), temperature=temperature, layer=layer)
        protocol["dimensions"] = train.shape[1]
        results.append({"name": f"kNN ({layer})", "accuracy": accuracy, "protocol": protocol | shared})
    if linear:
        probe = linear_probe(train_features, train_labels, test_features, test_labels, epochs=linear_epochs, seed=seed)
        protocol = {**linear_protocol(epochs=linear_epochs, seed=seed), "dimensions": train_features.shape[1]}
        extra = {
            "best_accuracy": probe.best_accuracy,
            "best_epoch": probe.best_epoch,
            "seconds": round(probe.seconds, 2),
        }
        row = {"name": "linear (features)", "accuracy": probe.accuracy, "protocol": protocol | shared}
        results.append(row | extra)
    return results
