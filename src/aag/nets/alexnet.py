"""AlexNet for small images, in two published versions."""

from collections.abc import Sequence

from torch import Tensor, nn

from aag.errors import AAGError
from aag.nets.layers import ConvNorm, Linear, MaxPool

MIN_IMAGE_SIZE = 8  # three 2×2 pools must leave a pixel


class AlexNet(nn.Module):
    """Five 3×3 convolutions, pooled after the first, second and fifth, then fully connected layers; no dropout.

    The size of the flattened map is part of the weights, so a network takes one `image_size` only.
    """

    def __init__(self, channels: Sequence[int], hidden: Sequence[int], image_size: int = 32) -> None:
        super().__init__()
        if image_size < MIN_IMAGE_SIZE:
            raise AAGError(
                f"AlexNet needs images of at least {MIN_IMAGE_SIZE}×{MIN_IMAGE_SIZE} pixels, got {image_size}"
            )
        layers: list[nn.Module] = []
        inputs = 3
        for i, outputs in enumerate(channels):
            layers.append(ConvNorm(inputs, outputs, 3, bias=True))
            if i in (0, 1, 4):
                layers.append(MaxPool())
            inputs = outputs
        self.convolutions = nn.Sequential(*layers)

        layers = [nn.Flatten()]
        inputs *= (image_size // 8) ** 2  # [B, 256, 4, 4] → [B, 4096] at 32 pixels
        for outputs in hidden:
            layers += [Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.ReLU(inplace=True)]
            inputs = outputs
        self.hidden = nn.Sequential(*layers)
        self.feature_dim = inputs

    def forward(self, x: Tensor) -> Tensor:
        return self.hidden(self.convolutions(x))


def alexnet(image_size: int = 32) -> AlexNet:
    """Return ISL's AlexNet: two hidden layers of 1024 units, the second of which gives the features."""
    return AlexNet((64, 192, 384, 256, 256), (1024, 1024), image_size)


def alexnet_ip(image_size: int = 32) -> AlexNet:
    """Return InvariancePropagation's AlexNet: wider convolutions, no hidden layer; features are the flattened map."""
    return AlexNet((96, 256, 384, 384, 256), (), image_size)
