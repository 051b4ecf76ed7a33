"""aag train"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields, make_dataclass
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any

import tyro

from aag.cli.output import Printer, decoding_progress, make_console
from aag.cli.parsing import collect, given_options, option_types, parse_sections, tidy_source, tyro_fields
from aag.data.datasets import DATASETS
from aag.distributed import ReportedByMainError, read_launch
from aag.errors import AAGError, first_line, unknown_name
from aag.methods import load_method, methods
from aag.nets import NetworkSettings
from aag.settings import TrainSettings, option
from aag.text import duration, join_or
from aag.training import (
    DataSettings,
    Execution,
    RunSettings,
    TrainResult,
    choose_recipe,
    recipe_settings,
    recipes,
    train_run,
)
from aag.training.defaults import has_image_files
from aag.training.progress import Progress, stop_on_signals

REPORT = Annotated[bool, tyro.conf.arg(help="Write report.html into the run folder at the end; see aag report.")]
REPORT_POINTS, REPORT_SECONDS = 3000, 5.0  # fewer than aag report takes: training should end soon


@dataclass(frozen=True)
class Request:
    """A parsed command."""

    settings: RunSettings
    recipe: str
    given: frozenset[str]  # names of the options on the command line
    execution: Execution
    report: bool  # whether to write report.html at the end


def run(arguments: list[str]) -> int:
    launch = read_launch()
    is_main = launch.rank == 0
    try:
        request = parse_train(arguments)
    except AAGError as error:  # said once per machine: a method's file may be missing on one
        raise error if launch.local_rank == 0 else ReportedByMainError(str(error)) from error
    console = make_console(quiet=not is_main, ignore_write_errors=True)
    sets: Any = None

    def on_loaded(loaded: Any) -> None:
        nonlocal sets
        sets, progress.test_set = loaded, loaded[1]

    with stop_on_signals() as stop, Progress(console) as progress, decoding_progress(console) as decoding:
        result = train_run(
            request.settings,
            request.execution,
            recipe=request.recipe,
            given=request.given,
            callbacks=[progress],
            should_stop=stop,
            on_loaded=on_loaded,
            decoding_progress=decoding,
            say=progress.say,
        )
    say = Printer(console)
    _print_summary(result, request, say)
    if result.complete and request.report and is_main:
        if request.settings.data.start_early:  # this set has no file names, and repeats images for unreadable files
            sets = None
        if write_run_report(result, request.execution, sets, say):
            say(f"\nreport   {result.run.report_file}")
    return 0 if result.complete else stop.exit_code


def parse_train(arguments: list[str]) -> Request:
    """Parse a command line. Data, recipe and method come first: they decide the other options and their defaults."""
    data = tidy_source(peek_option(arguments, "--data") or DataSettings.source)
    wanted = peek_option(arguments, "--recipe") or "auto"
    recipe, method = choose_recipe(wanted, data, peek_option(arguments, "--method"))
    base = recipe_settings(recipe, data, method)
    execution = Execution.for_recipe(recipe, base)
    about = (
        f"Train an encoder without labels, or resume the run that the same command started.\n\n"
        f"The defaults below are those of --recipe {recipe} with --method {method} on --data {data}; "
        "each method has options of its own (aag train --method NAME --help).\n\n"
        "For a folder without --recipe, image size, network, batch size and epochs are chosen for the images and the "
        "device, unless you give them."
    )
    _check_method_options(arguments, base)
    cls = _command(base, recipe, execution)
    parsed: Any = parse_sections(cls, "train", arguments, about)
    settings = RunSettings(
        DataSettings(data, **{f.name: getattr(parsed.run, f.name) for f in fields(DataSettings) if f.name != "source"}),
        collect(NetworkSettings, parsed.network),
        method,
        collect(type(base.method_settings), parsed.method_options),
        collect(TrainSettings, parsed.training),
    )
    # For a folder without a recipe, training chooses; else the name of the recipe says it all.
    chosen = wanted if has_image_files(data) else recipe
    return Request(
        settings, chosen, given_options(arguments), collect(Execution, parsed.execution), parsed.execution.report
    )


def _check_method_options(arguments: list[str], base: RunSettings) -> None:
    """Raise for an option that another method has: more helpful than "unknown option"."""
    own = base.options()
    for word in arguments:
        name = word.partition("=")[0].removeprefix("--").removeprefix("no-").replace("-", "_")
        others = [other for other, cls in methods().items() if name in cls.settings_type.__dataclass_fields__]
        if word.startswith("--") and others and name not in own:
            raise AAGError(f"{option(name)} is an option of {join_or(others)}, not of {base.method}; leave it out")


def _command(base: RunSettings, recipe: str, execution: Execution) -> type:
    """Make the dataclass of all options, with the recipe's values as defaults."""
    text = [
        (
            "data",
            f"A known data set ({', '.join(DATASETS)}), a folder of images, shards (.tar as WebDataset writes them, "
            ".parquet; a file, a pattern or a folder), a URL of these, hf:OWNER/NAME, or an .npz file.",
            base.data.source,
        ),
        ("recipe", f"Named settings that the other options change: auto, {', '.join(recipes())}.", recipe),
        ("method", f"{', '.join(methods())}, or FILE.py:CLASS for a method of your own.", base.method),
    ]
    first = [(name, Annotated[str, tyro.conf.arg(help=about)], default) for name, about, default in text]
    sections = {  # each with its title in the help
        "run": ("images and method", first + tyro_fields(DataSettings, base.data, leave_out=["source"])),
        "method_options": (f"method {base.method}", tyro_fields(type(base.method_settings), base.method_settings)),
        "network": ("network", tyro_fields(NetworkSettings, base.encoder)),
        "training": ("training", tyro_fields(TrainSettings, base.train)),
        "execution": ("execution", [*tyro_fields(Execution, execution), ("report", REPORT, True)]),
    }
    found: list[Any] = []
    for name, (title, options) in sections.items():
        section: Any = make_dataclass(name, options, frozen=True)
        found.append((name, Annotated[section, tyro.conf.arg(name=title)], section()))
    return make_dataclass("Train", found, frozen=True)


