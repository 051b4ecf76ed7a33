"""Sums and hashes of pixels, from which statistics and fingerprints need no further pass over the images."""

import hashlib
from dataclasses import dataclass, field
from typing import IO

import numpy as np

_CHUNK = 64  # images per partial sum: they stay in the CPU's cache


@dataclass
class PixelSummary:
    """A running summary of images [N, C, S, S] that are added in order. It does not depend on the chunk sizes.

    `sums` [2, C]: of the values and of their squares. `digest`: a hash chain over the images. Both are small, so an
    interrupted process can save and continue them.
    """

    count: int = 0
    sums: np.ndarray = field(default_factory=lambda: np.zeros((2, 1)))
    digest: bytes = b""

    def add(self, chunk: "ChunkSummary") -> None:
        self.count += len(chunk.digests)
        self.sums = self.sums + chunk.sums
        for digest in chunk.digests:
            self.digest = _hash(self.digest + digest)


@dataclass(frozen=True)
class ChunkSummary:
    """The sums [2, C] of a few images, and the hash of each image."""

    sums: np.ndarray
    digests: list[bytes]


def summarize_chunk(images: np.ndarray) -> ChunkSummary:
    """Summarize uint8 images [N, C, S, S].

    Sums are float32 within one plane of one image and float64 over planes. There they are whole numbers below 2**53,
    so the result does not depend on the chunks.
    """
    sums = np.zeros((2, images.shape[1]))
    for start in range(0, len(images), _CHUNK):
        part = images[start : start + _CHUNK]
        planes = part.reshape(len(part), part.shape[1], -1).astype(np.float32)
        sums += (
            planes.sum(2).sum(0, dtype=np.float64),
            np.einsum("nci,nci->nc", planes, planes).sum(0, dtype=np.float64),
        )
    return ChunkSummary(sums, [_hash(np.ascontiguousarray(image).data) for image in images])


def summarize(images: np.ndarray) -> PixelSummary:
    """Summarize uint8 images [N, C, S, S] of any number."""
    summary = PixelSummary()
    for start in range(0, len(images), _CHUNK):
        summary.add(summarize_chunk(images[start : start + _CHUNK]))
    return summary


def image_hashes(images: np.ndarray) -> np.ndarray:
    """Return a hash uint64 [N] of the pixels of each image."""
    return np.array([content_hash(np.ascontiguousarray(image).data) for image in images], np.uint64)


def content_hash(content: bytes | memoryview) -> int:
    """Return a 64-bit hash."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def file_hash(file: IO[bytes]) -> int:
    """Return `content_hash` of a file, which may be larger than the memory."""
    digest = hashlib.blake2b(digest_size=8)
    while block := file.read(1 << 20):
        digest.update(block)
    return int.from_bytes(digest.digest(), "little")


def _hash(content: bytes | memoryview) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()
