"""Published weights for timm backbones: from timm, a local file or the Hugging Face Hub."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor, nn

from aag.errors import AAGError, first_line
from aag.nets.backbones import NETWORKS, check_timm_name, create_timm
from aag.nets.encoder import Encoder
from aag.nets.spec import SOBEL, EncoderSpec, NetworkSettings

TIMM, HUB = "timm", "hf-hub:"
FILE_TYPES = (".safetensors", ".pth", ".pt", ".bin")
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
Normalisation = tuple[tuple[float, ...], tuple[float, ...]]


def load_pretrained(encoder: Encoder, source: str) -> None:
    """Load published weights into the backbone: `timm`, a weight file, or `hf-hub:OWNER/NAME`.

    The classifier's weights are dropped. Any other weight that is missing or left over is an error.
    """
    spec = encoder.spec
    name = model_name(spec, source)
    if source == TIMM:
        state = _load_from_timm(name, spec)
    elif source.startswith(HUB):
        state = _load_from_hub(name, source)
    else:
        state = _load_from_file(Path(source).expanduser())
    _load(encoder.backbone, state, name, source)


def check_pretrained(settings: NetworkSettings, source: str) -> None:
    """Raise if the network takes no published weights, or the source is not a weight file."""
    model_name(settings, source)
    if source != TIMM and not source.startswith(HUB):
        _check_file(Path(source).expanduser())


def model_name(spec: NetworkSettings, source: str) -> str:
    """Return timm's name of the network, or raise if it is not a timm network."""
    network = spec.base_network
    if spec.is_custom or SOBEL in network or spec.sees_edges:
        raise AAGError(f"--pretrained takes a single timm network that sees colours, not {spec.network}")
    if network in NETWORKS:
        raise AAGError(
            f"--pretrained {source} does not fit {network}, an aag network for small images; "
            "use a timm network, such as --network timm/resnet18 --image-size 224"
        )
    return check_timm_name(network)


def pretrained_normalisation(spec: EncoderSpec, source: str) -> Normalisation:
    """Return the mean and standard deviation of the images that the weights were trained on."""
    import timm

    name = model_name(spec, source)
    published = timm.get_pretrained_cfg(name)
    config: Any = published.to_dict() if published else {"mean": IMAGENET_MEAN, "std": IMAGENET_STD}
    if source.startswith(HUB):
        from timm.models import load_model_config_from_hf

        try:
            with _quiet_hub():
                config |= load_model_config_from_hf(source.removeprefix(HUB))[0]
        except Exception as error:  # the Hub's client raises many kinds
            raise _download_error(name, source, error) from error
    return tuple(config["mean"]), tuple(config["std"])


def _load_from_timm(name: str, spec: EncoderSpec) -> dict[str, Tensor]:
    import timm

    config = timm.get_pretrained_cfg(name)
    if config is None or not config.has_weights:
        raise AAGError(f"timm publishes no weights for {name}; leave out --pretrained, or give a weight file")
    try:
        with _quiet_hub():
            return create_timm(name, spec, pretrained=True)[0].state_dict()
    except Exception as error:
        raise _download_error(name, TIMM, error) from error


def _load_from_hub(name: str, source: str) -> dict[str, Tensor]:
    from timm.models import load_state_dict_from_hf

    try:
        with _quiet_hub():
            return load_state_dict_from_hf(source.removeprefix(HUB), weights_only=True)
    except Exception as error:
        raise _download_error(name, source, error) from error


def _load_from_file(path: Path) -> dict[str, Tensor]:
    """Read a state dict. Code in the file is never run."""
    from safetensors.torch import load_file
    from timm.models import clean_state_dict

    _check_file(path)
    try:
        found: Any = (
            load_file(path)
            if path.suffix == ".safetensors"
            else torch.load(path, map_location="cpu", weights_only=True)
        )
        for key in ("state_dict_ema", "model_ema", "state_dict", "model"):
            if isinstance(found, dict) and isinstance(found.get(key), dict):
                found = found[key]
                break
        found = clean_state_dict(found)
        if not found or not all(isinstance(value, Tensor) for value in found.values()):
            raise AAGError(f"--pretrained {path} is not a state dict; save model.state_dict() instead")
    except AAGError:
        raise
    except Exception as error:  # damaged, or a pickle with code in it
        raise AAGError(f"--pretrained {path} is damaged, or contains more than weights: {first_line(error)}") from error
    return found


def _check_file(path: Path) -> None:
    if not path.is_file():
        raise AAGError(f"--pretrained {path}: no such file; give timm, a weight file or {HUB}OWNER/NAME")
    if path.suffix not in FILE_TYPES:
        raise AAGError(f"--pretrained {path}: weight files end in {', '.join(FILE_TYPES)}")


def _load(backbone: nn.Module, state: dict[str, Tensor], name: str, source: str) -> None:
    config: Any = getattr(backbone, "pretrained_cfg", {})
    if any(key.startswith("backbone.") for key in state):
        raise AAGError(
            f"{source} holds more than a backbone: its weights are named backbone.…; if aag trained it, start from it "
            f"with --from {source}, else save backbone.state_dict() alone"
        )
    # Some of timm's models convert older or other sizes of weights.
    convert = getattr(sys.modules[type(backbone).__module__], "checkpoint_filter_fn", None)
    try:
        state = convert(state, backbone) if convert else state
        classifiers = config.get("classifier") or ()
        heads = (classifiers,) if isinstance(classifiers, str) else tuple(classifiers)
        own = backbone.state_dict()
        state = {
            key: value
            for key, value in state.items()
            if key in own or not any(key.startswith(f"{head}.") for head in heads)
        }
        backbone.load_state_dict(state)
    except (RuntimeError, KeyError, AttributeError, ValueError) as error:
        reason = " ".join(str(error).split())[:160]
        raise AAGError(f"the weights of {source} do not fit {name}: {reason}") from error


@contextmanager
def _quiet_hub() -> Iterator[None]:
    """Silence the Hub's client, which logs each retry. The final error is printed."""
    log = logging.getLogger("huggingface_hub")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _download_error(name: str, source: str, error: Exception) -> AAGError:
    scratch = ", or leave out the tag after the dot to train from scratch" if "." in name else ""
    reason = shorten(first_line(error), 120, placeholder=" …")
    return AAGError(
        f"cannot download the weights of {name if source == TIMM else source} ({reason}); "
        f"download them elsewhere and give the file with --pretrained FILE{scratch}"
    )
