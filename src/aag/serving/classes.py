"""Classify the images of a report by kNN: accuracy by class, confusion and wrong examples."""

from dataclasses import dataclass

import torch
from torch import Tensor

from aag.evaluate.knn import knn_predict
from aag.serving.gallery import Gallery

K, TEMPERATURE = 200, 0.1  # as aag evaluate


@dataclass(frozen=True)
class Classification:
    """The kNN's predictions for M labelled images."""

    rows: Tensor  # int64 [M] of the gallery
    actual: Tensor  # int64 [M]
    predicted: Tensor  # int64 [M]
    share: Tensor  # [M] of the votes for the prediction
    classes: tuple[str, ...]
    protocol: str  # one sentence

    @property
    def accuracy(self) -> float:
        """Return the accuracy in percent."""
        return 100 * float((self.predicted == self.actual).double().mean())

    def confusion(self) -> Tensor:
        """Return counts int64 [C, C]: actual class by predicted class."""
        count = len(self.classes)
        return torch.bincount(self.actual * count + self.predicted, minlength=count * count).view(count, count)

    def accuracy_by_class(self) -> list[tuple[str, float, int]]:
        """Return name, accuracy in percent and number of images of each class that occurs, worst first."""
        counts = self.confusion()
        totals, right = counts.sum(dim=1).tolist(), counts.diagonal().tolist()
        found = [
            (name, 100 * yes / total, total)
            for name, yes, total in zip(self.classes, right, totals, strict=True)
            if total
        ]
        return sorted(found, key=lambda one: one[1])

    def confused_pairs(self, most: int = 20) -> list[tuple[str, str, int, float]]:
        """Return (actual class, predicted class, images, percent of the actual class), most frequent first."""
        counts = self.confusion()
        totals = counts.sum(dim=1)
        wrong = counts.clone().fill_diagonal_(0).flatten()
        found = []
        for cell in wrong.argsort(descending=True, stable=True)[:most].tolist():
            actual, predicted = divmod(cell, len(self.classes))
            if number := int(wrong[cell]):
                share = 100 * number / int(totals[actual])
                found.append((self.classes[actual], self.classes[predicted], number, share))
        return found

    def mistakes(self, most: int = 8) -> list[int]:
        """Return the positions in `rows` of wrong predictions, the most confident first."""
        wrong = (self.predicted != self.actual).nonzero()[:, 0]
        return wrong[self.share[wrong].argsort(descending=True, stable=True)][:most].tolist()


@torch.no_grad()
def classify(gallery: Gallery) -> Classification | None:
    """Classify test images by their nearest training images; without a test set, each image by the others.

    Returns None if fewer than two classes have labelled images.
    """
    labelled = gallery.labels >= 0
    if len(gallery.labels[labelled].unique()) < 2:
        return None
    queries, bank = labelled & gallery.is_test, labelled & ~gallery.is_test
    leave_one_out = not (queries.any() and bank.any())
    if leave_one_out:
        queries = bank = labelled
    rows, bank_rows = queries.nonzero()[:, 0], bank.nonzero()[:, 0]
    device = gallery.embeddings.device
    # Leave-one-out has no counterpart in aag evaluate, so k is free. With few images, 200 votes would favour large
    # classes, so a tenth of the images vote.
    k = min(K, max(1, len(bank_rows) // 10) if leave_one_out else len(bank_rows))
    found = knn_predict(
        gallery.embeddings[bank_rows.to(device)],
        gallery.labels[bank_rows],
        gallery.embeddings[rows.to(device)],
        k=k,
        temperature=TEMPERATURE,
        classes=len(gallery.classes),
        leave_one_out=leave_one_out,
    )
    share, predicted = found.scores.max(dim=1)
    compared = f"{len(rows):,} test images by {len(bank_rows):,} training images"
    if leave_one_out:
        compared = "each image by the others"
    protocol = f"Weighted kNN on embeddings, {compared}; k = {k}, votes exp(cosine / {TEMPERATURE}), nothing augmented."
    return Classification(rows, gallery.labels[rows], predicted.cpu(), share.cpu(), gallery.classes, protocol)
