"""Part of load_encoder.py for resnet18 and resnet50."""

from torch import Tensor, nn
from torch.nn.functional import relu


def conv_norm(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class Block(nn.Module):
    """A residual block: two 3×3 convolutions, or as a bottleneck 1×1, 3×3, 1×1."""

    def __init__(self, inputs: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        outputs = 4 * width if bottleneck else width
        if bottleneck:
            layers = [conv_norm(inputs, width, 1), conv_norm(width, width, 3, stride), conv_norm(width, outputs, 1)]
        else:
            layers = [conv_norm(inputs, width, 3, stride), conv_norm(width, width, 3)]
        self.residual = nn.ModuleList(layers)
        self.shortcut = None if stride == 1 and inputs == outputs else conv_norm(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for layer in self.residual[:-1]:
            y = relu(layer(y))
        return relu(self.residual[-1](y) + (x if self.shortcut is None else self.shortcut(x)))


class ResNet(nn.Module):
    """ResNet with a stem for small images: 3×3, stride 1, no max-pool."""

    def __init__(self, depths: tuple[int, ...], bottleneck: bool, width: int) -> None:
        super().__init__()
        self.stem = conv_norm(3, width, 3)
        self.blocks = nn.ModuleList()
        inputs = width
        for stage, depth in enumerate(depths):
            for i in range(depth):
                stride = 2 if stage > 0 and i == 0 else 1
                self.blocks.append(Block(inputs, width << stage, stride, bottleneck))
                inputs = (width << stage) * (4 if bottleneck else 1)

    def forward(self, x: Tensor) -> Tensor:
        x = relu(self.stem(x))
        for block in self.blocks:
            x = block(x)
        return x.mean(dim=(2, 3))


def build_backbone(spec: dict) -> nn.Module:
    deep = spec["network"].startswith("resnet50")
    return ResNet((3, 4, 6, 3) if deep else (2, 2, 2, 2), deep, spec["width"])
