"""aag export"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from aag.cli.output import Printer, print_rows
from aag.cli.parsing import parse
from aag.errors import AAGError
from aag.serving.options import ExportFormat
from aag.signals import hold_stops


@dataclass(frozen=True)
class Export:
    """Write an encoder for other programs. The file is loaded again and compared with the encoder."""

    model: Path
    """A run folder, or an encoder's .safetensors file."""
    format: ExportFormat = "onnx"
    """onnx: features and embedding from uint8 images, any batch size. torchscript: the same for torch.jit.load.
    timm: the backbone for timm.create_model. safetensors: weights, and a file that loads them without aag.
    hub: a folder for the Hugging Face Hub, with a model card."""
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None
    """File to write, or folder for --format hub. Default: in export/, next to the encoder."""
    push: str | None = None
    """Upload to this repository of the Hugging Face Hub, such as me/my-encoder (--format hub)."""
    json: bool = False
    """Print JSON instead of text."""


def run(arguments: list[str]) -> int:
    options = parse(Export, "export", arguments)
    with hold_stops():
        from aag.serving import export_encoder, push_to_hub
    if options.push and options.format != "hub":
        raise AAGError(f"--push uploads a hub folder, not --format {options.format}; use --format hub")
    made = export_encoder(options.model, options.format, options.out)
    if options.json:
        rows = [{"file": str(path), "format": made.format, **made.difference} for path in made.files]
        print_rows(rows, as_json=True)
    else:
        say = Printer()
        for path in made.files:
            say(f"written  {path}")
        errors = ", ".join(f"{name} {value:.1e}" for name, value in made.difference.items())
        say(f"checked  largest difference from the encoder: {errors} (random and real images, batches of 1, 3 and 16)")
        say(f"\n{made.usage}")
    if options.push:
        address = push_to_hub(made.path, options.push)
        if not options.json:
            Printer()(f"\npushed   {address}")
    return 0
