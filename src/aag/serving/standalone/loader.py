"""Last part of load_encoder.py: the encoder, its weights, and images from files."""

import json
import sys
from pathlib import Path

import torch
from PIL import Image, ImageOps
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import normalize

from aag.serving.standalone.mlp import build_head
from aag.serving.standalone.resnet import build_backbone
from aag.serving.standalone.sobel import Pair, sobel

WEIGHTS = Path(__file__).with_name("encoder.safetensors")


class Encoder(nn.Module):
    """Images [B, 3, S, S], uint8 or float in [0, 1] → features [B, F] and unit embeddings [B, D]."""

    mean: Tensor
    std: Tensor
    head: nn.Module

    def __init__(self, spec: dict, feature_dim: int) -> None:
        super().__init__()
        self.image_size, self.resize_size = spec["image_size"], spec["resize_size"] or spec["image_size"]
        for name in ("mean", "std"):  # of each channel
            self.register_buffer(name, torch.tensor(spec[name]).view(1, -1, 1, 1), persistent=False)
        self.backbone = build_backbone(spec)  # only: single
        self.backbone = Pair(build_backbone(spec), build_backbone(spec))  # only: pair
        self.head = nn.Identity()  # only: none
        self.head = nn.Linear(feature_dim, spec["embedding"])  # only: linear
        self.head = build_head(feature_dim, spec.get("head_width", feature_dim), spec["embedding"])  # only: mlp

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        x = images / 255 if images.dtype == torch.uint8 else images
        x = (x - self.mean) / self.std
        x = sobel(x)  # only: edges
        features = self.backbone(x)
        return features, normalize(self.head(features))


def load_encoder(path: str | Path = WEIGHTS) -> Encoder:
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    weights = load_file(path)
    weights = {f"backbone.{name}": tensor for name, tensor in weights.items()}  # only: split
    head = load_file(Path(path).with_name("head.safetensors"))  # only: head
    weights |= {f"head.{name}": tensor for name, tensor in head.items()}  # only: head
    weights = {name: tensor for name, tensor in weights.items() if "backbone.project" not in name}  # only: amdim
    encoder = Encoder(json.loads(metadata["spec"]), int(metadata["feature_dim"]))
    encoder.load_state_dict(weights)
    return encoder.eval()


def read_image(path: str | Path, encoder: Encoder) -> Tensor:
    """Return the centre square of a picture, resized and cropped as in training: uint8 [3, S, S].

    Draw transparent pictures on white first.
    """
    size, crop = encoder.resize_size, encoder.image_size
    with Image.open(path) as file:
        file.draft(None, (2 * size, 2 * size))  # large JPEGs are decoded at a fraction of their size, as in training
        image = ImageOps.exif_transpose(file).convert("RGB")
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    image = image.crop((left, top, left + side, top + side))
    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(side, side, 3).permute(2, 0, 1)
    if side != size:
        pixels = nn.functional.interpolate(pixels[None], (size, size), mode="bicubic", antialias=True)[0]
    start = (size - crop) // 2
    return pixels[:, start : start + crop, start : start + crop]


if __name__ == "__main__":
    encoder = load_encoder()
    for path in sys.argv[1:]:
        with torch.no_grad():
            _, embeddings = encoder(read_image(path, encoder)[None])
        print(path, *(f"{value:.4f}" for value in embeddings[0].tolist()))
