"""Use of an encoder: images/s of embedding JPEG files and of decoding alone, seconds of a search and of dedupe."""

import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from aag import nets
from aag.bench.plan import Plan
from aag.bench.timing import measure, time_once, timed_row
from aag.serving.components import connect_similar
from aag.serving.embedder import Embedder
from aag.serving.options import DUPLICATE_COSINE
from aag.serving.search import find_nearest
from aag.serving.sources import ImageSource, open_source

JPEG_SIZE = (640, 480)
WIDTH = 128  # of embeddings
COPIES = 10  # every tenth row is a near copy


def run(plan: Plan) -> dict[str, Any]:
    return {
        "threads": plan.threads,
        "protocol": (
            f"embed: JPEGs of {JPEG_SIZE[0]}×{JPEG_SIZE[1]}, in the page cache, decoded on all cores; search: "
            "one query, embeddings loaded, on the CPU; dedupe: random unit rows, every tenth a near copy of another"
        ),
        "rows": [*_embed(plan), _search(plan), _dedupe(plan)],
    }


def _embed(plan: Plan) -> list[dict[str, Any]]:
    assert plan.photographs is not None
    settings = plan.photographs.training[0].settings
    network, size, stored = settings.encoder.network, settings.data.image_size, settings.data.resize_size
    spec = nets.EncoderSpec(network, image_size=size or 32, resize_size=stored)
    encoder = nets.build(spec).to(plan.device).eval()
    count, rows = plan.embed_images, []
    with tempfile.TemporaryDirectory(prefix="aag-bench-") as folder:
        _write_jpegs(plan, Path(folder))
        source = open_source(folder, spec.source_size)
        decoding = measure(
            lambda: _decode_all(Embedder(encoder), source), repeats=plan.linear_repeats, warm_up=plan.warm_up
        )
        size_text = f"{count:,} JPEGs to {spec.source_size} px"
        rows.append(timed_row("decoding alone", size_text, decoding, count, "images"))
        for precision in ("fp32", "bf16") if plan.cuda else ("fp32",):
            embedder = Embedder(encoder, precision=precision)
            timing = measure(
                lambda embedder=embedder: embedder.embed_all(source),  # type: ignore[misc]
                repeats=plan.linear_repeats,
                warm_up=plan.warm_up,
                device=plan.device,
            )
            name = f"embed, {network}, {precision}"
            share = decoding.median / timing.median
            rows.append(timed_row(name, size_text, timing, count, "images", share_of_decoding=share))
    return rows


def _write_jpegs(plan: Plan, folder: Path) -> None:
    for i, image in enumerate(plan.images(plan.embed_images)):
        picture = Image.fromarray(image.permute(1, 2, 0).numpy()).resize(JPEG_SIZE, Image.Resampling.BICUBIC)
        picture.save(folder / f"{i:05d}.jpg", quality=90)


def _decode_all(embedder: Embedder, source: ImageSource) -> None:
    for _ in embedder.batches(source, range(len(source))):
        pass


def _search(plan: Plan) -> dict[str, Any]:
    rows = _unit_rows(plan.search_rows, torch.device("cpu"))
    timing = measure(lambda: find_nearest(rows, rows[:1], 12), repeats=plan.repeats, warm_up=plan.warm_up)
    return timed_row("search, 12 nearest", f"{plan.search_rows:,} × {WIDTH}, CPU", timing, 1, "queries")


def _dedupe(plan: Plan) -> dict[str, Any]:
    rows = _unit_rows(plan.dedupe_rows, plan.device)
    noise = torch.randn(len(rows[::COPIES]), WIDTH, device=plan.device)
    rows[::COPIES] = F.normalize(rows[1::COPIES] + 0.005 * noise, dim=1)
    connect_similar(rows[:1000], DUPLICATE_COSINE)  # sets up the device
    seconds = time_once(lambda: connect_similar(rows, DUPLICATE_COSINE), plan.device)
    size = f"{plan.dedupe_rows:,} × {WIDTH}"
    return {
        "name": "dedupe",
        "size": size,
        "median_seconds": seconds,
        "per_second": len(rows) / seconds,
        "of": "images",
    }


def _unit_rows(count: int, device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return F.normalize(torch.randn(count, WIDTH, generator=generator), dim=1).to(device)
