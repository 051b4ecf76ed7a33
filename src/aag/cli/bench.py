"""aag bench"""

import json
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from aag.cli.output import make_console
from aag.cli.parsing import parse
from aag.signals import hold_stops

TABLE_WIDTH = 150  # characters, where the output is not a terminal


@dataclass(frozen=True)
class Bench:
    """Measure speed and memory of every stage on this machine, compared with a DataLoader pipeline."""

    device: str = "auto"
    """cpu, cuda, cuda:N, or auto: the GPU if there is one, else the CPU."""
    quick: bool = False
    """Run tiny sizes in seconds, to test the benchmark itself; the numbers mean nothing."""
    save: str | None = None
    """File to write the record to. none: no file. Default: results/bench/DEVICE-DATE.json; with --quick, none."""
    only: tuple[str, ...] = ()
    """Sections to measure: training, pipeline, photographs, decoding, methods, augmentation, evaluation, serving,
    startup. The other sections of the file are kept. Default: all."""
    data: str = "sample"
    """Source of the images, as in aag train. They are repeated to 50,000 (to 3,000 on a CPU) where there are fewer."""
    data_root: Path | None = None
    """Where data sets are stored. Default: $AAG_DATA, else the cache folder."""
    json: bool = False
    """Print the record as JSON instead of tables."""


def run(arguments: list[str]) -> int:
    options = parse(Bench, "bench", arguments)
    with hold_stops():
        from aag.bench.run import bench
    choices = {name: value for name, value in vars(options).items() if name != "json"}
    if options.json:
        record = bench(Console(quiet=True), **choices)
        print(json.dumps(record, indent=1))
        return 0
    console = make_console()
    if not console.is_terminal:
        console.width = max(console.width, TABLE_WIDTH)
    bench(console, **choices)
    return 0
