"""A torchvision data set and a DataLoader; aag makes the views of a whole batch, on the GPU, after collation.

python examples/dataloader.py
"""

import argparse

import torch
from plain_loop import make_network
from torch.utils.data import DataLoader, Dataset
from torchvision.datasets import FakeData
from torchvision.transforms import v2

import aag

TO_TENSOR = v2.Compose([v2.PILToTensor(), v2.Resize((32, 32))])  # all that a worker does: uint8 [3, 32, 32]


class ViewsAfterCollation:
    """Make three views of each batch of a loader, on `device`: uint8 [3, B, 3, H, W]."""

    def __init__(self, loader: DataLoader, device: str) -> None:
        self.loader, self.device = loader, device
        self.augmentations = (aag.augment.BasicAugment(), aag.augment.BasicAugment(), aag.augment.AuxiliaryAugment())

    def __iter__(self):
        for images, _ in self.loader:
            images = images.to(self.device, non_blocking=True)
            yield torch.stack([augment(images) for augment in self.augmentations])


def train(dataset: Dataset, epochs: int, batch_size: int, workers: int, device: str) -> list[float]:
    """Train on a data set of (uint8 image, label); return the losses of all steps."""
    loader = DataLoader(
        dataset, batch_size, shuffle=True, drop_last=True, num_workers=workers, pin_memory=device != "cpu"
    )
    network = make_network(width=16).to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.06, momentum=0.9)
    losses = []
    for _ in range(epochs):
        for views in ViewsAfterCollation(loader, device):
            x, y, z = network(views.flatten(0, 1).float() / 255).chunk(3)
            loss = aag.losses.gnt_xent(x, y, z)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    # Any data set of torchvision will do, such as CIFAR10(root, download=True, transform=TO_TENSOR).
    dataset = FakeData(128, (3, 48, 48), transform=TO_TENSOR)
    losses = train(dataset, options.epochs, options.batch_size, options.workers, options.device)
    print("loss by step:", *(f"{loss:.3f}" for loss in losses))


if __name__ == "__main__":
    main()
