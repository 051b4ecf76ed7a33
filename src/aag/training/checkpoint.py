"""Checkpoints: written beside the old one and swapped in, checked when read."""

import json
import zlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from aag.errors import AAGError
from aag.files import write_bytes

FORMAT = 1


def save(path: Path, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    """Tensors and JSON-able state in one safetensors file with a checksum."""
    from safetensors.torch import save as to_bytes

    tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    header = {"format": FORMAT, "checksum": _checksum(tensors), "state": state}
    write_bytes(path, to_bytes(tensors, {"aag": json.dumps(header)}))


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    from safetensors import safe_open

    advice = "it is cut off or damaged; choose another --out, or delete the folder to start anew"
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})["aag"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except PermissionError as error:
        raise AAGError(f"can't read {path}: {error.strerror}") from error
    except Exception as error:
        raise AAGError(f"can't read the checkpoint {path}: {advice}") from error
    if header.get("format") != FORMAT:
        raise AAGError(f"{path} has checkpoint format {header.get('format')}; this version reads {FORMAT}")
    if header["checksum"] != _checksum(tensors):
        raise AAGError(f"can't use the checkpoint {path}: its checksum is wrong; {advice}")
    return tensors, header["state"]


def _checksum(tensors: dict[str, Tensor]) -> int:
    value = 0
    for name in sorted(tensors):
        value = zlib.crc32(name.encode(), value)
        value = zlib.crc32(tensors[name].reshape(-1).view(torch.uint8).numpy().data, value)
    return value
