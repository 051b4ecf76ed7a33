"""aag reproduce"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from aag.cli.output import Printer, make_console
from aag.cli.parsing import parse
from aag.paper.page import write_pages
from aag.paper.plan import ReproduceOptions
from aag.paper.runner import reproduce


@dataclass(frozen=True)
class Reproduce(ReproduceOptions):
    """Run the missing runs of the paper's tables and figures: skip recorded runs, and resume interrupted ones.

    Without a name, list all tables and figures, the runs that they need, and how many are done. `aag reproduce page`
    writes all of them as one page, with our numbers next to the paper's."""

    what: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[NAME ...]")] = ()


@dataclass(frozen=True)
class Page:
    """All tables and figures on one page, ours next to the paper's, drawn from the records."""

    out: Path = Path("reproduction.html")
    """The page: one HTML file that needs nothing else."""
    markdown: Path | None = None
    """Also write the page as Markdown to this file."""
    results: Path = Path("results")
    """Folder of the records."""


SUBCOMMANDS = {"page": Page}


def run(arguments: list[str]) -> int:
    if arguments[:1] != ["page"]:
        return reproduce(parse(Reproduce, "reproduce", arguments), make_console(ignore_write_errors=True))
    options = parse(Page, "reproduce page", arguments[1:])
    for text in write_pages(options.results, options.out, options.markdown):
        print(f"warning: {text}", file=sys.stderr)
    for path in filter(None, (options.out, options.markdown)):
        Printer()(f"written to {path}")
    return 0
