"""`ImageSet`: the type that every source of images is loaded into."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from aag.errors import AAGError
from aag.text import pluralize

_CHUNK = 64  # images per partial sum


@dataclass(frozen=True, eq=False, repr=False)  # eq=False: == on tensors is elementwise
class ImageSet:
    """Images of one split: uint8 [N, C, H, W] with labels int64 [N] and their class names, or without labels.

    C may be any number of channels; what is decoded from files has 3. Images are square (H = W), because the networks
    and the augmentations expect squares. `skipped` has one line "path: reason" per file that could not be read.
    `names` are the files' paths relative to their folder, one per image; empty where images do not come from files.
    """

    name: str
    images: torch.Tensor
    labels: torch.Tensor | None = None
    classes: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    split: str = "train"
    names: Sequence[str] = ()

    def __post_init__(self) -> None:
        images, labels, who = self.images, self.labels, f"image set {self.name!r} ({self.split})"
        if not isinstance(images, torch.Tensor) or images.dtype != torch.uint8:
            raise AAGError(f"{who}: images are {_kind(images)}, expected a tensor of torch.uint8 with values 0..255")
        if images.ndim != 4 or images.shape[2] != images.shape[3]:
            raise AAGError(f"{who}: images have the shape {list(images.shape)}, expected squares [N, C, S, S]")
        if not images.numel():
            raise AAGError(f"{who}: it contains no images")
        if not images.is_contiguous():
            raise AAGError(f"{who}: images are not contiguous; call .contiguous() on them first")
        if self.names and len(self.names) != len(images):
            raise AAGError(f"{who}: {len(self.names)} names for {len(images)} images; one name per image is needed")
        if labels is None:
            return
        if not isinstance(labels, torch.Tensor) or labels.dtype != torch.int64 or labels.ndim != 1:
            raise AAGError(f"{who}: labels are {_kind(labels)}, expected a tensor of torch.int64 [N]")
        if len(labels) != len(images):
            raise AAGError(f"{who}: {len(labels)} labels for {len(images)} images; one label per image is needed")
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= len(self.classes):
            raise AAGError(f"{who}: labels lie in {low}..{high}, but there are {len(self.classes)} class names")

    def __repr__(self) -> str:
        size = f"{self.channels}×{self.image_size}×{self.image_size}"
        labels = "no labels" if self.labels is None else f"{len(self.classes)} class{'es' * (len(self.classes) != 1)}"
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
        """Return a short hash of the pixels and labels, which records cite."""
        return self._fingerprint

    def statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return the per-pixel mean and standard deviation of each channel, on a scale of 0 to 1.

        The deviation is at least one grey level, so that dividing by it is safe for constant images.
        """
        return self._statistics

    def to(self, device: torch.device | str) -> "ImageSet":
        """Return the same set with its tensors on another device."""
        labels = None if self.labels is None else self.labels.to(device)
        moved = replace(self, images=self.images.to(device), labels=labels)
        # The pixels are the same, so cached results stay valid.
        for cached in ("_fingerprint", "_statistics"):
            if cached in self.__dict__:
                moved.__dict__[cached] = self.__dict__[cached]
        return moved

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.sha256(str(tuple(self.images.shape)).encode())
        digest.update(self.images.cpu().numpy().data)
        if self.labels is not None:
            digest.update(self.labels.cpu().numpy().data)
        return digest.hexdigest()[:16]

    @cached_property
    def _statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        # Sums are float32 within one plane of one image and float64 over planes, so they do not depend on the chunks.
        # NumPy on small chunks stays in the cache and needs no threads: ten times faster than torch on busy cores.
        sums = np.zeros((2, self.channels))
        for chunk in self.images.split(_CHUNK):
            planes = chunk.cpu().numpy().reshape(len(chunk), self.channels, -1).astype(np.float32)
            sums += (
                planes.sum(2).sum(0, dtype=np.float64),
                np.einsum("nci,nci->nc", planes, planes).sum(0, dtype=np.float64),
            )
        mean, square = sums / (len(self.images) * self.image_size**2)
        std = np.sqrt(np.maximum(square - mean**2, 1.0))
        return tuple((mean / 255).tolist()), tuple((std / 255).tolist())


def _kind(value: object) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
