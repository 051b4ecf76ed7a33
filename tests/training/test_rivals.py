"""Every method by the same loop: it learns, and a resumed run is the uninterrupted one."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from aag.config import METHODS, TrainConfig, recipe_config
from aag.training.loop import Trainer
from aag.training.reporter import Reporter
from test_loop import rows, state, stop_after

from aag import data
from aag.training import train

# What makes a method small enough for a run of seconds on a tiny set, besides the fixture's own.
SMALL: dict[str, dict] = {
    "instance": {},
    "isif": {},
    "simclr": {},
    "moco": {"queue": 32, "norm_images": 8},
    "and": {"rounds": 2},
    "super-and": {"rounds": 2, "network": "resnet18+sobel"},
    "deepcluster": {"clusters": 5},
    "amdim": {"network": "amdim", "width": 2},
}
VARIANTS = [
    ("instance", {"negatives": 8}),
    ("isif", {"loss": "gnt-xent"}),
    ("simclr", {"loss": "dclw", "optimizer": "sgd"}),
    ("moco", {"symmetric": True, "norm_images": 0}),
]
# What each learns from in seconds on one core, besides its own recipe and `QUICK`, and the kNN that it is to gain.
# Seeds 0, 1 and 2 gain more than is asked for: 4 to 24. With views or targets swapped between the images of a batch,
# nothing can be learnt but to spread: they gain −12 to 8, and in the mean −4 to 1 (amdim: 4).
LEARNS: dict[str, tuple[dict, float]] = {
    # One view an image makes an epoch cheap; the bank needs many before its rows stand for the images.
    "instance": ({"epochs": 30, "batch_size": 32}, 4),
    "isif": ({}, 5),
    "simclr": ({"optimizer": "sgd"}, 12),  # LARS is for batches of hundreds
    "moco": ({"queue": 128, "norm_images": 0}, 5),  # keys in it are eight steps old at most; 4096 would be 256
    "and": ({"epochs": 24, "batch_size": 32, "rounds": 2}, 3),
    "super-and": ({"epochs": 6, "rounds": 2}, 4),  # two networks and two views: the slowest
    # As in its recipe, the rate does not sink: the last layer is new in every epoch, and has to catch up.
    "deepcluster": ({"epochs": 15, "clusters": 10, "schedule": "constant", "lr": 0.05}, 2),
    "amdim": ({"epochs": 6, "image_size": 32, "width": 4, "lr": 8e-3}, 4),  # takes no other size; Adam's rate
}
QUICK = {"image_size": 16, "width": 8, "epochs": 10, "batch_size": 16, "lr": 0.12, "schedule": "cosine"}


@pytest.fixture
def four_classes(tmp_path: Path) -> str:
    """The sample's airplanes, automobiles, frogs and horses: the first 100 of each to learn from, all 100 to test."""
    arrays = {}
    for part in data.load_pair("sample"):
        chosen = torch.cat([(part.labels == label).nonzero()[:100, 0] for label in (0, 1, 6, 7)])
        arrays[f"{part.split}_images"] = part.images[chosen].permute(0, 2, 3, 1).numpy()
        arrays[f"{part.split}_labels"] = part.labels[chosen].numpy()
    np.savez(tmp_path / "four.npz", **arrays)
    return str(tmp_path / "four.npz")


def small(tiny: TrainConfig, method: str, **changes: object) -> TrainConfig:
    kept = {name: getattr(tiny, name) for name in ("out", "device", "width", "epochs", "batch_size", "knn_every")}
    settings = {**kept, "checkpoint_minutes": 0, "warmup_epochs": 0, **SMALL[method], **changes}
    return replace(recipe_config(method, tiny.data, method), **settings)


def test_every_method_is_here():
    assert {"aag", *SMALL} == {"aag", *LEARNS} == set(METHODS)


@pytest.mark.parametrize("method", LEARNS)
def test_each_method_learns_from_the_sample(four_classes, tmp_path, method):
    changes, gain = LEARNS[method]
    watched = {"out": tmp_path / "run", "device": "cpu", "knn_every": 0}
    config = replace(recipe_config(method, four_classes, method), **watched, **{**QUICK, **changes})
    result = train(config)
    assert result.knn_last > result.knn_untrained + gain


@pytest.mark.parametrize(("method", "changes"), [*((name, {}) for name in SMALL), *VARIANTS])
def test_a_resumed_run_is_the_uninterrupted_one(tiny, tmp_path, method, changes):
    config = small(tiny, method, **changes)
    whole = train(replace(config, out=tmp_path / "whole"))
    for steps in (2, 5):  # in the first epoch, and behind the start of the second
        assert not train(config, should_stop=stop_after(steps)).complete
    resumed = train(config)
    tensors, rest = state(whole.run)
    tensors_resumed, rest_resumed = state(resumed.run)
    assert rest == rest_resumed
    assert tensors.keys() == tensors_resumed.keys()
    different = [name for name in tensors if not torch.equal(tensors[name], tensors_resumed[name])]
    assert not different
    assert rows(whole.run) == rows(resumed.run)


def test_clusters_of_an_epoch_are_what_it_trains_on(tiny):
    """DeepCluster's last layer is new: no momentum of the old one. Nor has its epoch the order of the clusters before,
    which a warm-up may have asked for."""
    trainer = Trainer(small(tiny, "deepcluster"), Reporter(), lambda: False)
    trainer.images = trainer.train_set.images
    with ExitStack() as trainer.until_done:
        trainer._build_step(trainer.runtime)
        trainer.views.first(0)
        optimizer, method = trainer.step.optimizer, trainer.method
        for momentum in optimizer.velocity.values():
            momentum.fill_(1.0)
        trainer._before_epoch()
        assert {name for name, held in optimizer.state().items() if not held.any()} == {
            "momentum.method.top.weight", "momentum.method.top.bias",
        }  # fmt: skip
        ids = trainer.views.batch(0, 0).ids
        assert torch.equal(ids, method.order(0)[: len(ids)])
