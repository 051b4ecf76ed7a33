"""`ImageSet`: the type that every source of images is loaded into."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from aag.data.summary import PixelSummary, summarize
from aag.errors import AAGError, describe
from aag.text import pluralize

if TYPE_CHECKING:
    from aag.data.early import Decoding


@dataclass(frozen=True, eq=False, repr=False)  # eq=False: == on tensors is elementwise
class ImageSet:
    """Images of one split: uint8 [N, C, H, W] with labels int64 [N] and their class names, or without labels.

    Images of a folder are memory-mapped copy-on-write. Images with the label −1 have none: training uses them,
    evaluation leaves them out.

    C may be any number of channels; images from files have 3. Images are square (H = W), because the networks and the
    augmentations expect squares. `skipped` has one line "path: reason" per file that could not be read. `names` are the
    files' paths relative to their folder, one per image; empty if images do not come from files. `decoding` (with
    --start-early) says which images may be read while others are decoded. Then the statistics and the fingerprint are
    those of the first block of images.
    """

    name: str
    images: torch.Tensor
    labels: torch.Tensor | None = None
    classes: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    split: str = "train"
    names: Sequence[str] = ()
    decoding: "Decoding | None" = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not isinstance(self.split, str):
            raise AAGError(
                f"an image set's name and split must be strings, not {describe(self.name)} and {describe(self.split)}"
            )
        images, labels, who = self.images, self.labels, f"image set {self.name!r} ({self.split})"
        if not isinstance(images, torch.Tensor) or images.dtype != torch.uint8:
            raise AAGError(f"{who}: images are {_kind(images)}, expected a tensor of torch.uint8 with values 0..255")
        check_dense(f"{who}: images", images)
        if images.ndim != 4 or images.shape[2] != images.shape[3]:
            raise AAGError(f"{who}: images have the shape {list(images.shape)}, expected squares [N, C, S, S]")
        if not images.numel():
            raise AAGError(f"{who}: it contains no images")
        if not images.is_contiguous():
            raise AAGError(f"{who}: images are not contiguous; call .contiguous() on them first")
        for name in ("classes", "skipped", "names"):
            if not isinstance(value := getattr(self, name), Sequence) or isinstance(value, str | bytes):
                raise AAGError(f"{who}: {name} must be a list of strings, not {describe(value)}")
        if self.names and len(self.names) != len(images):
            raise AAGError(f"{who}: {len(self.names)} names for {len(images)} images; one name per image is needed")
        if labels is None:
            return
        if not isinstance(labels, torch.Tensor) or labels.dtype != torch.int64 or labels.ndim != 1:
            raise AAGError(f"{who}: labels are {_kind(labels)}, expected a tensor of torch.int64 [N]")
        if len(labels) != len(images):
            raise AAGError(f"{who}: {len(labels)} labels for {len(images)} images; one label per image is needed")
        low, high = int(labels.min()), int(labels.max())
        if low < -1 or high >= len(self.classes):
            raise AAGError(f"{who}: labels range from {low} to {high}, but there are {len(self.classes)} class names")
        if high < 0:
            raise AAGError(f"{who}: all labels are -1; for images without labels give labels=None")

    def __repr__(self) -> str:
        size = f"{self.channels}×{self.image_size}×{self.image_size}"
        labels = "no labels" if self.labels is None else pluralize(len(self.classes), "class", "classes")
        return f"ImageSet({self.name!r}, {self.split}, {pluralize(len(self), 'image')} of {size}, {labels})"

    def __len__(self) -> int:
        return len(self.images)

    @property
    def channels(self) -> int:
        """Number of channels."""
        return self.images.shape[1]

    @property
    def image_size(self) -> int:
        """Side of the square images, in pixels."""
        return self.images.shape[2]

    def fingerprint(self) -> str:
        """Return a short hash of the pixels and labels, by which checkpoints identify them."""
        digest = hashlib.sha256(str(tuple(self.images.shape)).encode() + self._summary.digest)
        if self.labels is not None:
            digest.update(self.labels.cpu().contiguous().numpy().data)
        return digest.hexdigest()[:16]

    def statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return the per-pixel mean and standard deviation of each channel, on a scale of 0 to 1.

        The standard deviation is at least one grey level, so that dividing by it is safe for constant images.
        """
        mean, square = self._summary.sums / (self._summary.count * self.image_size**2)
        std = np.sqrt(np.maximum(square - mean**2, 1.0))
        return tuple((mean / 255).tolist()), tuple((std / 255).tolist())

    def to(self, device: torch.device | str) -> "ImageSet":
        """Return the same set with its tensors on another device."""
        labels = None if self.labels is None else self.labels.to(device)
        moved = replace(self, images=self.images.to(device), labels=labels)
        if "_summary" in self.__dict__:  # the pixels are the same
            moved.__dict__["_summary"] = self._summary
        return moved

    def labelled(self) -> torch.Tensor:
        """Return the indices int64 [M] of the images that have a label."""
        if self.labels is None:
            return torch.zeros(0, dtype=torch.int64)
        return (self.labels >= 0).nonzero()[:, 0]

    def with_summary(self, summary: PixelSummary | None) -> "ImageSet":
        """Store a known summary of the pixels, so that it need not be computed, and return this set."""
        if summary is not None:
            self.__dict__["_summary"] = summary
        return self

    @cached_property
    def _summary(self) -> PixelSummary:
        return summarize(self.images.cpu().numpy())


def check_dense(what: str, images: torch.Tensor) -> None:
    """Raise for a sparse tensor and for one without data."""
    if images.layout != torch.strided or images.is_meta:
        raise AAGError(f"{what} are {images.layout} on {images.device}; give a dense tensor on a CPU or GPU")


def _kind(value: object) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
