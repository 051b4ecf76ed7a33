"""One operation for some images: gathered or selected, the same."""

import pytest
import torch

from aag.augment import select
from aag.augment.select import apply_where, dense


def scaled(images: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    return images * factor[:, None, None, None]


@pytest.mark.parametrize("chosen", ["none", "some", "all"])
@pytest.mark.parametrize("path", ["gathered", "selected"])
def test_the_chosen_images_change_and_the_others_stay(photographs, monkeypatch, chosen, path):
    monkeypatch.setattr(select, "dense", lambda images: path == "selected")
    images = photographs[:30].float()
    mask = {"none": torch.zeros(30), "some": torch.arange(30) % 3 == 1, "all": torch.ones(30)}[chosen].bool()
    factor = torch.arange(30) + 2.0
    expected = torch.stack([image * (i + 2) if mask[i] else image for i, image in enumerate(images)])
    before = images.clone()
    assert torch.equal(apply_where(mask, scaled, images, factor), expected)
    assert torch.equal(images, before)


@pytest.mark.parametrize(("path", "seen"), [("gathered", 4), ("selected", 30)])
def test_gathering_computes_the_chosen_alone(photographs, monkeypatch, path, seen):
    monkeypatch.setattr(select, "dense", lambda images: path == "selected")
    sizes = []
    apply_where(torch.arange(30) < 4, lambda images: sizes.append(len(images)) or images, photographs[:30])
    assert sizes == [seen]


def test_a_cpu_gathers_and_another_device_selects():
    assert not dense(torch.empty(1, 3, 4, 4))
    assert dense(torch.empty(1, 3, 4, 4, device="meta"))
