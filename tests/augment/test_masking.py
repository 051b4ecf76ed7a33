"""Operations on some images of a batch: gathering and selecting give the same."""

import pytest
import torch

from aag.augment import masking
from aag.augment.masking import apply_masked, needs_static_shapes


@pytest.mark.parametrize(("static", "chosen"), [(s, c) for s in (False, True) for c in (0, 4, 30)])
def test_the_chosen_images_change_and_the_others_stay(photographs, monkeypatch, static, chosen):
    monkeypatch.setattr(masking, "needs_static_shapes", lambda images: static)
    images, mask, factor, sizes = photographs[:30].float(), torch.arange(30) < chosen, torch.arange(30) + 2.0, []

    def scale(images: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        sizes.append(len(images))
        return images * factor[:, None, None, None]

    before = images.clone()
    out = apply_masked(mask.flip(0), scale, images, factor)
    expected = [image * (i + 2) if i >= 30 - chosen else image for i, image in enumerate(before)]
    assert torch.equal(out, torch.stack(expected))
    assert torch.equal(images, before)
    assert sizes == ([30] if static else [chosen][: chosen > 0])  # gathering computes only the chosen images


def test_a_cpu_gathers_and_other_devices_select():
    assert not needs_static_shapes(torch.empty(1, 3, 4, 4))
    assert needs_static_shapes(torch.empty(1, 3, 4, 4, device="meta"))
