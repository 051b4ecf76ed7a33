"""t-SNE: separate groups stay separate, the same seed gives the same points, and the file is small."""

import json

import pytest
import torch

from aag import AAGError
from aag.evaluate.tsne import project


def groups(count: int, classes: int = 3, dimensions: int = 128) -> tuple[torch.Tensor, torch.Tensor]:
    """Return unit vectors around one direction per class, and their labels."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % classes
    centres = torch.nn.functional.one_hot(labels, dimensions).float()
    noise = 0.3 * torch.randn(count, dimensions, generator=generator) / dimensions**0.5
    return torch.nn.functional.normalize(centres + noise, dim=1), labels


@pytest.fixture(scope="module")
def found() -> dict:
    return project(*groups(150), classes=("a", "b", "c"))


def test_separate_classes_stay_separate(found):
    points, labels = torch.tensor([found["x"], found["y"]]).T, torch.tensor(found["labels"])
    assert points.shape == (150, 2)
    distances = torch.cdist(points, points).fill_diagonal_(float("inf"))
    assert (labels[distances.argmin(dim=1)] == labels).all()


def test_the_result_includes_its_settings(found):
    assert found["labels"] == [number % 3 for number in range(150)]
    assert found["classes"] == ["a", "b", "c"]
    assert (found["images"], found["dimensions"], found["seed"]) == (150, 128, 0)
    assert (found["metric"], found["perplexity"]) == ("cosine", 30.0)


def test_length_has_no_effect_and_a_seed_gives_the_same_points(found):
    embeddings, labels = groups(150)
    again = project(embeddings, labels, classes=("a", "b", "c"))
    assert again == found
    longer = project(embeddings * torch.linspace(0.5, 2, 150)[:, None], labels)
    points = torch.tensor([longer["x"], longer["y"]]).T
    distances = torch.cdist(points, points).fill_diagonal_(float("inf"))
    assert (labels[distances.argmin(dim=1)] == labels).all()


def test_only_the_first_images_are_used():
    embeddings, labels = groups(60)
    some = project(embeddings[:40], labels[:40])
    embeddings[40:] = float("nan")
    assert project(embeddings, labels, images=40) == some
    assert some["perplexity"] == 13.0
    assert len(json.dumps(some)) < 40 * 25 + 600


@pytest.mark.parametrize("scale", [1e-44, 1e-38, 1e38])
def test_numbers_of_any_size_are_projected(scale):
    """They once ended the process, or became infinite."""
    embeddings, labels = groups(60)
    assert max(project(embeddings * scale, labels)["x"]) < 1000


@pytest.mark.parametrize(
    ("embeddings", "labels", "line"),
    [
        (torch.rand(4, 8), torch.zeros(4), "at least 5 images, not 4"),
        (torch.rand(9, 8), torch.zeros(8), r"not \[9, 8\] and \[8\]"),
        (torch.rand(9), torch.zeros(9), r"not \[9\] and \[9\]"),
        (torch.full((9, 8), float("nan")), torch.zeros(9), "NaN or infinity"),
        (torch.ones(9, 8), torch.zeros(9), "that are not all the same"),
        (torch.rand(9, 1), torch.zeros(9), "two dimensions or more"),
        (torch.ones(9, 8) * torch.arange(1, 10)[:, None], torch.zeros(9), "that are not all the same"),
        (torch.zeros(9, 8).numpy(), torch.zeros(9), "must be a float tensor"),
    ],
)
def test_bad_embeddings_are_refused(embeddings, labels, line):
    with pytest.raises(AAGError, match=line):
        project(embeddings, labels)
