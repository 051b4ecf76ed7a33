"""Encoders as files: safetensors, with the encoder's description in the header."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from aag.errors import AAGError, describe, first_line
from aag.files import as_path, write_bytes
from aag.nets.encoder import Encoder, build
from aag.nets.spec import CUSTOM, EncoderSpec
from aag.text import keep_end

FILENAME = "encoder.safetensors"  # inside a run folder
SPEC = "spec"


def save(encoder: Encoder, path: str | os.PathLike[str], extra: Mapping[str, str] | None = None) -> None:
    """Write weights, spec and `extra` to `path` atomically: after a crash the old file is still there."""
    path = as_path(path)
    if not isinstance(encoder, Encoder):
        raise AAGError(f"only an aag.nets.Encoder can be saved, not {describe(encoder)}; build one with aag.nets.build")
    # safetensors needs row-major tensors that share no memory; channels-last and tied weights are neither.
    tensors = {
        name: tensor.detach().to("cpu", memory_format=torch.contiguous_format, copy=True)
        for name, tensor in encoder.state_dict().items()
    }
    spec = replace(encoder.spec, bn_group_size=0)  # it only matters in training
    data = to_bytes(tensors, metadata={"format": "pt", **(extra or {}), SPEC: spec.to_json()})
    write_bytes(path, data)


def load(
    run_or_file: str | os.PathLike[str], *, device: str | torch.device = "cpu", backbone: nn.Module | None = None
) -> Encoder:
    """Load the encoder of a run folder or of a .safetensors file, in eval mode.

    `.extra` holds what it was saved with. An encoder around your own backbone needs a `backbone` of the same
    architecture; its weights are overwritten.
    """
    path = as_path(run_or_file)
    if os.path.isdir(path):  # pathlib raises where it may not look, or a name is too long
        path /= FILENAME
        if not os.path.exists(path):
            raise AAGError(f"no {FILENAME} in {path.parent}: not a run folder, or its training has not finished")
    elif not os.path.exists(path):
        raise AAGError(f"no such file or folder: {keep_end(str(path), 300)}")
    if not path.is_file():  # reading a pipe would block
        raise AAGError(f"{path} is no regular file; give a run folder or a .safetensors file")
    metadata, tensors = _read(path)
    spec = _parse_spec(path, metadata)
    if spec.is_custom and backbone is None:
        name = spec.network.removeprefix(CUSTOM)
        raise AAGError(f"{path} holds an encoder around your own backbone {name}; pass backbone={name}(...)")
    if backbone is not None and not spec.is_custom:
        raise AAGError(f"{path} holds a {spec.network}, which needs no backbone=")
    encoder = build(spec, backbone=backbone)
    encoder.extra = {name: value for name, value in metadata.items() if name not in (SPEC, "format")}
    try:
        encoder.load_state_dict(tensors)
    except RuntimeError as error:
        raise AAGError(f"the weights in {path} do not fit the {encoder.spec.network} it describes") from error
    try:
        return encoder.to(device).eval()
    except (RuntimeError, AssertionError) as error:  # no such device, or torch built without it
        raise AAGError(f"cannot use device {str(device)!r}: {first_line(error)}") from error


def read_spec(path: Path) -> EncoderSpec:
    """Return the description of the encoder in a .safetensors file."""
    return _parse_spec(path, _read(path, with_tensors=False)[0])


def _parse_spec(path: Path, metadata: Mapping[str, str]) -> EncoderSpec:
    try:
        return EncoderSpec.from_json(metadata[SPEC])
    except AAGError as error:
        raise AAGError(f"cannot use {path}: {error}") from None


def _read(path: Path, *, with_tensors: bool = True) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return the header and the tensors of an encoder's file."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            names = file.keys() if with_tensors else ()
            tensors = {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError) as error:
        raise AAGError(f"{path} is not a safetensors file, or is damaged: {first_line(error)}") from error
    if SPEC not in metadata:
        raise AAGError(f"{path} holds no AAG encoder: its header has no {SPEC!r}")
    return metadata, tensors
