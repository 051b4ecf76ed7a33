"""Every method by the same loop: it learns, and a resumed run is the uninterrupted one."""

from dataclasses import replace

import pytest
import torch
from test_loop import rows, state, stop_after

from aag.config import METHODS, TrainConfig, recipe_config
from aag.train import train

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


def small(tiny: TrainConfig, method: str, **changes: object) -> TrainConfig:
    kept = {name: getattr(tiny, name) for name in ("out", "device", "width", "epochs", "batch_size", "knn_every")}
    settings = {**kept, "checkpoint_minutes": 0, "warmup_epochs": 0, **SMALL[method], **changes}
    return replace(recipe_config(method, tiny.data, method), **settings)


def test_every_method_is_here():
    assert {"aag", *SMALL} == set(METHODS)


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
