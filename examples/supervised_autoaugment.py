"""AutoAugment for whole batches, as a drop-in in supervised training; --benchmark times it against torchvision.

python examples/supervised_autoaugment.py --benchmark
"""

import argparse
import time

import torch
from torch import nn
from torchvision.models import resnet18
from torchvision.transforms import v2

import aag


def make_classifier(classes: int) -> nn.Module:
    """Return torchvision's ResNet-18 with the stem for CIFAR: 3×3, stride 1, no max-pool."""
    network = resnet18(num_classes=classes)
    network.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    network.maxpool = nn.Identity()
    return network


def train(images: torch.Tensor, labels: torch.Tensor, epochs: int, batch_size: int, device: str) -> list[float]:
    """Train on uint8 images [N, 3, 32, 32] and labels [N]; return the losses of all steps."""
    images, labels = images.to(device), labels.to(device)
    augment = aag.augment.AuxiliaryAugment(aag.augment.AutoAugment("cifar10"), crop="padded")  # shift, flip, policy
    network = make_classifier(int(labels.max()) + 1).to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)
    losses = []
    for _ in range(epochs):
        for index in torch.randperm(len(images), device=device).split(batch_size):
            batch = augment(images[index]).float() / 255
            loss = nn.functional.cross_entropy(network(batch), labels[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


def benchmark(images: torch.Tensor, repeats: int = 3) -> dict[str, float]:
    """Return images/s of AutoAugment alone: torchvision's per image, as in a DataLoader, and aag's per batch."""
    theirs, ours = v2.AutoAugment(v2.AutoAugmentPolicy.CIFAR10), aag.augment.AutoAugment("cifar10")
    work = {
        "torchvision, per image": lambda: [theirs(image) for image in images],
        "aag, per batch": lambda: [ours(batch) for batch in images.split(128)],
    }
    speeds = {}
    for name, run in work.items():
        run()  # the first call sets up
        times = []
        for _ in range(repeats):
            started = time.perf_counter()
            run()
            times.append(time.perf_counter() - started)
        speeds[name] = len(images) / sorted(times)[repeats // 2]
    return speeds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--benchmark", action="store_true", help="time AutoAugment on this CPU instead of training")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    if options.benchmark:
        for name, speed in benchmark(aag.data.load("sample", limit=max(options.images, 1024)).images).items():
            print(f"{name:<24}{speed:>10,.0f} images/s on {torch.get_num_threads()} threads")
        return
    data = aag.data.load("sample", limit=options.images)
    losses = train(data.images, data.labels, options.epochs, options.batch_size, options.device)
    print("loss by step:", *(f"{loss:.3f}" for loss in losses))


if __name__ == "__main__":
    main()
