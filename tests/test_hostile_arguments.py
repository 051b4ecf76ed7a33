"""The public functions with wrong arguments: each call works, or raises one short line."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import aag
from aag.cluster import kmeans, mutual_information, whiten
from aag.errors import describe
from aag.evaluate import health
from aag.methods.simclr import SimCLRSettings

X, Y = torch.randn(2, 16, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(16) % 4
IMAGES = torch.arange(4 * 3 * 64).view(4, 3, 8, 8).to(torch.uint8)
KEYS = aag.augment.keys(0, 0, torch.arange(4))
SPEC = aag.nets.EncoderSpec("resnet18", width=1, image_size=8, embedding=4)
ENCODER = aag.nets.build(SPEC)

SHAPES = (
    (),
    (0,),
    (3,),
    (0, 8),
    (16, 0),
    (16, 8),
    (16, 9),
    (2, 2, 2),
    (4, 3, 8, 8),
    (4, 3, 0, 8),
    (0, 3, 8, 8),
    (3, 8, 0),
)
DTYPES = (torch.float32, torch.float64, torch.float16, torch.int64, torch.uint8, torch.bool, torch.complex64)
HOSTILE: list[Any] = [
    *(None, True, 0, -1, 3, 10**30, -(10**30), 2**63, 10**5000, 0.5, 1e300, 1e-40, 1j),
    *(float("nan"), float("inf"), -float("inf"), "", "x", "\0", "a\nb" * 2000, b"x", object(), int, len),
    *([], {}, (), [1, 2], [[1.0, 2.0]], ("a", "b"), {"a": 1}, Path("/no\0where")),
    *(torch.zeros(shape, dtype=dtype) for shape in SHAPES for dtype in DTYPES),
    *(torch.full(shape, value) for shape in ((16, 8), (4, 3, 8, 8), (16,)) for value in (1e30, -1e-40, torch.nan)),
    *(torch.full((16,), -5), torch.full((16,), 2**62), X.to("meta"), X.to_sparse()),
    *(IMAGES.to("meta"), LABELS.to("meta")),
    *(np.zeros((16, 8)), np.zeros((4, 8, 8, 3), np.uint8), np.array([None]), np.array("x"), np.int64(3)),
]  # fmt: skip


def values(settings: Any) -> dict[str, Any]:
    return {field.name: getattr(settings, field.name) for field in fields(settings)}


losses, evaluate, augment = aag.losses, aag.evaluate, aag.augment
PAIR = {"x": X, "y": Y, "temperature": 0.1}
SETS = {"train_features": X, "train_labels": LABELS, "test_features": Y}
CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "gnt_xent": (lambda x, y, z, **options: losses.gnt_xent(x, y, z, **options), {**PAIR, "z": X + Y, "one_way": True}),
    "simclr": (losses.simclr, PAIR),
    "dclw": (losses.dclw, {**PAIR, "sigma": 0.5}),
    "isif": (losses.isif, PAIR),
    "isif_from_similarities": (losses.isif_from_similarities, {"s": X @ X.T}),
    "components": (losses.components, {**PAIR, "keep_positive": False}),
    "queue_xent": (
        losses.queue_xent,
        {"query": X, "key": Y, "queue": X[:5], "temperature": 0.1, "keep_positive": True},
    ),
    "mean_cosines": (losses.mean_cosines, {"x": X, "y": Y}),
    "knn_accuracy": (evaluate.knn_accuracy, {**SETS, "test_labels": LABELS, "k": 3, "temperature": 0.1}),
    "knn_predict": (evaluate.knn_predict, {**SETS, "classes": 4, "leave_one_out": True}),
    "linear_probe": (
        evaluate.linear_probe,
        {**SETS, "test_labels": LABELS, "epochs": 1, "batch_size": 8, "lr": 0.1, "weight_decay": 0.0, "seed": 0},
    ),
    "effective_rank": (health.effective_rank, {"embeddings": X}),
    "uniformity": (health.uniformity, {"embeddings": X}),
    "view_agreement": (health.view_agreement, {"first": X, "second": Y, "k": 1}),
    "kmeans": (kmeans, {"x": X, "k": 3, "iterations": 1, "seed": 0, "epoch": 0, "start": X[:3]}),
    "whiten": (whiten, {"features": X, "dims": 4}),
    "mutual_information": (mutual_information, {"a": LABELS, "b": LABELS}),
    "keys": (augment.keys, {"seed": 0, "epoch": 0, "image": torch.arange(4), "view": 0}),
    "uniforms": (augment.uniforms, {"key": KEYS, "slots": 3}),
    "apply_op": (augment.apply_op, {"name": "Rotate", "images": IMAGES, "magnitude": 10.0}),
    "BasicAugment": (augment.BasicAugment, values(augment.BasicAugment())),
    "RandAugment": (augment.RandAugment, values(augment.RandAugment())),
    "AuxiliaryAugment": (augment.AuxiliaryAugment, values(augment.AuxiliaryAugment())),
    "augmentation": (augment.BasicAugment(), {"images": IMAGES, "seed": 0}),
    "augmentation by key": (augment.AutoAugment(), {"images": IMAGES, "key": KEYS}),
    "EncoderSpec": (aag.nets.EncoderSpec, values(SPEC)),
    "build": (aag.nets.build, {"spec": SPEC, "seed": 0, "backbone": None}),
    "embed": (ENCODER.embed, {"images": IMAGES, "batch_size": 4, "any_size": True}),
    "save": (lambda path: aag.nets.save(path, "no-such-folder/encoder"), {"path": ENCODER}),
    "load": (aag.load, {"run_or_file": "no-such-file"}),
    "Run": (aag.Run, {"folder": "runs/x"}),
    "ImageSet": (aag.ImageSet, {**values(aag.ImageSet("x", IMAGES, LABELS[:4], tuple("abcd")))}),
    "data.load": (aag.data.load, {"source": "sample", "split": "test", "limit": 2, "labels": "known", "holdout": None}),
    "TrainSettings": (aag.TrainSettings, values(aag.TrainSettings())),
    "SimCLRSettings": (SimCLRSettings, values(SimCLRSettings())),
}


def message(function: Callable[..., Any], arguments: dict[str, Any]) -> str:
    """The line that a call raises; empty if it works."""
    try:
        function(**arguments)
    except aag.AAGError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", CALLS)
def test_wrong_arguments_are_one_line(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    function, right = CALLS[name]
    lines = []
    for argument in right:
        for value in HOSTILE:
            try:
                lines.append(message(function, {**right, argument: value}))
            except Exception as error:
                pytest.fail(f"{name}({argument}={describe(value)}) raised {type(error).__name__}: {str(error)[:200]}")
    assert not [line for line in lines if "\n" in line or len(line) > 1010]
    assert sum(map(bool, lines)) > 20 * len(right)


def test_messages_are_one_printable_line():
    error = aag.AAGError("cannot read a\x1b[31m\nfolder\u2028name\udcff")
    assert str(error) == "cannot read a?[31m folder name?"
