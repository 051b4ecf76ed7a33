"""Hold out labelled training images for evaluation, in place of a test split."""

from dataclasses import replace

import numpy as np
import torch

from aag.data.arrays import select_indices
from aag.data.imageset import ImageSet
from aag.data.summary import image_hashes
from aag.errors import AAGError, describe


def check_holdout(fraction: float | None) -> None:
    """Raise for a fraction that is out of range."""
    if fraction is not None and not (isinstance(fraction, float) and 0 < fraction <= 0.5):
        raise AAGError(f"holdout is {describe(fraction)}, expected a fraction above 0 and at most 0.5, such as 0.1")


def choose_held_out(hashes: np.ndarray, labels: np.ndarray, fraction: float) -> np.ndarray:
    """Return a mask [N] of the images to hold out, by their content hashes uint64 [N] and labels int64 [N].

    An image is held out if its hash is below `fraction` of the hash range. So the choice does not depend on names or on
    other images, and duplicates stay together. Each class with two different images has at least one in each split.
    Images without a label (−1) are never held out.
    """
    below = hashes < np.uint64(fraction * 2**64)
    order = np.lexsort((hashes, labels))
    added, removed = [], []
    for own in np.split(order, np.flatnonzero(np.diff(labels[order])) + 1):
        if labels[own[0]] < 0:
            continue
        lowest, highest = hashes[own[0]], hashes[own[-1]]
        if not below[own[0]] and lowest != highest:
            added.append(lowest)
        elif below[own[-1]]:
            removed.append(highest)
    held_out = (below | np.isin(hashes, added)) & ~np.isin(hashes, removed) & (labels >= 0)
    if not held_out.any():
        raise AAGError("no class has two different images, so none can be held out; leave out --holdout")
    return np.asarray(held_out)


def hold_out(images: ImageSet, fraction: float, limit: int | None = None) -> tuple[ImageSet, ImageSet]:
    """Split labelled images in memory into training and test images, by a hash of their pixels.

    limit: number of images to keep of each.
    """
    if images.labels is None:
        raise NoLabelsError(images.name)
    held_out = choose_held_out(image_hashes(images.images.cpu().numpy()), images.labels.cpu().numpy(), fraction)
    splits = (np.flatnonzero(chosen) for chosen in (~held_out, held_out))
    train, test = (_take(images, index[select_indices(len(index), limit)]) for index in splits)
    return train, replace(test, split="test", skipped=())


class NoLabelsError(AAGError):
    """A holdout was asked for, and the images have no labels."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} has no labels, which --holdout needs; leave out --holdout, or add class folders")


def _take(images: ImageSet, index: np.ndarray) -> ImageSet:
    chosen = torch.from_numpy(index)
    labels = None if images.labels is None else images.labels[chosen.to(images.labels.device)]
    names = [images.names[i] for i in index] if images.names else ()
    return replace(images, images=images.images[chosen.to(images.images.device)], labels=labels, names=names)
