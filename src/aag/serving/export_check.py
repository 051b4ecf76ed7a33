"""Check that an exported encoder gives the same features and embeddings, for several batch sizes."""

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from aag import data
from aag.errors import AAGError, first_line
from aag.nets import Encoder

BATCH_SIZES = (1, 3, 16)
TOLERANCE = 1e-3  # relative to the largest value; float32 sums in another order reach 1e-5


@torch.no_grad()
def check_outputs(encoder: Encoder, exported: Callable[[Tensor], Sequence[Tensor]], format: str) -> dict[str, float]:
    """Compare with the encoder on random and real images, in batches of several sizes; raise where they differ."""
    largest = {"features": 0.0, "embedding": 0.0}
    for images in _check_images(encoder):
        for count in BATCH_SIZES:
            batch = images[:count].contiguous()
            try:
                found = exported(batch)
            except Exception as error:  # runtimes raise anything
                raise export_error(encoder, format, error) from error
            for name, ours, theirs in zip(largest, encoder.encode(batch), found, strict=True):
                has_shape = ours.shape == theirs.shape
                difference = (ours - theirs).abs().max().item() if has_shape else float("inf")
                if not difference <= TOLERANCE * max(1.0, ours.abs().max().item()):
                    raise AAGError(
                        f"{encoder.spec.network} as {format} differs from PyTorch by {difference:.2g} in its {name} "
                        f"(batch of {count}), so nothing is written; use another --format"
                    )
                largest[name] = max(largest[name], difference)
    return largest


def _check_images(encoder: Encoder) -> Iterator[Tensor]:
    """Yield random pixels, then photographs, uint8 [16, C, S, S]."""
    count, channels, size = max(BATCH_SIZES), encoder.spec.channels, encoder.spec.image_size
    generator = torch.Generator().manual_seed(0)
    yield torch.randint(0, 256, (count, channels, size, size), dtype=torch.uint8, generator=generator)
    photographs = data.load("sample", split="test", limit=count).images.float()
    photographs = interpolate(photographs, (size, size), mode="bilinear", antialias=True).round().clamp(0, 255).byte()
    yield photographs if channels == 3 else photographs[:, :1].expand(-1, channels, -1, -1)


def load_source(path: Path) -> nn.Module:
    """Run a written load_encoder.py, and return the encoder that it loads."""
    namespace: dict[str, Any] = {"__name__": "load_encoder", "__file__": str(path)}
    exec(compile(path.read_text(encoding="utf-8"), path.name, "exec"), namespace)
    return namespace["load_encoder"]()


def export_error(encoder: Encoder, format: str, error: Exception) -> AAGError:
    return AAGError(f"cannot export {encoder.spec.network} as {format}: {first_line(error)[:200]}")


@contextmanager
def silence() -> Iterator[None]:
    """Hide the log messages, warnings and output of exporters."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
