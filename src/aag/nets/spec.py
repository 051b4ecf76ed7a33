"""Settings of a network, and the full description of an encoder that its weight file carries."""

import json
from dataclasses import dataclass, field, fields, replace
from math import isfinite
from typing import Annotated, Any, Literal, Self

from aag.errors import AAGError, describe
from aag.files import parse_json
from aag.settings import AddedLater, Range, check_fields, to_json

EDGES = "-edges"  # suffix of a network that sees edges instead of colours
SOBEL = "+sobel"  # suffix of a pair of networks: one sees colours, one sees edges
CUSTOM = "custom:"  # prefix of a user's own backbone
WITH_WIDTH = ("resnet18", "resnet50", "amdim")


@dataclass(frozen=True)
class NetworkSettings:
    """Architecture of an encoder, independent of the images."""

    network: str = "resnet18"
    """resnet18, resnet50, alexnet, alexnet-ip and amdim are aag's own, for small images. Any other name is a timm
    model, such as convnext_tiny; timm/resnet18 is timm's version, for larger images. NAME-edges sees edges instead of
    colours; NAME+sobel is a pair of networks, one for colours and one for edges."""
    width: Annotated[int, Range(at_least=1)] | None = 64
    """Channels of the first stage (ResNets and amdim only; amdim has twice as many)."""
    depth: Annotated[Annotated[int, Range(at_least=1)] | None, AddedLater] = field(default=None, kw_only=True)
    """Blocks per stage (amdim only; default 3)."""
    head: Literal["auto", "linear", "mlp", "none"] = "auto"
    """linear: one layer. mlp: SimCLR's projection head. none: the embedding is the features.
    auto: mlp on resnet50, linear on other networks."""
    embedding: Annotated[int, Range(at_least=1)] = 128
    """Dimensions of the embedding, which the loss compares. With --head none it has the features' dimensions."""
    head_width: Annotated[Annotated[int, Range(at_least=1)] | None, AddedLater] = field(default=None, kw_only=True)
    """Hidden units of the mlp head. Default: the number of features."""
    bn_group_size: Annotated[int, Range(at_least=0)] = 0
    """Images per group in ghost batch norm: in training, each group has its own statistics. 0: the whole batch."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.network:
            raise AAGError("--network is empty; use a name such as resnet18")
        if self.bn_group_size == 1:
            raise AAGError(
                "--bn-group-size 1 makes groups of one image, too few for batch norm; use 0 for the whole batch"
            )

    def resolve(self) -> Self:
        """Replace automatic values, and fit `width` and `depth` to the network (None where it has none)."""
        head = self.head
        if head == "auto":
            head = "mlp" if self.base_network == "resnet50" else "linear"
        if self.head_width and head != "mlp":
            raise AAGError(f"--head-width has no effect with --head {head}; leave it out, or use --head mlp")
        name = self.base_network.removesuffix(SOBEL)
        width, depth = (
            (self.width or 64) if name in WITH_WIDTH else None,
            (self.depth or 3) if name == "amdim" else None,
        )
        return replace(self, head=head, width=width, depth=depth)

    @property
    def sees_edges(self) -> bool:
        return self.network.endswith(EDGES)

    @property
    def base_network(self) -> str:
        """The network's name without `-edges`."""
        return self.network.removesuffix(EDGES)

    @property
    def has_pretrained_tag(self) -> bool:
        """Whether the name of a timm model says which weights, as in resnet18.a1_in1k."""
        return not self.is_custom and "." in self.network

    @property
    def is_custom(self) -> bool:
        """Whether the backbone is the user's own module."""
        return self.network.startswith(CUSTOM)


@dataclass(frozen=True)
class EncoderSpec(NetworkSettings):
    """Everything that defines an encoder except its weights."""

    image_size: Annotated[int, Range(at_least=1)] = 32
    """Side of the square images in pixels. AlexNet and most transformers take no other size."""
    mean: tuple[float, ...] = (0.4914, 0.4822, 0.4465)
    """Mean of each channel, for images in [0, 1] (default: CIFAR-10)."""
    std: tuple[float, ...] = (0.2023, 0.1994, 0.2010)
    """Standard deviation of each channel (default: CIFAR-10)."""
    resize_size: Annotated[int, Range(at_least=1)] | None = None
    """Side that files are resized to before the centre crop of `image_size`. None: the same, no crop."""

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            object.__setattr__(self, name, _channel_values(name, getattr(self, name)))
        super().__post_init__()
        if len(self.mean) != len(self.std):
            raise AAGError(f"mean and std must have one number per channel, got {len(self.mean)} and {len(self.std)}")
        if self.resize_size is not None and self.resize_size < self.image_size:
            raise AAGError(f"resize_size {self.resize_size} is smaller than image_size {self.image_size}")

    @property
    def source_size(self) -> int:
        """Side of the images before the centre crop, as they are stored."""
        return self.resize_size or self.image_size

    @property
    def channels(self) -> int:
        return len(self.mean)

    def to_json(self) -> str:
        return json.dumps(to_json(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        try:
            values = parse_json(text)
        except ValueError:
            values = None
        if not isinstance(values, dict):
            raise AAGError(f"not an encoder's description: {text[:60]!r}")
        if "norm_images" in values:  # its name up to version 0.1
            values["bn_group_size"] = values.pop("norm_images")
        if unexpected := sorted(set(values) - {each.name for each in fields(cls)}):
            raise AAGError(
                f"unknown fields in an encoder's description: {', '.join(unexpected)} (from a newer aag? update aag)"
            )
        return cls(**values)


def _channel_values(name: str, values: Any) -> tuple[float, ...]:
    positive = "positive " if name == "std" else ""
    try:
        numbers = tuple(float(value) for value in values)
        valid = bool(numbers) and all(isfinite(value) and (value > 0 or not positive) for value in numbers)
        valid = valid and not isinstance(values, str | dict)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        valid = False
    if not valid:
        given = describe(values)
        raise AAGError(f"{name} must be one {positive}number per channel, such as (0.5, 0.5, 0.5), got {given}")
    return numbers
