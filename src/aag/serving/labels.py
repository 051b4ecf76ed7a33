"""Label all images from a few labelled examples, by weighted kNN or a linear classifier on embeddings."""

import csv
import io
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from aag.errors import AAGError, first_line
from aag.evaluate.knn import knn_predict
from aag.files import open_regular, write_csv
from aag.serving.sources import class_folders
from aag.serving.table import EmbeddingTable
from aag.text import pluralize

NEIGHBOURS = 10  # that vote, at most
TEMPERATURE = 0.1  # of the votes
FOLDS = 5
CHUNK_ROWS = 100_000  # images whose share of the votes for each label is in memory at once

Classifier = Literal["knn", "linear"]


@dataclass(frozen=True, eq=False)
class Labelling:
    """A label for each of N images."""

    labels: list[str]
    confidences: list[float]  # share of the votes, or probability, of the label; 1 where it was given
    given: list[bool]
    accuracy: float | None  # percent: each example is labelled by the others; None if that cannot be measured
    protocol: str  # how the accuracy was measured


def label_images(
    table: EmbeddingTable,
    examples: Mapping[int, str],
    *,
    outside: tuple[EmbeddingTable, list[str]] | None = None,
    classifier: Classifier = "knn",
) -> Labelling:
    """Label the rows of a table from examples: {row: label}, and optionally labelled rows of another table.

    knn: votes exp(cosine / 0.1) of the 10 nearest examples. linear: logistic regression on the features, where the
    table has them, else on the embeddings.
    """
    rows = sorted(examples)
    names = [examples[row] for row in rows]
    vectors = _vectors(table, classifier)
    known = vectors[rows]
    if outside is not None:
        labelled = [row for row, name in enumerate(outside[1]) if name]
        known = torch.cat([known, _vectors(outside[0], classifier)[labelled]])
        names = names + [outside[1][row] for row in labelled]
    classes = sorted(set(names))
    if len(classes) < 2:
        found = f"only the label {classes[0]!r}" if classes else "no label"
        raise AAGError(f"the examples have {found}; at least two labels are needed")
    numbers = {name: number for number, name in enumerate(classes)}
    targets = torch.tensor([numbers[name] for name in names])
    if classifier == "knn":
        labels, confidences = _predict_knn(known, targets, vectors)
        accuracy, protocol = _leave_one_out(known, targets)
    else:
        labels, confidences = _predict_linear(known, targets, vectors)
        accuracy, protocol = _cross_validate(known, targets)
    return Labelling(
        [examples.get(row, classes[label]) for row, label in enumerate(labels.tolist())],
        [1.0 if row in examples else value for row, value in enumerate(confidences.tolist())],
        [row in examples for row in range(len(table))],
        accuracy,
        protocol,
    )


