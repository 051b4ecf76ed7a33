from collections.abc import Iterator

import pytest
import torch
from draws import PLAIN
from torch import Tensor

from aag.augment import OPS, Augmentation, auxiliary


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The batches are small: threads would cost more than they give, most of all beside other test processes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def drawn(monkeypatch):
    """Calls an augmentation and gives, for each image, the operations it was to get, one after another."""

    def look(augmentation: Augmentation, images: Tensor, key: Tensor | None = None, act: bool = False):
        apply_each, places = auxiliary.apply_each, []

        def record(op: Tensor, images: Tensor, magnitude: Tensor) -> Tensor:
            names = [OPS[number] for number in op.tolist()]
            values = [round(value, 9) for value in magnitude.tolist()]
            places.append([(n, 0.0 if n in PLAIN else v) for n, v in zip(names, values, strict=True)])
            return apply_each(op, images, magnitude) if act else images

        with monkeypatch.context() as patch:
            patch.setattr(auxiliary, "apply_each", record)
            out = augmentation(images, key=key)
        return list(zip(*places, strict=True)), out

    return look
