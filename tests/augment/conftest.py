from collections.abc import Iterator

import pytest
import torch
from distributions import WITHOUT_MAGNITUDE
from torch import Tensor

from aag.augment import OPS, Augmentation, autoaugment, keys


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread: the batches are small, and other test processes share the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def record_ops(monkeypatch):
    """Call an augmentation; return the sequence of (operation, magnitude) of each image, and the views."""

    def record(augmentation: Augmentation, images: Tensor, key: Tensor | None = None, apply: bool = False):
        apply_ops, positions = autoaugment.apply_ops, []

        def recording(op: Tensor, images: Tensor, magnitude: Tensor) -> Tensor:
            names = [OPS[number] for number in op.tolist()]
            values = [round(value, 9) for value in magnitude.tolist()]
            positions.append([(n, 0.0 if n in WITHOUT_MAGNITUDE else v) for n, v in zip(names, values, strict=True)])
            return apply_ops(op, images, magnitude) if apply else images

        with monkeypatch.context() as patch:
            patch.setattr(autoaugment, "apply_ops", recording)
            views = augmentation(images, key=keys(0, 0, torch.arange(len(images))) if key is None else key)
        return list(zip(*positions, strict=True)), views

    return record
