"""Build the encoder that a run trains, load the weights it starts from, and freeze parts of it."""

import copy
from collections.abc import Iterable

from torch import nn

from aag import nets
from aag.data import DATASETS, ImageSet
from aag.errors import AAGError
from aag.nets import Encoder, EncoderSpec
from aag.nets.backbones import check_network
from aag.nets.pretrained import Normalisation, check_pretrained, pretrained_normalisation
from aag.nets.resnet import Block
from aag.settings import to_json
from aag.training.settings import RunSettings


def check_encoder(settings: RunSettings) -> None:
    """Raise for a network that does not exist, or weights to start from that cannot be loaded. Downloads nothing."""
    check_network(settings.encoder)
    if settings.train.pretrained:
        check_pretrained(settings.encoder, settings.train.pretrained)
    if settings.train.start_from:
        nets.load(settings.train.start_from)


def build_encoder(
    settings: RunSettings,
    images: ImageSet,
    backbone: nn.Module | None = None,
    normalisation: Normalisation | None = None,
) -> Encoder:
    """Build the encoder of a run for its images, with new weights.

    `normalisation`: the mean and standard deviation of each channel. Default: those of the pretrained weights, of the
    known data set, or of the images.
    """
    dataset, pretrained = DATASETS.get(settings.data.source), settings.train.pretrained
    if normalisation is None and pretrained:
        normalisation = pretrained_normalisation(EncoderSpec(**to_json(settings.encoder)), pretrained)
    mean, std = normalisation or ((dataset.mean, dataset.std) if dataset else images.statistics())
    size, source = settings.data.image_size or images.image_size, images.image_size
    if (settings.data.source_size or source) != source:
        raise AAGError(f"--resize-size is {settings.data.source_size}, but the images have {source} pixels a side")
    spec = EncoderSpec(
        **to_json(settings.encoder), image_size=size, mean=mean, std=std, resize_size=source if source != size else None
    )
    return nets.build(spec, seed=settings.train.seed, backbone=backbone)


def load_start_weights(encoder: Encoder, path: str) -> None:
    """Load the backbone's weights of another run or file, and its head's where that fits."""
    other = nets.load(path, backbone=copy.deepcopy(encoder.backbone) if encoder.spec.is_custom else None)
    try:
        encoder.backbone.load_state_dict(other.backbone.state_dict())
    except RuntimeError as error:
        raise AAGError(
            f"the weights of {path} are of {_describe_network(other.spec)} and do not fit "
            f"{_describe_network(encoder.spec)}; give the same network and size"
        ) from error
    head, other_head = encoder.head.state_dict(), other.head.state_dict()
    if {name: value.shape for name, value in head.items()} == {n: value.shape for n, value in other_head.items()}:
        encoder.head.load_state_dict(other_head)


def _describe_network(spec: EncoderSpec) -> str:
    sizes = {"width": spec.width, "depth": spec.depth}
    known = ", ".join(f"{name} {size}" for name, size in sizes.items() if size is not None)
    return f"{spec.network} ({known})" if known else spec.network


def zero_init_residual(encoder: Encoder) -> None:
    """Set the scale of each residual block's last batch norm to 0: the block starts as the identity (its shortcut).

    Goyal et al.: "Accurate, Large Minibatch SGD" (2017), section 5.1.
    """
    blocks = [part for part in encoder.modules() if isinstance(part, Block)]
    if not blocks:
        raise AAGError(f"--zero-init-residual is for our resnet18 and resnet50, not for {encoder.spec.network}")
    for block in blocks:
        nn.init.zeros_(block.residual[-1].norm.weight)  # type: ignore[union-attr, arg-type]


def freeze(encoder: Encoder, prefixes: Iterable[str]) -> None:
    """Exclude parameters from training, by name or by the name of a part that holds them."""
    names = [name for name, _ in encoder.named_parameters()]
    for prefix in prefixes:
        matching = [name for name in names if name == prefix or name.startswith(f"{prefix}.")]
        if not matching:
            known = dict.fromkeys(".".join(name.split(".")[:2]) for name in names)
            raise AAGError(f"--freeze {prefix}: the encoder has no such parameters; it has {', '.join(known)}")
        for name in matching:
            encoder.get_parameter(name).requires_grad_(False)
