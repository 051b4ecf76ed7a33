"""Checkpoints: replaced atomically when written, verified when read."""

import json
import zlib
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from aag.errors import AAGError
from aag.files import write_bytes

FORMAT = 2


def save(path: Path, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    """Write tensors and JSON-able state into one safetensors file with a checksum."""
    tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    header = {"format": FORMAT, "checksum": _checksum(tensors), "state": state}
    write_bytes(path, to_bytes(tensors, {"aag": json.dumps(header)}))


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    advice = "it is damaged or cut off; choose another --out, or delete the folder to start again"
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})["aag"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except PermissionError as error:
        raise AAGError(f"cannot read {path}: {error.strerror}") from error
    except Exception as error:
        raise AAGError(f"cannot read the checkpoint {path}: {advice}") from error
    if header.get("format") != FORMAT:
        raise AAGError(f"{path} is a checkpoint of another version (format {header.get('format')}, not {FORMAT})")
    if header["checksum"] != _checksum(tensors):
        raise AAGError(f"cannot use the checkpoint {path}: its checksum is wrong; {advice}")
    return tensors, header["state"]


def _checksum(tensors: dict[str, Tensor]) -> int:
    value = 0
    for name in sorted(tensors):
        value = zlib.crc32(name.encode(), value)
        value = zlib.crc32(tensors[name].reshape(-1).view(torch.uint8).numpy().data, value)
    return value