@cache
def describe_options(method: str) -> dict[str, Any]:
    """Return all option words of `aag train --method METHOD`, with their types."""
    recipe, _ = choose_recipe("auto", DataSettings.source, method)
    return option_types(_command(recipe_settings(recipe, method=method), recipe, Execution()))


def split_options(arguments: Sequence[str], cls: type, repeatable: str = "") -> tuple[list[str], list[list[str]]]:
    """Split arguments into the words of a command's own options and those of `aag train`, one list per option.

    The values of a `repeatable` option are joined.
    """
    names = {option(field.name) for field in fields(cls)}
    flags = {f"--no-{name[2:]}" for name in names}
    own: list[str] = []
    joined: list[str] = []
    others: list[list[str]] = []
    target = own
    for word in arguments:
        name = word.partition("=")[0].replace("_", "-")
        if name == repeatable:
            target = joined
            if "=" in word:
                joined.append(word.partition("=")[2])
        elif name in names or name in flags or name in ("--help", "-h"):
            target = own
            own.append(word)
        elif word.startswith("--"):
            if get_close_matches(name, names, cutoff=0.8) and name not in describe_options("aag"):
                raise unknown_name("option", name, names, "--help lists them")
            target = [name + word[len(name) :]]
            others.append(target)
        else:
            target.append(word)
    return [*own, *([repeatable, *joined] if joined else [])], others


def peek_option(arguments: list[str], wanted: str) -> str | None:
    """Return the value of an option before the other options are known; None if it is not given."""
    found = None
    for position, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name == wanted:
            found = value if equals else (arguments[position + 1] if position + 1 < len(arguments) else "")
    return found


def write_run_report(result: TrainResult, execution: Execution, sets: Any, say: Printer) -> bool:
    """Write the report of a finished run, unless it is up to date. A failure prints a warning and returns False."""
    from aag.serving.report import write_report

    run = result.run
    try:
        if not run.report_file.exists() or run.report_file.stat().st_mtime < run.encoder_file.stat().st_mtime:
            device, root = execution.device, execution.data_root
            write_report(run, sets=sets, points=REPORT_POINTS, seconds=REPORT_SECONDS, data_root=root, device=device)
        return True
    except Exception as error:
        say(f"warning: no report ({first_line(error)}); try aag report {shlex.quote(str(run.folder))}")
        return False


def _print_summary(result: TrainResult, request: Request, say: Printer) -> None:
    folder, summary, settings = result.run.folder, result.summary, request.settings
    if not result.complete:
        say(f"\nStopped and saved. The same command resumes from the last checkpoint, in {folder}")
        return
    say()
    if summary.knn_last is not None:
        untrained = "" if summary.knn_untrained is None else f"untrained {summary.knn_untrained:.2f} %  →  "
        say(f"kNN      {untrained}trained {summary.knn_last:.2f} %  (last epoch; best {summary.knn_best:.2f} %)")
    if summary.seconds is not None:
        speed = f" at {summary.views_per_second:,.0f} views/s" if summary.views_per_second else ""
        say(f"time     {duration(summary.seconds)} of training{speed}")
    if result.verdict:
        say(f"health   {result.verdict}")
    if summary.missing:
        say(f"warning: {summary.missing}")
    say(f"run      {folder}")
    say("\nNext:")
    path, images = shlex.quote(str(folder)), shlex.quote(settings.data.source)
    if summary.knn_last is not None:
        say(f"  aag evaluate {path}")
    say(f"  aag embed {path} {images} -o embeddings.parquet")
    dataset = DATASETS.get(settings.data.source)
    if not dataset:
        say(f"  aag search {path} {images} QUERY.jpg     # also dedupe, cluster, label, export")
    if dataset and dataset.bundled:
        is_other_method = load_method(settings.method) is not methods()["aag"]
        method = f" --method {settings.method}" if is_other_method else ""
        setup = f"{method}   # with its own recipe" if is_other_method else " --recipe paper   # the paper's AAG"
        say(f"  aag train --data FOLDER{method}     # your own images, no labels needed")
        say(f"  aag train --data cifar10{setup}; aag data fetch cifar10 first")