def read_labels(path: Path, table: EmbeddingTable) -> dict[int, str]:
    """Return {row: label} of a CSV with the columns path and label. Rows without a label are ignored.

    Paths are those of the table. The folder in front of them and absolute paths are accepted, too.
    """
    try:
        with io.TextIOWrapper(open_regular(path), encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise AAGError(f"cannot read labels from {path}: {first_line(error)}") from error
    if not rows or not {"path", "label"} <= rows[0].keys():
        raise AAGError(f"{path} needs a first line with the columns path,label and a row per labelled image")
    rows_by_name = {name: row for row, name in enumerate(table.names)}
    folder = table.metadata.get("source", "")
    examples: dict[int, str] = {}
    missing = []
    for each in rows:
        label = (each["label"] or "").strip()
        if not label:
            continue
        row = _find_row(each["path"] or "", rows_by_name, folder)
        if row is None:
            missing.append(each["path"])
        elif examples.setdefault(row, label) != label:
            raise AAGError(f"{path} has two labels for {each['path']}: {examples[row]!r} and {label!r}; remove one")
    if missing:
        count = pluralize(len(missing), "path")
        raise AAGError(f"{path}: {count} not among the images, first {missing[0]!r}; write paths inside the folder")
    if not examples:
        raise AAGError(f"{path} has no labels; fill in the column label for a few images")
    return examples


def folder_labels(table: EmbeddingTable, folder: Path) -> list[str]:
    """Return the class folder of each example; "" outside the class folders."""
    labels = class_folders(table.names)
    if labels is None:
        raise AAGError(f"{folder} has no class folders; put the examples into one subfolder per label, or give a .csv")
    return labels


def write_labels(path: Path, table: EmbeddingTable, found: Labelling) -> None:
    """Write path, label, confidence and whether the label was given, as CSV, atomically."""
    confidences = [f"{confidence:.4f}" for confidence in found.confidences]
    rows = zip(table.names, found.labels, confidences, map(int, found.given), strict=True)
    write_csv(path, ["path", "label", "confidence", "given"], rows)


def summarize_labels(found: Labelling) -> list[dict[str, object]]:
    """Return one row per label: images, examples, mean confidence of the others and how many are below one half."""
    total = Counter(found.labels)
    others: dict[str, list[float]] = {label: [] for label in sorted(total)}
    for label, confidence, given in zip(found.labels, found.confidences, found.given, strict=True):
        if not given:
            others[label].append(confidence)
    rows = []
    for label, new in others.items():
        rows.append({
            "label": label,
            "images": total[label],
            "given": total[label] - len(new),
            "mean confidence": round(sum(new) / len(new), 3) if new else None,
            "below 0.5": sum(value < 0.5 for value in new),
        })  # fmt: skip
    return rows


def _find_row(path: str, rows_by_name: dict[str, int], folder: str) -> int | None:
    path = path.strip().replace("\\", "/") if path.strip() not in rows_by_name else path.strip()
    inside = os.path.relpath(os.path.abspath(path), folder).replace(os.sep, "/") if folder else path
    candidates = (path, path.removeprefix("./"), inside)
    return next((rows_by_name[name] for name in candidates if name in rows_by_name), None)


def _vectors(table: EmbeddingTable, classifier: Classifier) -> Tensor:
    return table.features if classifier == "linear" and table.features is not None else table.embeddings


def _predict_knn(known: Tensor, targets: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    labels, shares = [], []
    for chunk in vectors.split(CHUNK_ROWS):
        found = knn_predict(known, targets, chunk, k=NEIGHBOURS, temperature=TEMPERATURE)
        labels.append(found.labels)
        shares.append(found.scores.amax(dim=1))
    return torch.cat(labels), torch.cat(shares)


def _leave_one_out(known: Tensor, targets: Tensor) -> tuple[float | None, str]:
    """Return the accuracy in percent of examples labelled by the others, and how it was measured."""
    found = knn_predict(known, targets, known, k=NEIGHBOURS, temperature=TEMPERATURE, leave_one_out=True)
    return 100 * int((found.labels == targets).sum()) / len(targets), "leave-one-out"


def _make_linear() -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=1000))


def _predict_linear(known: Tensor, targets: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    model = _make_linear().fit(known.numpy(), targets.numpy())
    best = [torch.from_numpy(model.predict_proba(chunk.numpy())).max(dim=1) for chunk in vectors.split(CHUNK_ROWS)]
    labels = torch.from_numpy(model.classes_)[torch.cat([each.indices for each in best])]
    return labels, torch.cat([each.values for each in best])


def _cross_validate(known: Tensor, targets: Tensor) -> tuple[float | None, str]:
    """Return the stratified cross-validated accuracy in percent, and how it was measured."""
    from sklearn.model_selection import StratifiedKFold, cross_val_predict

    folds = min(FOLDS, min(Counter(targets.tolist()).values()))
    if folds < 2:
        return None, "a label has only one example"
    splits = StratifiedKFold(folds, shuffle=True, random_state=0)
    predicted = cross_val_predict(_make_linear(), known.numpy(), targets.numpy(), cv=splits)
    return 100 * float(np.mean(predicted == targets.numpy())), f"{folds}-fold cross-validation"
