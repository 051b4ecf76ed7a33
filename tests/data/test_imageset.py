from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aag.data import ImageSet


def make(count=4, size=8, **changes) -> ImageSet:
    pixels = torch.randint(
        0, 256, (count, 3, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    fields = {"name": "x", "images": pixels, "labels": torch.arange(count) % 2, "classes": ("a", "b")}
    return ImageSet(**(fields | changes))


def test_properties_and_repr():
    images = make(5, 8)
    assert (len(images), images.image_size, images.split, images.skipped) == (5, 8, "train", ())
    assert repr(images) == "ImageSet('x', train, 5 images of 3×8×8, 2 classes)"
    grey = ImageSet("y", torch.zeros(2, 1, 4, 4, dtype=torch.uint8), split="unlabelled")
    assert repr(grey) == "ImageSet('y', unlabelled, 2 images of 1×4×4, no labels)"
    assert (grey.channels, grey.statistics()) == (1, ((0.0,), (1 / 255,)))
    with pytest.raises(FrozenInstanceError):
        images.name = "y"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"images": torch.zeros(4, 3, 8, 8)}, ["float32", "uint8"]),
        ({"images": np.zeros((4, 3, 8, 8), np.uint8)}, ["ndarray", "a tensor"]),
        ({"labels": [0, 1, 0, 1]}, ["labels are list", "a tensor"]),
        ({"images": torch.zeros(4, 8, 8, 3, dtype=torch.uint8)}, ["[4, 8, 8, 3]", "[N, C, S, S]"]),
        ({"images": torch.zeros(4, 3, 8, 9, dtype=torch.uint8)}, ["[4, 3, 8, 9]"]),
        ({"images": torch.zeros(3, 8, 8, dtype=torch.uint8)}, ["[3, 8, 8]"]),
        ({"images": torch.zeros(0, 3, 8, 8, dtype=torch.uint8)}, ["no images"]),
        ({"images": torch.zeros(4, 8, 8, 3, dtype=torch.uint8).permute(0, 3, 1, 2)}, ["contiguous"]),
        ({"labels": torch.zeros(4, dtype=torch.int32)}, ["int32", "int64"]),
        ({"labels": torch.zeros(4, 1, dtype=torch.int64)}, ["[4, 1]"]),
        ({"labels": torch.zeros(3, dtype=torch.int64)}, ["3 labels for 4 images"]),
        ({"labels": torch.tensor([0, 1, 2, 0])}, ["from 0 to 2", "2 class names"]),
        ({"labels": torch.tensor([0, -2, 1, 0])}, ["from -2 to 1"]),
        ({"labels": torch.tensor([-1, -1, -1, -1])}, ["all labels are -1", "labels=None"]),
        ({"classes": ()}, ["0 class names"]),
    ],
)
def test_invalid_arrays_are_refused(changes, words, refused):
    refused(lambda: make(**changes), "'x'", *words)


def test_fingerprint_depends_on_pixels_shape_and_labels():
    images = make()
    print_ = images.fingerprint()
    assert len(print_) == 16
    assert print_ == replace(images, name="other", split="test").fingerprint()
    assert print_ == replace(images, labels=torch.tensor([0, 9, 1, 9, 0, 9, 1, 9])[::2]).fingerprint()  # not contiguous
    other = images.images.clone()
    other[3, 2, 7, 7] ^= 1
    flat = torch.zeros(4, 3, 4, 4, dtype=torch.uint8)
    prints = {
        print_,
        replace(images, images=other).fingerprint(),
        replace(images, labels=None).fingerprint(),
        replace(images, labels=1 - images.labels).fingerprint(),
        make(images=flat, labels=None).fingerprint(),
        make(images=flat.view(16, 3, 2, 2), labels=None).fingerprint(),
    }
    assert len(prints) == 6


def test_to_keeps_fields_and_cached_results():
    images = make(skipped=("a.png: empty file",))
    print_ = images.fingerprint()
    moved = images.to("cpu")
    assert moved.__dict__["_summary"] is images.__dict__["_summary"]
    assert moved.fingerprint() == print_
    assert moved.skipped == images.skipped
    assert torch.equal(moved.labels, images.labels)
    assert make(labels=None, classes=()).to("cpu").labels is None


@pytest.mark.gpu
def test_gpu_gives_the_same_numbers():
    images = make(70, 32)
    assert images.to("cuda").fingerprint() == images.fingerprint()
    assert images.to("cuda").statistics() == images.statistics()


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 130), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_statistics_against_numpy(count, size, seed):
    pixels = np.random.default_rng(seed).integers(0, 256, (count, 3, size, size), np.uint8)
    mean, std = make(images=torch.from_numpy(pixels), labels=None).statistics()
    exact = pixels.astype(np.float64) / 255
    assert mean == pytest.approx(exact.mean((0, 2, 3)), abs=1e-6)
    assert std == pytest.approx(np.maximum(exact.std((0, 2, 3)), 1 / 255), abs=1e-6)


def test_std_of_constant_images_is_positive():
    mean, std = make(images=torch.full((4, 3, 8, 8), 255, dtype=torch.uint8)).statistics()
    assert mean == (1.0, 1.0, 1.0)
    assert std == (1 / 255,) * 3
