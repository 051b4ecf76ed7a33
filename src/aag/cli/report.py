"""aag report"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from aag.cli.output import Printer
from aag.cli.parsing import parse
from aag.runs import Run
from aag.serving.options import MAP_IMAGES
from aag.settings import Range, Settings
from aag.signals import hold_stops


@dataclass(frozen=True)
class Report(Settings):
    """Write one HTML page about a run: curves, views, a map of its images, neighbours and classes."""

    run: Path
    """The run folder."""
    out: Path | None = None
    """File to write. Default: report.html in the run folder."""
    points: Annotated[int, Range(at_least=10, at_most=50_000)] = MAP_IMAGES
    """Maximum number of images on the map; a slow machine shows fewer."""
    method: str | None = None
    """FILE.py:CLASS, for a run with a method of your own. The file's code is run only if you give this."""
    data_root: Path | None = None
    """Where data sets are stored. Default: $AAG_DATA, else the cache folder."""
    device: str = "auto"
    """cpu, cuda, cuda:N, or auto: the GPU if there is one, else the CPU."""


def run(arguments: list[str]) -> int:
    options = parse(Report, "report", arguments)
    with hold_stops():
        from aag.methods import load_method
        from aag.serving.report import write_report
    if options.method:
        load_method(options.method)
    path = write_report(
        Run.open(options.run),
        options.out,
        points=options.points,
        data_root=options.data_root,
        device=options.device,
    )
    Printer()(f"report   {path} ({path.stat().st_size / 1e6:.1f} MB)")
    return 0
