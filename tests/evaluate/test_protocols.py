"""All evaluations of an encoder: the same numbers as separate calls, each with its protocol."""

import json
from dataclasses import replace

import pytest
import torch

from aag import AAGError, nets
from aag.data import ImageSet
from aag.evaluate import knn_accuracy, linear_probe
from aag.evaluate.protocols import evaluate_encoder

SPEC = nets.EncoderSpec(width=4, embedding=16, image_size=16)


def random_set(count: int, seed: int, split: str) -> ImageSet:
    """Return noise whose brightness depends on the class, so that accuracies are above chance."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (count,), generator=generator)
    noise = torch.randint(0, 120, (count, 3, 16, 16), generator=generator)
    images = (noise + 60 * labels.view(-1, 1, 1, 1)).to(torch.uint8)
    return ImageSet("noise", images, labels, ("a", "b", "c"), split=split)


@pytest.fixture
def encoder() -> nets.Encoder:
    return nets.build(SPEC, seed=1)


@pytest.fixture
def sets() -> tuple[ImageSet, ImageSet]:
    return random_set(48, 0, "train"), random_set(30, 1, "test")


def test_the_three_results_equal_separate_calls(encoder, sets):
    train, test = sets
    results = evaluate_encoder(encoder, train, test, k=5, temperature=0.2, linear_epochs=3, seed=7)
    assert [row["name"] for row in results] == ["kNN (embedding)", "kNN (features)", "linear (features)"]

    by_hand = []
    for layer in (encoder.embed, encoder.features):
        features = layer(train.images), layer(test.images)
        by_hand.append(knn_accuracy(features[0], train.labels, features[1], test.labels, k=5, temperature=0.2))
    probe = linear_probe(features[0], train.labels, features[1], test.labels, epochs=3, seed=7)
    assert [row["accuracy"] for row in results] == [*by_hand, probe.accuracy]
    assert results[2]["best_accuracy"] == probe.best_accuracy >= probe.accuracy
    assert results[2]["best_epoch"] == probe.best_epoch
    assert results[0]["accuracy"] > 60  # of 33 by chance


def test_each_number_carries_its_protocol(encoder, sets):
    results = evaluate_encoder(encoder, *sets, k=5, temperature=0.2, linear_epochs=3, seed=7)
    embedding, features, linear = (row["protocol"] for row in results)
    common = {"precision": "fp32", "data": "noise", "train": 48, "test": 30, "augmentation": "none"}
    for protocol in (embedding, features, linear):
        assert common.items() <= protocol.items()
    knn = {"evaluation": "knn", "k": 5, "temperature": 0.2, "metric": "cosine"}
    assert (knn | {"layer": "embedding", "dimensions": 16}).items() <= embedding.items()
    assert (knn | {"layer": "features", "dimensions": 32}).items() <= features.items()
    trained = {"evaluation": "linear", "layer": "features", "epochs": 3, "seed": 7, "reported": "last epoch"}
    assert (trained | {"lr": 0.01, "batch_size": 128, "dimensions": 32}).items() <= linear.items()
    assert json.loads(json.dumps(results)) == results


def test_the_defaults_are_the_papers_and_k_is_the_one_used(encoder, sets):
    embedding, _, linear = (row["protocol"] for row in evaluate_encoder(encoder, *sets))
    assert (embedding["k"], embedding["temperature"]) == (48, 0.1)  # 200, but there are 48 training images
    assert (linear["epochs"], linear["lr"], linear["batch_size"], linear["weight_decay"]) == (50, 0.01, 128, 0.0)


def test_the_encoder_is_not_changed(encoder, sets):
    encoder.train()
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    first = evaluate_encoder(encoder, *sets, linear_epochs=2)
    assert encoder.training
    assert all(torch.equal(before[name], value) for name, value in encoder.state_dict().items())
    again = evaluate_encoder(encoder, *sets, linear_epochs=2)
    assert [row["accuracy"] for row in again] == [row["accuracy"] for row in first]


@pytest.mark.parametrize("unlabelled", [0, 1])
def test_missing_labels_give_an_error_with_the_remedy(encoder, sets, unlabelled):
    sets = [replace(part, labels=None, classes=()) if i == unlabelled else part for i, part in enumerate(sets)]
    with pytest.raises(AAGError, match=r"noise has no labels, and evaluation needs them; .* --data"):
        evaluate_encoder(encoder, *sets)


def test_a_missing_test_split_is_an_error(encoder, sets):
    with pytest.raises(AAGError, match=r"noise has no test split, and evaluation needs one; .*--holdout 0.1.*test/"):
        evaluate_encoder(encoder, sets[0], None)


def test_images_without_a_label_are_left_out(encoder, sets):
    known = [torch.arange(len(part)) % 4 > 0 for part in sets]
    some = [replace(part, labels=part.labels.where(keep, -1)) for part, keep in zip(sets, known, strict=True)]
    only = [replace(s, images=s.images[k], labels=s.labels[k]) for s, k in zip(sets, known, strict=True)]
    results = evaluate_encoder(encoder, *some, linear_epochs=2)
    expected = evaluate_encoder(encoder, *only, linear_epochs=2)
    for row, other in zip(results, expected, strict=True):
        assert (row["accuracy"], row["protocol"]) == (other["accuracy"], other["protocol"])
