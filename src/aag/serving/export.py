"""Write an encoder for other programs: ONNX, TorchScript, timm, plain PyTorch, the Hugging Face Hub.

Every file is loaded again and compared with the encoder before it is moved to its path. A wrong file is never kept.
"""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args

import torch

from aag import nets
from aag.errors import AAGError, first_line, unknown_name
from aag.files import explain_write_errors
from aag.nets import Encoder
from aag.runs import Run
from aag.serving.formats import WRITERS
from aag.serving.options import ExportFormat

DEFAULT_NAMES = {
    "onnx": "encoder.onnx", "torchscript": "encoder.pt", "timm": "timm.safetensors",
    "safetensors": "encoder.safetensors", "hub": "hub",
}  # fmt: skip


@dataclass(frozen=True)
class Export:
    """An exported encoder."""

    format: ExportFormat
    path: Path  # a file; for hub a folder
    files: tuple[Path, ...]  # all files written
    difference: dict[str, float]  # largest difference from the encoder, by output: features, embedding
    usage: str  # Python code that loads it


def export_encoder(
    model: str | os.PathLike[str] | Encoder, format: ExportFormat, out: str | os.PathLike[str] | None = None
) -> Export:
    """Write the encoder of a run folder or .safetensors file in another format, and check the result.

    out: a file; for the format hub a folder. Default: in the folder `export`, next to the encoder's own file.
    """
    if format not in get_args(ExportFormat):
        raise unknown_name("format", format, get_args(ExportFormat))
    run = None
    if isinstance(model, Encoder):
        if out is None:
            raise AAGError("an encoder in memory has no run folder to write to; give out=PATH")
        encoder = model
    else:
        encoder = nets.load(model)
        folder = Path(model) if Path(model).is_dir() else Path(model).parent
        run = Run(folder) if Run(folder).exists() else None
        out = out or folder / "export" / DEFAULT_NAMES[format]
    path = Path(out)
    if format == "hub" and path.exists() and not path.is_dir():
        raise AAGError(f"{path} is a file; --format hub writes a folder")
    if format != "hub" and path.is_dir():
        path /= DEFAULT_NAMES[format]
    own = () if isinstance(model, Encoder) else (Path(model), Run(Path(model)).encoder_file)
    if path.exists() and any(file.exists() and path.samefile(file) for file in own):
        raise AAGError(f"{path} is the encoder itself; give another --out")
    # Building networks draws weights: leave the caller's random state as it was.
    with torch.random.fork_rng(devices=[]), explain_write_errors(path):
        encoder = _to_cpu(encoder)
        path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".export-", dir=path.parent) as temporary:
            made = Path(temporary, path.name)
            difference, usage = WRITERS[format](encoder, made, run)
            files = _move(made, path)
    return Export(format, path, files, difference, usage.replace("PATH", str(path)))


def push_to_hub(folder: str | os.PathLike[str], repository: str) -> str:
    """Upload a folder that the format hub wrote to the Hugging Face Hub, and return its address."""
    try:
        from huggingface_hub import HfApi
    except ImportError:
        raise AAGError("--push needs huggingface_hub: pip install huggingface_hub") from None
    try:
        api = HfApi()
        address = api.create_repo(repository, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=Path(folder))
        return str(address)
    except Exception as error:  # offline, no token, a wrong name
        raise AAGError(
            f"cannot push to {repository}: {first_line(error)[:200]}; the folder {folder} is complete, push it later"
        ) from error


def _to_cpu(encoder: Encoder) -> Encoder:
    """Return the encoder on the CPU, in eval mode and without ghost batch norm; the caller's stays as it is."""
    if encoder.mean.device.type == "cpu" and not encoder.training and not encoder.spec.bn_group_size:
        return encoder
    if encoder.spec.is_custom:
        raise AAGError("an encoder with your own backbone must be on the CPU in eval mode; call encoder.cpu().eval()")
    copy = nets.build(replace(encoder.spec, bn_group_size=0))
    copy.load_state_dict({name: tensor.cpu() for name, tensor in encoder.state_dict().items()})
    copy.extra = dict(encoder.extra)
    return copy.eval()


def _move(made: Path, path: Path) -> tuple[Path, ...]:
    """Move the checked files to `path` and next to it, or into it if it is a folder; return their paths."""
    source, target = (made, path) if made.is_dir() else (made.parent, path.parent)
    target.mkdir(exist_ok=True)
    moved = [target / each.name for each in sorted(source.iterdir())]
    for each in moved:
        os.replace(source / each.name, each)
    return tuple(moved)
