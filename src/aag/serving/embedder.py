"""Embed images: decode them ahead in parallel, and encode them in batches of one shape.

The last batch is padded. So on one machine, the embedding of a file does not depend on the other files or their order,
bit by bit.
"""

import hashlib
import io
import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image

from aag import __version__, nets
from aag.data.decode import UnreadableImageError, ignore_warnings, resize_square
from aag.data.parallel_decode import Chunk, open_decoder
from aag.data.store import ProgressCallback
from aag.errors import AAGError
from aag.nets import Encoder
from aag.provenance import core_count
from aag.serving.sources import ImageSource
from aag.serving.table import EmbeddingTable, concatenate
from aag.settings import Precision
from aag.text import printable
from aag.training.runtime import choose_precision, choose_threads, find_device

PIECE_SIZE = 16  # images per decoding job; a batch is made of whole pieces
PART_IMAGES, PART_SECONDS = 8192, 20.0  # a part ends after this many images or seconds
THUMBNAIL_QUALITY = 85

Model = str | os.PathLike[str] | Encoder
DecodeCall = Callable[[Path, list[str], int], Chunk]  # folder, files in it, size


@dataclass(frozen=True)
class Piece:
    """Decoded images: uint8 [n, C, S, S], zeros where a file cannot be read, which `failures` explains."""

    images: torch.Tensor
    failures: dict[int, str]
    thumbnails: list[bytes]


