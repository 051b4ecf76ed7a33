"""t-SNE: groups that are apart stay apart, the same seed gives the same picture, and the file is small."""

import json

import pytest
import torch

from aag import AAGError
from aag.evaluate.tsne import project


def groups(count: int, classes: int = 3, dimensions: int = 128) -> tuple[torch.Tensor, torch.Tensor]:
    """Unit vectors around as many directions as there are classes."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % classes
    centres = torch.nn.functional.one_hot(labels, dimensions).float()
    noise = 0.3 * torch.randn(count, dimensions, generator=generator) / dimensions**0.5
    return torch.nn.functional.normalize(centres + noise, dim=1), labels


@pytest.fixture(scope="module")
def found() -> dict:
    return project(*groups(150), classes=("a", "b", "c"))


def test_classes_that_are_apart_stay_apart(found):
    points, labels = torch.tensor([found["x"], found["y"]]).T, torch.tensor(found["labels"])
    assert points.shape == (150, 2)
    distances = torch.cdist(points, points).fill_diagonal_(float("inf"))
    assert (labels[distances.argmin(dim=1)] == labels).all()


def test_it_says_how_it_was_made(found):
    assert found["labels"] == [number % 3 for number in range(150)]
    assert found["classes"] == ["a", "b", "c"]
    assert (found["images"], found["dimensions"], found["seed"]) == (150, 128, 0)
    assert (found["metric"], found["perplexity"]) == ("cosine", 30.0)


def test_length_does_not_matter_and_a_seed_gives_the_same_picture(found):
    embeddings, labels = groups(150)
    again = project(embeddings, labels, classes=("a", "b", "c"))
    assert again == found
    longer = project(embeddings * torch.linspace(0.5, 2, 150)[:, None], labels)
    points = torch.tensor([longer["x"], longer["y"]]).T
    distances = torch.cdist(points, points).fill_diagonal_(float("inf"))
    assert (labels[distances.argmin(dim=1)] == labels).all()


def test_the_first_images_are_taken_and_the_rest_is_not_looked_at():
    embeddings, labels = groups(60)
    some = project(embeddings[:40], labels[:40])
    embeddings[40:] = float("nan")
    assert project(embeddings, labels, images=40) == some
    assert some["perplexity"] == 13.0
    assert len(json.dumps(some)) < 40 * 25 + 600


@pytest.mark.parametrize(
    ("embeddings", "labels", "told"),
    [
        (torch.rand(4, 8), torch.zeros(4), "at least 5 images, not 4"),
        (torch.rand(9, 8), torch.zeros(8), r"not \[9, 8\] and \[8\]"),
        (torch.rand(9), torch.zeros(9), r"not \[9\] and \[9\]"),
        (torch.full((9, 8), float("nan")), torch.zeros(9), "NaN or infinity"),
        (torch.ones(9, 8), torch.zeros(9), "that are not all the same"),
        (torch.rand(9, 1), torch.zeros(9), "two dimensions or more"),
    ],
)
def test_what_cannot_be_placed_is_refused(embeddings, labels, told):
    with pytest.raises(AAGError, match=told):
        project(embeddings, labels)
