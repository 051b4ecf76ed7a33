"""aag bench"""

from dataclasses import dataclass
from pathlib import Path

from aag.bench.run import bench
from aag.cli.output import make_console
from aag.cli.parsing import parse

WIDTH = 150  # of the tables, where the output is no terminal


@dataclass(frozen=True)
class Bench:
    """Speed and memory of every stage on this machine, compared with a DataLoader pipeline: tables and a record."""

    device: str = "auto"
    """auto, cpu or cuda."""
    quick: bool = False
    """Tiny sizes, in seconds: a test of the benchmark, no measurement."""
    save: str = ""
    """The record's file, or none. Default: results/bench/DEVICE-DATE.json; with --quick none."""
    only: tuple[str, ...] = ()
    """Sections to run: training, usual, methods, augmentation, evaluation, startup; the others in the record's file
    stay. Default: all."""
    data: str = "sample"
    """Whose images, as in aag train. The bundled ones are repeated to 50,000 (to 3,000 on a CPU)."""
    data_root: str = ""
    """Where data sets are stored. Default: $AAG_DATA, else the cache folder."""


def run(arguments: list[str]) -> int:
    options = parse(Bench, "bench", arguments)
    console = make_console()
    if not console.is_terminal:
        console.width = max(console.width, WIDTH)
    bench(
        console,
        device=options.device,
        quick=options.quick,
        save=options.save or None,
        only=options.only,
        data=options.data,
        data_root=Path(options.data_root) if options.data_root else None,
    )
    return 0
