"""The one type that every source of images ends in."""

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from aag.data.known import Triple
from aag.errors import AAGError

_CHUNK = 64  # images per step of a sum


@dataclass(frozen=True, eq=False)  # eq=False: comparing tensors elementwise is no answer to "the same set?"
class ImageSet:
    """Images without loss: uint8 [N,3,S,S], labels int64 [N] or none, and the names behind the labels.

    `skipped` holds one "path: reason" line for each file that could not be used.
    """

    name: str
    images: torch.Tensor
    labels: torch.Tensor | None
    classes: tuple[str, ...]
    skipped: tuple[str, ...] = ()
    split: str = "train"

    def __post_init__(self) -> None:
        images, labels, who = self.images, self.labels, f"image set {self.name!r} ({self.split})"
        if images.dtype != torch.uint8:
            raise AAGError(f"{who}: images are {images.dtype}, expected torch.uint8")
        if images.ndim != 4 or images.shape[1] != 3 or images.shape[2] != images.shape[3]:
            raise AAGError(f"{who}: images have the shape {list(images.shape)}, expected [N, 3, S, S]")
        if not len(images) or not images.shape[2]:
            raise AAGError(f"{who}: there are no images in it")
        if not images.is_contiguous():
            raise AAGError(f"{who}: images are not contiguous; call .contiguous() on them first")
        if labels is None:
            return
        if labels.dtype != torch.int64 or labels.ndim != 1:
            raise AAGError(f"{who}: labels are {labels.dtype} {list(labels.shape)}, expected torch.int64 [N]")
        if len(labels) != len(images):
            raise AAGError(f"{who}: {len(labels)} labels for {len(images)} images; one label per image is needed")
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= len(self.classes):
            raise AAGError(f"{who}: labels lie in {low}..{high}, but there are {len(self.classes)} class names")

    def __len__(self) -> int:
        return len(self.images)

    @property
    def image_size(self) -> int:
        """The side of the square images, in pixels."""
        return self.images.shape[2]

    def fingerprint(self) -> str:
        """A short name for exactly these pixels and labels: what a record of a run cites."""
        return self._fingerprint

    def statistics(self) -> tuple[Triple, Triple]:
        """Per-pixel mean and standard deviation of each channel, on a scale of 0 to 1.

        The deviation is never below one grey level, so that constant images can be divided by it.
        """
        return self._statistics

    def to(self, device: torch.device | str) -> "ImageSet":
        """The same set with its tensors on another device."""
        labels = None if self.labels is None else self.labels.to(device)
        moved = replace(self, images=self.images.to(device), labels=labels)
        # The pixels are the same: what was worked out about them goes along.
        for known in ("_fingerprint", "_statistics"):
            if known in self.__dict__:
                moved.__dict__[known] = self.__dict__[known]
        return moved

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.sha256(str(tuple(self.images.shape)).encode())
        digest.update(self.images.cpu().numpy().data)
        if self.labels is not None:
            digest.update(self.labels.cpu().numpy().data)
        return digest.hexdigest()[:16]

    @cached_property
    def _statistics(self) -> tuple[Triple, Triple]:
        # float32 within a plane of one image, float64 over them: the same however the set is cut up. numpy on small
        # chunks stays in the cache and needs no threads: ten times faster than torch where cores are few or busy.
        sums = np.zeros((2, 3))
        for chunk in self.images.split(_CHUNK):
            planes = chunk.cpu().numpy().reshape(len(chunk), 3, -1).astype(np.float32)
            sums += (
                planes.sum(2).sum(0, dtype=np.float64),
                np.einsum("nci,nci->nc", planes, planes).sum(0, dtype=np.float64),
            )
        mean, square = sums / (len(self.images) * self.image_size**2)
        std = np.sqrt(np.maximum(square - mean**2, 1.0))
        return tuple((mean / 255).tolist()), tuple((std / 255).tolist())
