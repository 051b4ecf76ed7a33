"""One checkpoint: replaced atomically when written, verified when read."""

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from aag import tensor_files
from aag.errors import AAGError
from aag.files import parse_json
from aag.tensor_files import DamagedFileError

FORMAT = 3  # 2 had a checksum of the tensors only
MAX_THREADS = 4096
_STATE_TYPES = {
    "settings": dict, "images": str, "spec": str, "threads": int, "processes": int, "epoch": int, "step": int,
    "seconds": float, "lr_factor": float,
}  # fmt: skip


def save(path: Path, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    """Write tensors and JSON-able state into one safetensors file. Its hash covers all of them."""
    header = {"format": FORMAT, "state": state}
    tensor_files.write(path, tensor_files.to_row_major(tensors), {"aag": json.dumps(header, sort_keys=True)})


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the state. Raise a DamagedFileError for a file that is not as it was written."""
    header = tensor_files.read_header(path)
    try:
        about = parse_json(header.metadata["aag"])
        found, state = about["format"], about.get("state")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedFileError(f"{path} is damaged: it is not a checkpoint of aag") from error
    if found != FORMAT:
        raise AAGError(
            f"{path} is a checkpoint of another version (format {found!r:.20}, not {FORMAT}); "
            "finish the run with the version that started it, or choose another --out"
        )
    if header.hash is None:
        raise DamagedFileError(f"{path} is damaged: it has no checksum")
    tensors = tensor_files.read(path)[1]
    _check_state(path, state)
    return tensors, state


def read_images(path: Path) -> str | None:
    """Return the hash of the images that a checkpoint was trained on; None where it cannot be read."""
    try:
        found = parse_json(tensor_files.read_header(path).metadata["aag"])["state"]["images"]
    except (AAGError, ValueError, KeyError, TypeError):
        return None
    return str(found)


def _check_state(path: Path, state: Any) -> None:
    values = state if isinstance(state, dict) else {}
    for name, expected in _STATE_TYPES.items():
        if type(values.get(name)) not in ((int, float) if expected is float else (expected,)):
            raise DamagedFileError(f"{path} is damaged: its {name} is {values.get(name)!r:.40}")
    sizes = (values["epoch"], values["step"], values["seconds"], values["lr_factor"])
    if min(sizes) < 0 or not 1 <= values["threads"] <= MAX_THREADS:
        raise DamagedFileError(f"{path} is damaged: its state holds impossible numbers")
