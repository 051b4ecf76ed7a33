"""aag explore"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rich.console import Console

from aag.cli.output import Printer
from aag.cli.parsing import parse
from aag.settings import Range, Settings
from aag.signals import hold_stops


@dataclass(frozen=True)
class Explore(Settings):
    """Open an embeddings file as a map in the browser, served on this machine only. Needs embedding-atlas.

    The map is computed once and saved as NAME.explore.parquet. For pictures, embed with --thumbnails.
    """

    embeddings: Path
    """File that aag embed wrote."""
    port: Annotated[int, Range(at_least=1, at_most=65_535)] | None = None
    """Port on this machine. Default: 5055, or the next that is free."""
    browser: bool = True
    """Open the browser."""
    device: str = "auto"
    """Where the map is computed: cpu, cuda, cuda:N, or auto: the GPU if there is one, else the CPU."""


def run(arguments: list[str]) -> int:
    options = parse(Explore, "explore", arguments)
    with hold_stops():
        from aag.serving.explore import load_atlas, prepare_map, serve_map
    os.environ["HF_HUB_OFFLINE"] = "1"  # nothing here needs a model
    load_atlas()  # before minutes of computing
    # redirect_stdout hides the server's output; this console keeps the original stdout.
    say = Printer(Console(file=sys.stdout, markup=False, emoji=False))
    prepared = prepare_map(options.embeddings, device=options.device, say=say)
    serve_map(prepared, port=options.port, browser=options.browser, say=say)
    return 0
