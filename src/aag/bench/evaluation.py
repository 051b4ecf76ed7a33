"""Seconds of the paper's evaluations on features of CIFAR's size, and images a second of feature extraction."""

from typing import Any

import torch
from torch import Tensor

from aag import nets
from aag.bench.plan import Plan
from aag.bench.timing import measure, once
from aag.evaluate import knn_accuracy, linear_probe

CLASSES = 10
KNN_WIDTH, LINEAR_WIDTH = 128, 512
BATCH = 1024  # of feature extraction, as `aag evaluate` has it


def run(plan: Plan, dtype: torch.dtype) -> dict[str, Any]:
    """`dtype` is the network's, in feature extraction."""
    rows = [_knn(plan), _linear(plan), *(_extraction(plan, *size, dtype) for size in plan.widths), *_whole(plan, dtype)]
    return {
        "threads": plan.threads,
        "protocol": (
            "with features: un-augmented images through the network as training and aag evaluate do it, the training "
            "images on the device, the test images not, then the evaluation; first: the first call, with what the "
            "device sets up"
        ),
        "rows": rows,
    }


def _knn(plan: Plan) -> dict[str, Any]:
    test, train = clusters(plan.knn_test, KNN_WIDTH, plan.device), clusters(plan.knn_train, KNN_WIDTH, plan.device)
    timing = measure(
        lambda: knn_accuracy(*train, *test, k=200), repeats=plan.repeats, warm_up=plan.warm_up, device=plan.device
    )
    return {
        "name": "weighted kNN, k = 200",
        "size": f"{plan.knn_test:,} × {plan.knn_train:,} × {KNN_WIDTH}",
        "median_seconds": timing.median,
        **timing.rate(plan.knn_test),
        "of": "test rows",
    }


def _linear(plan: Plan) -> dict[str, Any]:
    train = clusters(plan.linear_train, LINEAR_WIDTH, plan.device)
    test = clusters(plan.linear_test, LINEAR_WIDTH, plan.device)
    epochs = plan.linear_epochs
    linear_probe(*train, *test, epochs=2)  # a warm-up that is shorter
    timing = measure(
        lambda: linear_probe(*train, *test, epochs=epochs), repeats=plan.linear_repeats, warm_up=0, device=plan.device
    )
    return {
        "name": f"linear probe, {epochs} epochs",
        "size": f"{plan.linear_train:,} + {plan.linear_test:,} × {LINEAR_WIDTH}",
        "epochs": epochs,
        "median_seconds": timing.median,
        **timing.rate(epochs),
        "of": "epochs",
    }


def _extraction(plan: Plan, width: int, count: int, dtype: torch.dtype) -> dict[str, Any]:
    images = plan.photographs(count).to(plan.device)
    encoder, reduced = _encoder(plan, width, dtype)
    timing = measure(
        lambda: encoder.encode(images, batch_size=BATCH, dtype=reduced),
        repeats=plan.repeats,
        warm_up=plan.warm_up,
        device=plan.device,
    )
    return {
        "name": f"features of {_network(width, reduced)}",
        "size": f"{count:,} images, batch {min(BATCH, count)}",
        "median_seconds": timing.median,
        **timing.rate(count),
        "of": "images",
    }


def _whole(plan: Plan, dtype: torch.dtype) -> list[dict[str, Any]]:
    """Evaluations of an encoder, from images to accuracy."""
    width, *counts = plan.evaluated
    encoder, reduced = _encoder(plan, width, dtype)
    train, test = (plan.photographs(count) for count in counts)
    train = train.to(plan.device)
    labels = [torch.arange(count, device=plan.device) % CLASSES for count in counts]

    def knn() -> float:
        embeddings = [encoder.encode(images, dtype=reduced)[1] for images in (train, test)]
        return knn_accuracy(embeddings[0], labels[0], embeddings[1], labels[1])

    def linear() -> float:
        features = [encoder.encode(images, dtype=reduced)[0] for images in (train, test)]
        return linear_probe(features[0], labels[0], features[1], labels[1], epochs=plan.linear_epochs).accuracy

    rows = []
    evaluations = {"weighted kNN": (knn, plan.repeats), "linear evaluation": (linear, plan.linear_repeats)}
    for name, (work, repeats) in evaluations.items():
        first = once(work, plan.device)
        timing = measure(work, repeats=repeats, warm_up=0, device=plan.device)
        rows.append({
            "name": f"{name} with features, {_network(width, reduced)}",
            "size": f"{counts[0]:,} + {counts[1]:,} images",
            "first_seconds": first,
            "median_seconds": timing.median,
            **timing.rate(sum(counts)),
            "of": "images",
        })  # fmt: skip
    return rows


def _encoder(plan: Plan, width: int, dtype: torch.dtype) -> tuple[nets.Encoder, torch.dtype | None]:
    encoder = nets.build(nets.EncoderSpec("resnet18", width=width), seed=0)
    encoder = encoder.to(plan.device).to(memory_format=torch.channels_last)
    return encoder, dtype if dtype != torch.float32 else None


def _network(width: int, reduced: torch.dtype | None) -> str:
    return f"ResNet-18, width {width}, {'bf16' if reduced == torch.bfloat16 else 'fp32'}"


def clusters(count: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Features around ten centres, the same for training and test rows, and the centres' numbers."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(CLASSES, width, generator=generator)
    labels = torch.arange(count) % CLASSES
    features = centres[labels] + 2 * torch.randn(count, width, generator=generator.manual_seed(count))
    return features.to(device), labels.to(device)
