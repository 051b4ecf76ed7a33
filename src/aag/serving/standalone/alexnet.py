"""Part of load_encoder.py for alexnet and alexnet-ip."""

from torch import Tensor, nn


class ConvNorm(nn.Sequential):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).relu()


class AlexNet(nn.Module):
    """Five 3×3 convolutions, pooled after the first, second and fifth, then fully connected layers."""

    def __init__(self, channels: tuple[int, ...], hidden: tuple[int, ...], image_size: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for i, outputs in enumerate(channels):
            layers += [ConvNorm(inputs, outputs), nn.MaxPool2d(2)] if i in (0, 1, 4) else [ConvNorm(inputs, outputs)]
            inputs = outputs
        self.convolutions = nn.Sequential(*layers)
        layers = [nn.Flatten()]
        inputs *= (image_size // 8) ** 2
        for outputs in hidden:
            layers += [nn.Linear(inputs, outputs), nn.BatchNorm1d(outputs), nn.ReLU()]
            inputs = outputs
        self.hidden = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return self.hidden(self.convolutions(x))


def build_backbone(spec: dict) -> nn.Module:
    if spec["network"].startswith("alexnet-ip"):
        return AlexNet((96, 256, 384, 384, 256), (), spec["image_size"])
    return AlexNet((64, 192, 384, 256, 256), (1024, 1024), spec["image_size"])
