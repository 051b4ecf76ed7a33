"""What an encoder is made of, small enough to travel inside the file that holds its weights."""

import json
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from aag.errors import AAGError, unknown

HEADS = ("auto", "linear", "mlp", "none")
EDGES = "-edges"  # behind a network's name: it sees edges in the place of colours


@dataclass(frozen=True)
class EncoderSpec:
    """Everything that fixes an encoder but its weights."""

    network: str = "resnet18"
    """resnet18, resnet50, alexnet, alexnet-ip, amdim, or any timm model (timm/NAME where the name is also one of ours);
    NAME-edges for one that sees edges in the place of colours, NAME+sobel for two of them, of which one does."""
    embedding: int = 128
    """Dimensions of the output that the loss compares; with the head none they are the features'."""
    head: str = "auto"
    """auto: SimCLR's MLP on resnet50, one linear layer on every other network. none: the embedding is the features."""
    width: int = 64
    """Channels of the ResNets' first stage."""
    image_size: int = 32
    """Side of the square images, which AlexNet and most transformers are built for."""
    mean: tuple[float, ...] = (0.4914, 0.4822, 0.4465)
    """Channel means of images in [0, 1] (CIFAR-10)."""
    std: tuple[float, ...] = (0.2023, 0.1994, 0.2010)
    """Channel deviations (CIFAR-10, as the papers of this line divide)."""
    norm_images: int = 0
    """Consecutive images that batch norm sees together in training. 0: all of a pass."""

    def __post_init__(self) -> None:
        for name in ("embedding", "width", "image_size"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise AAGError(f"{name} must be a whole number of at least 1, got {value!r}")
        if not isinstance(self.norm_images, int) or self.norm_images < 0:
            raise AAGError(f"norm_images must be a whole number of at least 0, got {self.norm_images!r}")
        if self.head not in HEADS:
            raise unknown("head", str(self.head), HEADS)
        for name in ("mean", "std"):
            values = getattr(self, name)
            if len(values) != 3 or (name == "std" and min(values) <= 0):
                raise AAGError(f"{name} must be three {'positive ' if name == 'std' else ''}numbers, got {values!r}")

    @property
    def sees_edges(self) -> bool:
        return self.network.endswith(EDGES)

    @property
    def plain_network(self) -> str:
        """Its name, whatever it sees."""
        return self.network.removesuffix(EDGES)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        try:
            values: dict[str, Any] = json.loads(text)
            known = {field.name for field in fields(cls)}
            if strange := sorted(set(values) - known):
                raise AAGError(f"unknown fields in an encoder's description: {', '.join(strange)} (from a newer aag?)")
            tuples = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
            return cls(**(values | tuples))
        except (TypeError, ValueError) as error:
            raise AAGError(f"not an encoder's description: {text[:60]!r}") from error
