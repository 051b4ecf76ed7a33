"""Measure how many changed copies `aag dedupe` finds at each threshold, and how many pairs are no copies.

    python tools/dedupe_threshold.py RUN IMAGES.npz [COUNT]

Takes training images only, and an encoder that was not trained on them. Prints a Markdown table.
"""

import io
import sys

import torch
from PIL import Image, ImageEnhance, ImageOps

from aag import data, nets

THRESHOLDS = (0.9, 0.95, 0.97, 0.98, 0.99, 0.995)


def jpeg(image: Image.Image, quality: int) -> Image.Image:
    out = io.BytesIO()
    image.save(out, "JPEG", quality=quality)
    return Image.open(out)


def crop(image: Image.Image, share: float) -> Image.Image:
    margin = image.width * (1 - share) / 2
    box = (margin, margin, image.width - margin, image.height - margin)
    return image.resize(image.size, Image.Resampling.BICUBIC, box=box)


def resize(image: Image.Image, factor: float) -> Image.Image:
    side = round(image.width * factor)
    return image.resize((side, side), Image.Resampling.BICUBIC).resize(image.size, Image.Resampling.BICUBIC)


CHANGES = {
    "JPEG, quality 75": lambda image: jpeg(image, 75),
    "JPEG, quality 40": lambda image: jpeg(image, 40),
    "enlarged 3 ×": lambda image: resize(image, 3),
    "shrunk to 70 %": lambda image: resize(image, 0.7),
    "cropped to 94 %": lambda image: crop(image, 0.94),
    "cropped to 85 %": lambda image: crop(image, 0.85),
    "10 % brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.1),
    "flipped": ImageOps.mirror,
}


def main(run: str, source: str, count: int = 5000) -> None:
    encoder = nets.load(run)
    originals = data.load(source, image_size=encoder.spec.source_size, limit=count).images
    embeddings = encoder.embed(originals)
    pairs = (embeddings @ embeddings.T).triu_(1)
    print("| copies found, % | " + " | ".join(f"{t:g}" for t in THRESHOLDS) + " |")
    print("|---|" + "---:|" * len(THRESHOLDS))
    for name, change in CHANGES.items():
        changed = [change(Image.fromarray(image.permute(1, 2, 0).numpy())).convert("RGB") for image in originals]
        pixels = torch.stack([torch.frombuffer(bytearray(each.tobytes()), dtype=torch.uint8) for each in changed])
        copies = encoder.embed(pixels.view(len(originals), *originals.shape[2:], 3).permute(0, 3, 1, 2).contiguous())
        cosines = (copies * embeddings).sum(dim=1)
        print(f"| {name} | " + " | ".join(f"{100 * (cosines >= t).float().mean():.1f}" for t in THRESHOLDS) + " |")
    involved = [(((pairs >= t) | (pairs >= t).T).any(dim=1)).float().mean().item() for t in THRESHOLDS]
    print("| *originals in a group without any copy, %* | " + " | ".join(f"{100 * i:.1f}" for i in involved) + " |")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:4]))
