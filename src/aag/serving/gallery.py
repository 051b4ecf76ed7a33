"""The images of a report, with their embeddings: all images of a run, or a sample."""

import io
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from aag.data import ImageSet, TrainTestSets
from aag.errors import AAGError
from aag.nets import Encoder
from aag.pages.map import tile_side
from aag.rng import permutation

CHUNK_PIXELS = 2**20
MIN_IMAGES = 500  # encoded even on a slow machine
NO_LABEL = -1


@dataclass(frozen=True)
class Gallery:
    """N images of a run, in the order of their sets: training images, then test images."""

    names: list[str]
    embeddings: Tensor  # [N, D] unit rows, on the encoder's device
    pictures: np.ndarray  # uint8 [N, T, T, 3]
    labels: Tensor  # int64 [N] on the CPU; -1 where there is none
    classes: tuple[str, ...]
    is_test: Tensor  # bool [N] on the CPU
    total: int  # images of the run; more than N where these are a sample

    def __len__(self) -> int:
        return len(self.names)

    def label(self, row: int) -> str:
        """Return the class of an image; empty where it has none."""
        number = int(self.labels[row])
        return self.classes[number] if number >= 0 else ""


def make_gallery(
    encoder: Encoder,
    sets: TrainTestSets,
    *,
    points: int,
    seconds: float,
    dtype: torch.dtype | None = None,
) -> Gallery:
    """Encode up to `points` images of the train and test sets. Stop early after `seconds`, but not before 500 images.

    The images are drawn at random with a fixed seed. They are read in chunks, because they may be memory-mapped.
    """
    image_sets = [each for each in sets if each is not None]
    sizes = [len(each) for each in image_sets]
    offsets = [sum(sizes[:number]) for number in range(len(sizes))]
    order = permutation(0, 0, sum(sizes))[:points]
    tile = tile_side(image_sets[0].image_size)
    chunk = max(16, CHUNK_PIXELS // image_sets[0].image_size ** 2)
    embeddings, pictures, done, started = [], [], 0, time.monotonic()
    for part in order.split(chunk):
        images = torch.empty(len(part), *image_sets[0].images.shape[1:], dtype=torch.uint8)
        for each, offset in zip(image_sets, offsets, strict=True):
            from_set = (part >= offset) & (part < offset + len(each))
            images[from_set] = each.images[(part[from_set] - offset).to(each.images.device)].cpu()
        embeddings.append(encoder.encode(images, dtype=dtype)[1])
        pictures.append(to_pictures(images, tile))
        done += len(part)
        if done >= MIN_IMAGES and time.monotonic() - started > seconds:
            break
    if not all(part.isfinite().all() for part in embeddings):
        raise AAGError("the encoder's embeddings hold NaN or infinity; train again with a lower --lr")
    sort = order[:done].argsort()
    chosen = order[sort]
    is_test = chosen >= sizes[0]
    described = [_describe(image_sets, offsets, int(index)) for index in chosen]
    return Gallery(
        [name for name, _ in described],
        torch.cat(embeddings)[sort.to(embeddings[0].device)],
        np.concatenate(pictures)[sort.numpy()],
        torch.tensor([label for _, label in described]),
        next((each.classes for each in image_sets if each.labels is not None), ()),
        is_test,
        sum(sizes),
    )


def _describe(sets: Sequence[ImageSet], offsets: Sequence[int], index: int) -> tuple[str, int]:
    """Return an image's name and label."""
    number = max(number for number, offset in enumerate(offsets) if index >= offset)
    image_set, row = sets[number], index - offsets[number]
    name = image_set.names[row] if image_set.names else f"{image_set.split} image {row:,}"
    return name, NO_LABEL if image_set.labels is None else int(image_set.labels[row])


def to_pictures(images: Tensor, side: int) -> np.ndarray:
    """Return images uint8 [N, C, H, W] as RGB pictures uint8 [N, side, side, 3]; one channel is grey."""
    colours = images[:, :3] if images.shape[1] >= 3 else images[:, :1].expand(-1, 3, -1, -1)
    if images.shape[2:] != (side, side):
        larger = F.interpolate(colours.float(), (side, side), mode="bilinear", antialias=True, align_corners=False)
        colours = larger.round().clamp(0, 255).to(torch.uint8)
    return colours.permute(0, 2, 3, 1).contiguous().cpu().numpy()


def encode_picture(picture: np.ndarray) -> bytes:
    """Return a picture uint8 [H, W, 3] as PNG where it is small, else as JPEG."""
    file = io.BytesIO()
    image = Image.fromarray(picture)
    if picture.shape[0] <= 48:
        image.save(file, "PNG", optimize=True)
    else:
        image.save(file, "JPEG", quality=85, optimize=True)
    return file.getvalue()
