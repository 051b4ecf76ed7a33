"""Colour and blur against torchvision's functions, image by image."""

import pytest
import torch
import torchvision.transforms.functional as tvf
from torch import Tensor

from aag.augment import colour

TOLERANCE = 2e-6  # float32 arithmetic in another order
THEIRS = {
    "brightness": tvf.adjust_brightness,
    "contrast": tvf.adjust_contrast,
    "saturation": tvf.adjust_saturation,
    "hue": tvf.adjust_hue,
}


@pytest.fixture
def images(photographs: Tensor) -> Tensor:
    return photographs[:96].float() / 255


@pytest.fixture
def edge_colours() -> Tensor:
    """Return gray, black, white, pure and tied colours: the hue is undefined or between two sextants."""
    level = [0.0, 0.25, 0.5, 1.0]
    triples = [(r, g, b) for r in level for g in level for b in level]
    return torch.tensor(triples).T.reshape(1, 3, 8, 8)


def one_by_one(name: str, images: Tensor, strength: Tensor) -> Tensor:
    return torch.stack([THEIRS[name](image, s.item()) for image, s in zip(images, strength, strict=True)])


@pytest.mark.parametrize("name", THEIRS)
def test_operation_agrees_with_torchvisions(images, name):
    strength = torch.linspace(-0.5, 0.5, 96) if name == "hue" else torch.linspace(0, 2, 96)
    ours = getattr(colour, name)(images, strength)
    theirs = one_by_one(name, images, strength)
    tolerance = 1e-5 if name == "hue" else TOLERANCE  # torchvision's hue goes through a division and back
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)
    assert (ours - images).abs().amax(dim=(1, 2, 3)).median() > 0.05


@pytest.mark.parametrize("name", THEIRS)
@pytest.mark.parametrize("strength", [-0.5, -0.1, 0.0, 1 / 6, 0.4])
def test_operation_agrees_with_torchvisions_on_edge_colours(edge_colours, name, strength):
    strength = torch.tensor([strength if name == "hue" else 1 + strength])
    ours = getattr(colour, name)(edge_colours, strength)
    torch.testing.assert_close(ours, one_by_one(name, edge_colours, strength), rtol=0, atol=1e-5)


def test_grayscale_agrees_with_torchvisions(images):
    theirs = tvf.rgb_to_grayscale(images, num_output_channels=3)
    torch.testing.assert_close(colour.grayscale(images), theirs, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("kernel", [1, 3, 5, 9])
def test_blur_agrees_with_torchvisions(images, kernel):
    images, sigma = images[..., :23], torch.linspace(0.1, 2, 96)
    theirs = [
        tvf.gaussian_blur(image, [kernel, kernel], [s, s]) for image, s in zip(images, sigma.tolist(), strict=True)
    ]
    torch.testing.assert_close(colour.blur(images, sigma, kernel), torch.stack(theirs), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("kernel", [3, 5, 23])
def test_blur_does_not_depend_on_the_batch(kernel):
    images = torch.rand(128, 3, 33, 33, generator=torch.Generator().manual_seed(0))
    sigma = torch.linspace(0.1, 2, 128)
    alone = [colour.blur(images[i : i + 1], sigma[i : i + 1], kernel) for i in range(128)]
    assert torch.equal(colour.blur(images, sigma, kernel), torch.cat(alone))


def test_jitter_uses_each_images_order(images):
    order = torch.arange(96) % 24
    generator = torch.Generator().manual_seed(1)
    strength = torch.rand(96, 4, generator=generator) * torch.tensor([0.8, 0.8, 0.8, 0.2]) + torch.tensor(
        [0.6, 0.6, 0.6, -0.1]
    )
    ours = colour.jitter(images, torch.ones(96).bool(), order, strength)
    theirs = images.clone()
    for i in range(96):
        for number in colour.ORDERS[order[i]]:
            theirs[i] = list(THEIRS.values())[number](theirs[i], strength[i, number].item())
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)  # an exaggeration follows hue's rounding


def test_contrast_of_a_large_image_does_not_depend_on_the_batch():
    torch.set_num_threads(2)  # conftest restores the number
    images = torch.rand(3, 3, 256, 256, generator=torch.Generator().manual_seed(0))
    factor = torch.tensor([0.7, 1.2, 1.3])
    alone = [colour.contrast(images[i : i + 1], factor[i : i + 1]) for i in range(3)]
    assert torch.equal(colour.contrast(images, factor), torch.cat(alone))
