"""GNT-Xent and the batched augmentations in a plain PyTorch loop, with a network of your own.

python examples/plain_loop.py --epochs 2
"""

import argparse

import torch
from torch import nn

import aag


def make_network(width: int) -> nn.Module:
    """Return a small convolutional network: images [B, 3, H, W] in [0, 1] → embeddings [B, 64]."""
    layers: list[nn.Module] = []
    for inputs, outputs in ((3, width), (width, 2 * width), (2 * width, 4 * width)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 64))


def train(images: torch.Tensor, epochs: int, batch_size: int, width: int, device: str) -> tuple[nn.Module, list[float]]:
    """Train on uint8 images [N, 3, H, W]; return the network and the mean loss of each epoch."""
    images = images.to(device)  # once: afterwards, loading is indexing
    network = make_network(width).to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    basic, auxiliary = aag.augment.BasicAugment(), aag.augment.AuxiliaryAugment()
    losses = []
    for _ in range(epochs):
        total, steps = 0.0, 0
        for index in torch.randperm(len(images), device=device).split(batch_size):
            if len(index) < batch_size:
                continue
            batch = images[index]
            views = torch.cat([basic(batch), basic(batch), auxiliary(batch)])  # uint8, on the same device
            x, y, z = network(views.float() / 255).chunk(3)
            loss = aag.losses.gnt_xent(x, y, z, temperature=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total, steps = total + loss.item(), steps + 1
        losses.append(total / steps)
    return network, losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    images = aag.data.load("sample", limit=options.images).images
    _, losses = train(images, options.epochs, options.batch_size, options.width, options.device)
    print("loss by epoch:", *(f"{loss:.3f}" for loss in losses))


if __name__ == "__main__":
    main()
