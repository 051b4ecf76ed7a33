"""aag evaluate"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.table import Table

from aag.cli.output import Printer, decoding_progress, make_console, print_rows
from aag.cli.parsing import parse, tidy_source
from aag.errors import AAGError
from aag.records import write_record
from aag.runs import Run
from aag.settings import Precision
from aag.signals import hold_stops


@dataclass(frozen=True)
class Evaluate:
    """Evaluate a run by weighted kNN and a linear layer, with the paper's protocols; save the results in its folder."""

    run: Path
    """The run folder."""
    data: str | None = None
    """Labelled data to evaluate on. Default: the data of the run."""
    holdout: float | None = None
    """Fraction of the labelled training images of --data to test on, in place of its test split if there is one."""
    data_root: Path | None = None
    """Where data sets are stored. Default: $AAG_DATA, else the cache folder."""
    k: int = 200
    """Number of neighbours that vote."""
    temperature: float = 0.1
    """Temperature of the kNN's votes."""
    linear: bool = True
    """Run the linear evaluation as well."""
    linear_epochs: int = 50
    """Epochs of the linear layer."""
    device: str = "auto"
    """cpu, cuda, cuda:N, or auto: the GPU if there is one, else the CPU."""
    precision: Precision = "auto"
    """Precision of the network. auto: bf16 on a GPU that supports it, else fp32."""
    record: Path | None = None
    """Folder to write the record of a finished run to: settings, curves, numbers and provenance in one JSON file."""
    tsne: bool = False
    """Also save a t-SNE projection of the test images' embeddings, next to the record (needs --record)."""
    json: bool = False
    """Print the results as JSON; messages go to standard error."""


def run(arguments: list[str]) -> int:
    options = parse(Evaluate, "evaluate", arguments)
    with hold_stops():
        from aag.distributed import read_launch
        from aag.serving import evaluate_run, save_evaluation, write_projection
    if options.data:
        options = replace(options, data=tidy_source(options.data))
    found = Run.open(options.run)
    settings = found.settings()
    if options.record and (options.data or options.holdout or not options.linear):
        raise AAGError("--record needs all results on the run's own data: leave out --data, --holdout and --no-linear")
    usual = ("k", "temperature", "linear_epochs")
    if options.record and any(getattr(options, name) != getattr(Evaluate, name) for name in usual):
        raise AAGError("--record needs the standard protocol: leave out --k, --temperature and --linear-epochs")
    if options.tsne and not options.record:
        raise AAGError("--tsne is saved next to the record: give --record FOLDER, too")

    where: dict[str, Any] = {"data_root": options.data_root, "device": options.device, "precision": options.precision}
    is_main = read_launch().rank == 0
    say = Printer(make_console(stderr=options.json, quiet=not is_main))
    with decoding_progress(say.console) as decoding:
        evaluation = evaluate_run(
            found,
            data=options.data,
            holdout=options.holdout,
            k=options.k,
            temperature=options.temperature,
            linear=options.linear,
            linear_epochs=options.linear_epochs,
            decoding_progress=decoding,
            **where,
        )
    if not is_main:
        return 0
    epochs = settings["train"]["epochs"]
    if evaluation.epoch < epochs:
        say(f"training is unfinished: these are the numbers of epoch {evaluation.epoch} of {epochs}")
    if options.json:
        print_rows(evaluation.results, as_json=True)
    else:
        say.console.print(_table(f"{found.folder.name}, on {evaluation.data}", evaluation.results))
    save_evaluation(evaluation)  # after printing: a full disk loses no number
    say(f"saved in {evaluation.file}")
    if options.record:
        say(f"recorded in {write_record(found, options.record)}")
        if options.tsne:
            say(f"t-SNE saved in {write_projection(found, options.record, **where)}")
    return 0


def _table(title: str, results: list[dict[str, Any]]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("evaluation")
    table.add_column("accuracy", justify="right")
    table.add_column("protocol")
    hidden = ("evaluation", "layer", "data", "train", "test")
    for row in results:
        protocol = ", ".join(f"{name} {value}" for name, value in row["protocol"].items() if name not in hidden)
        table.add_row(row["name"], f"{row['accuracy']:.2f} %", protocol)
    return table
