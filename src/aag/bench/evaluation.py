"""Seconds of the paper's evaluations on features of CIFAR's size, and images/s of feature extraction."""

from typing import Any

import torch
from torch import Tensor

from aag import nets
from aag.bench.plan import Plan
from aag.bench.timing import measure, time_once, timed_row
from aag.evaluate import knn_accuracy, linear_probe

CLASSES = 10
KNN_WIDTH, LINEAR_WIDTH = 128, 512
BATCH = 1024  # of feature extraction, as in `aag evaluate`


def run(plan: Plan) -> dict[str, Any]:
    return {
        "threads": plan.threads,
        "protocol": (
            "with features: un-augmented images through the network as in training and aag evaluate (train images on "
            "the device, test images not), then the evaluation; first call: includes the device's set-up"
        ),
        "rows": [_knn(plan), _linear(plan), *(_extraction(plan, *size) for size in plan.widths), *_evaluations(plan)],
    }


def _knn(plan: Plan) -> dict[str, Any]:
    test, train = (make_clusters(count, KNN_WIDTH, plan.device) for count in (plan.knn_test, plan.knn_train))
    timing = measure(
        lambda: knn_accuracy(*train, *test, k=200), repeats=plan.repeats, warm_up=plan.warm_up, device=plan.device
    )
    size = f"{plan.knn_test:,} × {plan.knn_train:,} × {KNN_WIDTH}"
    return timed_row("weighted kNN, k = 200", size, timing, plan.knn_test, "test rows")


def _linear(plan: Plan) -> dict[str, Any]:
    epochs = plan.linear_epochs
    train, test = (make_clusters(count, LINEAR_WIDTH, plan.device) for count in (plan.linear_train, plan.linear_test))
    linear_probe(*train, *test, epochs=2)  # a shorter warm-up
    timing = measure(
        lambda: linear_probe(*train, *test, epochs=epochs), repeats=plan.linear_repeats, warm_up=0, device=plan.device
    )
    size = f"{plan.linear_train:,} + {plan.linear_test:,} × {LINEAR_WIDTH}"
    return timed_row(f"linear probe, {epochs} epochs", size, timing, epochs, "epochs", epochs=epochs)


def _extraction(plan: Plan, width: int, count: int) -> dict[str, Any]:
    images = plan.images(count).to(plan.device)
    encoder = _build_encoder(plan, width)
    timing = measure(
        lambda: encoder.encode(images, batch_size=BATCH, dtype=plan.autocast_dtype),
        repeats=plan.repeats,
        warm_up=plan.warm_up,
        device=plan.device,
    )
    size = f"{count:,} images, batch {min(BATCH, count)}"
    return timed_row(f"features of {_describe(plan, width)}", size, timing, count, "images")


def _evaluations(plan: Plan) -> list[dict[str, Any]]:
    """Time whole evaluations of an encoder, from images to accuracy."""
    width, *counts = plan.evaluated
    encoder = _build_encoder(plan, width)
    train, test = (plan.images(count) for count in counts)
    train = train.to(plan.device)
    labels = [torch.arange(count, device=plan.device) % CLASSES for count in counts]

    def knn() -> float:
        embeddings = [encoder.encode(images, dtype=plan.autocast_dtype)[1] for images in (train, test)]
        return knn_accuracy(embeddings[0], labels[0], embeddings[1], labels[1])

    def linear() -> float:
        features = [encoder.encode(images, dtype=plan.autocast_dtype)[0] for images in (train, test)]
        return linear_probe(features[0], labels[0], features[1], labels[1], epochs=plan.linear_epochs).accuracy

    rows = []
    for name, work, repeats in (
        ("weighted kNN", knn, plan.repeats),
        ("linear evaluation", linear, plan.linear_repeats),
    ):
        first = time_once(work, plan.device)
        timing = measure(work, repeats=repeats, warm_up=0, device=plan.device)
        name, size = f"{name} with features, {_describe(plan, width)}", f"{counts[0]:,} + {counts[1]:,} images"
        rows.append(timed_row(name, size, timing, sum(counts), "images", first_seconds=first))
    return rows


def _build_encoder(plan: Plan, width: int) -> nets.Encoder:
    encoder = nets.build(nets.EncoderSpec("resnet18", width=width), seed=0)
    return encoder.to(plan.device).to(memory_format=torch.channels_last)


def _describe(plan: Plan, width: int) -> str:
    return f"ResNet-18, width {width}, {plan.precision}"


def make_clusters(count: int, width: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return features [count, width] around ten centres, the same for every count, and the centres' indices."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(CLASSES, width, generator=generator)
    labels = torch.arange(count) % CLASSES
    features = centres[labels] + 2 * torch.randn(count, width, generator=generator.manual_seed(count))
    return features.to(device), labels.to(device)
