"""Encoders as files: safetensors, with the encoder's description and a content hash in the header."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from aag import tensor_files
from aag.errors import AAGError, describe, first_line
from aag.files import as_path, is_missing
from aag.nets.backbones import NETWORKS
from aag.nets.encoder import Encoder, build
from aag.nets.spec import CUSTOM, SOBEL, EncoderSpec
from aag.runs import Run
from aag.tensor_files import DamagedFileError, Header
from aag.text import keep_end

MAX_IMAGE_SIZE = 4096  # as in the settings of a run
SPEC, SETTINGS = "spec", "settings"  # names in the header: of the encoder, and of the run that trained it


def save(encoder: Encoder, path: str | os.PathLike[str], extra: Mapping[str, str] | None = None) -> None:
    """Write weights, spec and `extra` to `path` atomically: after a crash the old file is still there."""
    if not isinstance(encoder, Encoder):
        raise AAGError(f"only an aag.nets.Encoder can be saved, not {describe(encoder)}; build one with aag.nets.build")
    tensor_files.write(as_path(path), *_content(encoder, extra))


def is_saved(encoder: Encoder, path: Path, extra: Mapping[str, str] | None = None) -> bool:
    """Return whether a file is whole and holds exactly what `save` would write."""
    try:
        return tensor_files.verify(path).hash == tensor_files.encode(*_content(encoder, extra)).hash
    except AAGError:
        return False


def _content(encoder: Encoder, extra: Mapping[str, str] | None) -> tuple[dict[str, Tensor], dict[str, str]]:
    spec = replace(encoder.spec, bn_group_size=0)  # it only matters in training
    return tensor_files.to_row_major(encoder.state_dict()), {"format": "pt", **(extra or {}), SPEC: spec.to_json()}


def load(
    run_or_file: str | os.PathLike[str], *, device: str | torch.device = "cpu", backbone: nn.Module | None = None
) -> Encoder:
    """Load the encoder of a run folder or of a .safetensors file, in eval mode.

    The content hash in the file is checked; files of older versions have none and load unverified. `.extra` holds
    what the encoder was saved with. An encoder around your own backbone needs a `backbone` of the same
    architecture; its weights are overwritten.
    """
    path = as_path(run_or_file)
    if os.path.isdir(path):
        path = Run(path).encoder_file
        if is_missing(path):
            raise AAGError(f"no {path.name} in {path.parent}: not a run folder, or its training has not finished")
    elif is_missing(path):
        raise AAGError(f"no such file or folder: {keep_end(str(path), 300)}")
    header = _verify(path)
    spec = _parse_spec(path, header)
    if spec.is_custom and backbone is None:
        name = spec.network.removeprefix(CUSTOM)
        raise AAGError(f"{path} holds an encoder around your own backbone {name}; pass backbone={name}(...)")
    if backbone is not None and not spec.is_custom:
        raise AAGError(f"{path} holds a {spec.network}, which needs no backbone=; leave it out")
    _check_shapes(path, spec, header)
    tensors = tensor_files.read_tensors(path)
    encoder = build(spec, backbone=backbone)
    encoder.extra = {name: value for name, value in header.metadata.items() if name not in (SPEC, "format")}
    try:
        encoder.load_state_dict(tensors)
    except RuntimeError as error:
        raise _mismatch_error(path, encoder.spec) from error
    try:
        return encoder.to(device).eval()
    except (RuntimeError, AssertionError) as error:  # no such device, or torch built without it
        raise AAGError(f"cannot use device {str(device)!r}: {first_line(error)}") from error


def _verify(path: Path) -> Header:
    try:
        return tensor_files.verify(path)
    except DamagedFileError as error:
        run = Run(path.parent)
        if path.name != run.encoder_file.name or not run.checkpoints():
            raise
        raise DamagedFileError(f"{error}; run the same aag train again to write it from the checkpoint") from error


def read_spec(path: Path) -> EncoderSpec:
    """Return the description of the encoder in a .safetensors file."""
    return _parse_spec(path, tensor_files.read_header(path))


def _parse_spec(path: Path, header: Header) -> EncoderSpec:
    if SPEC not in header.metadata:
        raise AAGError(f"{path} holds no AAG encoder: its header has no {SPEC!r}")
    try:
        return EncoderSpec.from_json(header.metadata[SPEC])
    except AAGError as error:
        raise AAGError(f"cannot use {path}: {error}") from None


def _check_shapes(path: Path, spec: EncoderSpec, header: Header) -> None:
    """Raise if the tensors in a file are not those of its spec. Nothing is allocated: a spec may claim any size."""
    try:
        with torch.device("meta"):
            fits = None if spec.is_custom else _shapes(build(spec)) == header.shapes
    except AAGError as error:
        if spec.base_network.removesuffix(SOBEL) in NETWORKS:
            raise AAGError(f"cannot use {path}: {error}") from None
        fits = None  # timm cannot build this model without memory, or at all; `build` gives the reason
    except (RuntimeError, TypeError, ValueError, OverflowError):  # sizes beyond any tensor's
        fits = False
    if fits is None:  # only the size of the head and a limit for the images are known
        head_fits = spec.head == "none" or any(spec.embedding in shape for shape in header.shapes.values())
        fits = head_fits and spec.image_size <= MAX_IMAGE_SIZE
    if not fits:
        raise _mismatch_error(path, spec)


def _shapes(encoder: Encoder) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in encoder.state_dict().items()}


def _mismatch_error(path: Path, spec: EncoderSpec) -> AAGError:
    return AAGError(f"the weights in {path} do not fit the {spec.network} it describes")