class Embedder:
    """An encoder with the settings for embedding files.

    precision: fp32 (without TF32), or bf16, which needs a GPU, is faster and less precise.
    decode: gpu decodes JPEGs with nvJPEG; its pixels differ slightly from Pillow's.
    """

    def __init__(
        self,
        model: Model,
        *,
        device: str = "auto",
        precision: Precision = "fp32",
        decode: Literal["cpu", "gpu"] = "cpu",
    ) -> None:
        if isinstance(model, Encoder):
            self.encoder, self.device = model, model.mean.device
        else:
            self.device = find_device(device)
            choose_threads(self.device)
            self.encoder = nets.load(model, device=self.device)
        self.precision = choose_precision(self.device, precision)
        self.decode = decode
        if decode == "gpu" and self.device.type != "cuda":
            raise AAGError("--decode gpu needs a GPU; use --decode cpu")
        self.encoder.to(memory_format=torch.channels_last)
        self.spec = self.encoder.spec
        self.size = self.spec.source_size
        self.model_hash = hash_model(self.encoder)
        self.batch_size = _batch_size(self.device, self.spec.image_size)

    def metadata(self, source: ImageSource) -> dict[str, str]:
        """Return the metadata of an embedding table: model, settings, version and source."""
        return {
            "model": self.model_hash,
            "network": self.spec.network,
            "image_size": str(self.spec.image_size),
            "source_size": str(self.size),
            "precision": self.precision,
            "decode": self.decode,
            "version": __version__,
            "source": source.source,
        }

    def embed(
        self,
        source: ImageSource,
        indices: range | None = None,
        *,
        features: bool = False,
        thumbnails: int = 0,
        on_progress: ProgressCallback | None = None,
    ) -> Iterator[tuple[range, EmbeddingTable, list[str]]]:
        """Yield parts (indices, table, skipped files) of some thousand images each, in order.

        thumbnails: side of JPEG thumbnails in pixels; 0: none.
        """
        if self.spec.channels != 3 and source.paths:
            raise AAGError(f"this encoder takes images of {self.spec.channels} channels; files are read as 3 (RGB)")
        indices = range(len(source)) if indices is None else indices
        labels = source.labels()
        part = _Part(indices.start, features=features, thumbnails=bool(thumbnails))
        started = time.monotonic()
        for batch, pieces in self.batches(source, indices, thumbnails):
            part.add(*self._encode(torch.cat([piece.images for piece in pieces])), batch, pieces)
            if on_progress:
                on_progress(batch.stop - indices.start, len(indices))
            full = len(part) >= PART_IMAGES or time.monotonic() - started >= PART_SECONDS
            if full or batch.stop == indices.stop:
                yield range(part.start, batch.stop), *part.finish(source, labels, self.metadata(source))
                part = _Part(batch.stop, features=features, thumbnails=bool(thumbnails))
                started = time.monotonic()

    def embed_all(self, source: ImageSource, **options: Any) -> tuple[EmbeddingTable, list[str]]:
        """Return a table of all images, and a list of the files that could not be read."""
        with ignore_warnings():
            parts = list(self.embed(source, **options))
        skipped = [*source.skipped, *(line for _, _, lines in parts for line in lines)]
        table = concatenate([table for _, table, _ in parts])
        if not len(table):
            raise AAGError(f"no readable image in {source.source}: {skipped[0]}")
        return table, skipped

    def _encode(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        count = len(images)
        if count < self.batch_size:
            images = torch.cat([images, images.new_zeros(self.batch_size - count, *images.shape[1:])])
        if self.device.type == "cuda" and not images.is_cuda:
            images = images.pin_memory().to(self.device, non_blocking=True)
        dtype = torch.bfloat16 if self.precision == "bf16" else None
        # One algorithm for every batch, and no TF32, which would round inputs to 10 bits.
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
            features, embeddings = self.encoder.encode(images, batch_size=self.batch_size, dtype=dtype)
        return features[:count], embeddings[:count]

    def batches(self, source: ImageSource, indices: range, thumbnails: int = 0) -> Iterator[tuple[range, list[Piece]]]:
        """Yield batches of decoded pieces. At most two batches, or four pieces per core, are decoded ahead."""
        files = len(indices) if source.paths and self.decode == "cpu" else 0
        with open_decoder(files) as decode:
            yield from self._batches(source, indices, thumbnails, decode)

    def _batches(
        self, source: ImageSource, indices: range, thumbnails: int, decode: DecodeCall
    ) -> Iterator[tuple[range, list[Piece]]]:
        starts = iter(range(indices.start, indices.stop, PIECE_SIZE))
        cores = core_count()
        waiting: deque[Future[Piece]] = deque()
        pool = ThreadPoolExecutor(cores)

        def submit() -> None:
            start = next(starts, None)
            if start is not None:
                rows = range(start, min(start + PIECE_SIZE, indices.stop))
                waiting.append(pool.submit(self._decode, source, rows, thumbnails, decode))

        try:
            for _ in range(max(4 * cores, 2 * self.batch_size // PIECE_SIZE)):
                submit()
            start, pieces = indices.start, []
            while waiting:
                pieces.append(waiting.popleft().result())
                submit()
                if len(pieces) * PIECE_SIZE == self.batch_size or not waiting:
                    stop = start + sum(len(piece.images) for piece in pieces)
                    yield range(start, stop), pieces
                    start, pieces = stop, []
        finally:  # Ctrl-C must not wait for what is queued
            pool.shutdown(wait=False, cancel_futures=True)

    def _decode(self, source: ImageSource, rows: range, thumbnails: int, decode: DecodeCall) -> Piece:
        if self.decode == "gpu" and source.paths:
            from aag.serving.gpu_decode import decode_batch

            images, failures = decode_batch([Path(source.paths[i]) for i in rows], self.size, self.device)
        else:
            images, failures = self._decode_on_cpu(source, rows, decode)
        return Piece(images, failures, _thumbnails(source, rows, images, failures, thumbnails) if thumbnails else [])

    def _decode_on_cpu(
        self, source: ImageSource, rows: range, decode: DecodeCall
    ) -> tuple[torch.Tensor, dict[int, str]]:
        if source.paths:
            chunk = decode(Path(), [source.paths[i] for i in rows], self.size)
            if not chunk.failures:
                return torch.from_numpy(chunk.images), {}
            images = np.zeros((len(rows), 3, self.size, self.size), np.uint8)
            images[[position for position in range(len(rows)) if position not in chunk.failures]] = chunk.images
            return torch.from_numpy(images), chunk.failures
        pixels = np.stack([source.load(i, self.size) for i in rows])
        return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous(), {}


class _Part:
    """Rows of a table that grows batch by batch. Tensors stay on the device until it is finished."""

    def __init__(self, start: int, *, features: bool, thumbnails: bool) -> None:
        self.start, self.features, self.thumbnails = start, features, thumbnails
        self.batches: list[tuple[torch.Tensor, torch.Tensor | None]] = []
        self.rows: list[int] = []  # indices of the readable images
        self.positions: list[int] = []  # of these images in the part
        self.jpegs: list[bytes] = []
        self.failures: dict[int, str] = {}
        self.count = 0

    def __len__(self) -> int:
        return self.count

    def add(self, features: torch.Tensor, embeddings: torch.Tensor, batch: range, pieces: list[Piece]) -> None:
        self.batches.append((embeddings, features if self.features else None))
        index = batch.start
        for piece in pieces:
            for position in range(len(piece.images)):
                if position in piece.failures:
                    self.failures[index] = piece.failures[position]
                else:
                    self.rows.append(index)
                    self.positions.append(self.count)
                    self.jpegs += piece.thumbnails[position : position + 1]
                index, self.count = index + 1, self.count + 1

    def finish(
        self, source: ImageSource, labels: list[str] | None, metadata: dict[str, str]
    ) -> tuple[EmbeddingTable, list[str]]:
        readable = torch.tensor(self.positions, dtype=torch.int64)
        embeddings = torch.cat([each for each, _ in self.batches]).cpu()[readable]
        features = torch.cat([each for _, each in self.batches if each is not None]).cpu() if self.features else None
        table = EmbeddingTable(
            [source.names[i] for i in self.rows],
            embeddings,
            None if features is None else features[readable],
            self.jpegs if self.thumbnails else None,
            {} if labels is None else {"label": [labels[i] for i in self.rows]},
            metadata,
        )
        return table, [f"{printable(source.names[i])}: {reason}" for i, reason in self.failures.items()]


def hash_model(encoder: Encoder) -> str:
    """Return a short hash of an encoder's description and weights, the same on every device."""
    spec = {name: value for name, value in asdict(replace(encoder.spec, bn_group_size=0)).items() if value is not None}
    digest = hashlib.sha256(json.dumps(spec, sort_keys=True).encode())
    for name, tensor in sorted(encoder.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def _batch_size(device: torch.device, image_size: int) -> int:
    """Return a small batch size on a CPU, where a single query is padded to a batch, and a large one on a GPU."""
    if device.type == "cpu":
        return PIECE_SIZE
    return max(PIECE_SIZE, min(1024, 2**23 // image_size**2 // PIECE_SIZE * PIECE_SIZE))


def _thumbnails(
    source: ImageSource, rows: range, images: torch.Tensor, failures: dict[int, str], size: int
) -> list[bytes]:
    """Return JPEGs of the images; empty for those that failed. Decoded pixels are used if they are large enough."""
    decoded = images.permute(0, 2, 3, 1).cpu().numpy() if images.shape[2] >= size else None
    found = []
    for position, index in enumerate(rows):
        out = io.BytesIO()
        with suppress(UnreadableImageError):  # a file may be gone meanwhile
            if position not in failures:
                pixels = source.load(index, size) if decoded is None else resize_square(decoded[position], size)
                picture = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
                picture.save(out, "JPEG", quality=THUMBNAIL_QUALITY)
        found.append(out.getvalue())
    return found
