"""Callbacks: they receive every event of training and may log numbers."""

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

from aag.data import ImageSet
from aag.errors import NotFiniteError
from aag.evaluate.distributed import knn_accuracy
from aag.evaluate.health import health
from aag.files import write_bytes
from aag.training.batches import sized_augmentations

if TYPE_CHECKING:
    from aag.training.trainer import Trainer


class Callback:
    """Base class of callbacks. Every method does nothing by default."""

    def on_start(self, trainer: "Trainer") -> None:
        """Called after a checkpoint was loaded, if there is one, and before anything is compiled."""

    def on_ready(self, trainer: "Trainer", seconds: float) -> None:
        """Called after compiling and capturing, which took `seconds`."""

    def on_step(self, trainer: "Trainer", loss: float) -> None:
        """Called about twice a second on a GPU, after every step on a CPU."""

    def on_epoch(self, trainer: "Trainer") -> None:
        """Called before the first step (`trainer.epoch` is 0) and after every epoch. It is not counted as training."""

    def on_log(self, trainer: "Trainer", row: dict[str, Any]) -> None:
        """Called for every row that training or a callback logs."""

    def on_end(self, trainer: "Trainer") -> None:
        """Called after the last step, a requested stop, or an error."""


class ListSkipped(Callback):
    """Write the files that could not be read, one per line, to the run's skipped.txt."""

    def __init__(self, *sets: ImageSet | None) -> None:
        self.sets, self.written = sets, 0

    def on_start(self, trainer: "Trainer") -> None:
        found = [image_set for image_set in self.sets if image_set]
        lines = [line for each in found for line in (*each.skipped, *(each.decoding.skipped if each.decoding else ()))]
        if trainer.run and len(lines) > self.written:
            write_bytes(trainer.run.skipped_file, "".join(f"{line}\n" for line in lines).encode())
            self.written = len(lines)

    def on_epoch(self, trainer: "Trainer") -> None:
        """Write the file again: with --start-early, some files are only known now."""
        self.on_start(trainer)


class KNN(Callback):
    """Log the weighted kNN accuracy of labelled test images among labelled training images, not augmented."""

    def __init__(self, train: ImageSet, test: ImageSet | None, every: int = 5) -> None:
        """`every`: epochs between evaluations; 0: only before and after training. Sets without labels are left out."""
        self.train, self.test, self.every = train, test, every

    def on_epoch(self, trainer: "Trainer") -> None:
        train_labels, test_labels = self.train.labels, self.test.labels if self.test else None
        if self.test is None or train_labels is None or test_labels is None:
            return
        if not _is_due(trainer, self.every):
            return
        started = time.monotonic()
        own = self.train is trainer.image_set  # then they are on the device already
        train = trainer.embed(trainer.images if own else self.train.images)
        test = trainer.embed(self.test.images)
        train_rows, test_rows = self.train.labelled(), self.test.labelled()
        train = check_finite(train)
        accuracy = knn_accuracy(
            train[train_rows.to(train.device)],
            train_labels[train_rows],
            test[test_rows.to(test.device)],
            test_labels[test_rows],
        )
        seconds = round(time.monotonic() - started, 3)
        trainer.log({"kind": "knn", "knn": accuracy, "evaluation_seconds": seconds})


class Health(Callback):
    """Log label-free measures of two views of a fixed subset of the training images."""

    def __init__(self, every: int = 5) -> None:
        """`every`: epochs between evaluations; 0: only before and after training."""
        self.every = every

    def on_epoch(self, trainer: "Trainer") -> None:
        if len(trainer.image_set) < 3 or not _is_due(trainer, self.every):
            return
        started = time.monotonic()

        def encode(views: torch.Tensor) -> torch.Tensor:
            return check_finite(trainer.embed(views))

        decoding = trainer.image_set.decoding
        images = trainer.images if decoding is None else trainer.images[: decoding.block]
        first, *_ = sized_augmentations(trainer.method, images, trainer.encoder.spec.image_size)
        found = health(encode, images, first, trainer.runtime.device)
        seconds = round(time.monotonic() - started, 3)
        trainer.log({"kind": "health", **asdict(found), "evaluation_seconds": seconds})


def check_finite(embeddings: torch.Tensor) -> torch.Tensor:
    if not torch.isfinite(embeddings).all():
        raise NotFiniteError("the embeddings are no longer finite; try a lower --lr, with another --out")
    return embeddings


def _is_due(trainer: "Trainer", every: int) -> bool:
    return trainer.epoch in (0, trainer.settings.epochs) or (every > 0 and trainer.epoch % every == 0)
