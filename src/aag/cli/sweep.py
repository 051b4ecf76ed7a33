"""aag sweep"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_origin

from aag.cli.output import Printer, decoding_progress, make_console, print_rows
from aag.cli.parsing import ALIASES, collect, parse, tidy_source
from aag.cli.train import describe_options, parse_train, peek_option, split_options, write_run_report
from aag.data import TrainTestSets
from aag.errors import AAGError
from aag.settings import Range, option
from aag.signals import RESUMABLE, stop_within
from aag.sweeps import SweepOptions, SweepPlan, SweepResult, SweepRunner
from aag.sweeps.candidates import Candidate, build_candidates, check_names, default_folder
from aag.sweeps.grid import Values, choose_values, read_grid_words
from aag.sweeps.images import SweepImages
from aag.sweeps.results import INVALID, describe_values, table_rows
from aag.text import duration, pluralize, rough_duration
from aag.training import DataSettings, TrainResult, choose_recipe
from aag.training.progress import Progress, stop_on_signals


@dataclass(frozen=True)
class Sweep(SweepOptions):
    """Train with several settings, and rank them on held-out training images. Test images are never used.

    aag sweep --data cifar10 --recipe paper --epochs 30 --grid lr=0.03,0.06 temperature=0.1,0.2

    Every option of aag train works here, too, for all runs. --holdout is 0.1 by default, if there are labels. The same
    command resumes, and with more values it reuses finished runs. Writes sweep.json, sweep.md and the run folders."""

    out: Path | None = None
    """Folder of the sweep. Default: sweeps/ and a name made from data, recipe, what is swept and the shared
    options."""
    minutes: Annotated[float, Range(above=0, at_most=1e6)] | None = None
    """Save and stop within this many minutes, with exit code 75; the same command resumes."""
    list: bool = False
    """Print each setting with its status and time; run nothing."""
    plan: bool = False
    """Print the aag train commands that are left, one per line, for a scheduler; run nothing."""
    json: bool = False
    """Print the table as JSON."""
    report: bool = False
    """Write report.html into each run folder."""


def run(arguments: list[str]) -> int:
    own, shared = split_options(arguments, Sweep, repeatable="--grid")
    options = parse(Sweep, "sweep", own)
    if options.plan and (options.list or options.json):
        raise AAGError("--plan prints commands only; leave out --list and --json")
    console = make_console(stderr=options.json, ignore_write_errors=True)
    with decoding_progress(console) as decoding:
        plan = _make_plan(options, shared, decoding)
        if options.list:
            return _print_list(plan, options.json)
        if options.plan:
            return _print_plan(plan)
        say = Printer(console)

        def after_run(result: TrainResult, sets: TrainTestSets) -> None:
            if options.report:
                write_run_report(result, plan.execution, sets, say)

        with stop_within(options.minutes), stop_on_signals() as stop:
            runner = SweepRunner(
                plan,
                should_stop=stop,
                new_progress=lambda test: Progress(console, test, brief=True),
                after_run=after_run,
                say=say,
            )
            result = runner.run()
    if options.json:
        print(json.dumps([row.to_json() for row in result.rows], indent=1, ensure_ascii=False))
    else:
        _print_result(result, plan, say)
    if result.is_complete:
        return 0 if result.best else 2
    return stop.exit_code if stop() else RESUMABLE  # other processes train the rest


# --- reading the command ----------------------------------------------------------------------------------------------


def _make_plan(options: Sweep, shared: list[list[str]], decoding: Any) -> SweepPlan:
    grid = {ALIASES.get(option(name), option(name))[2:].replace("-", "_"): values
            for name, values in read_grid_words(options.grid).items()}  # fmt: skip
    check_names(grid)
    given = {group[0].partition("=")[0] for group in shared}
    for name in grid:
        if option(name) in given and not options.one_at_a_time:
            raise AAGError(f"{name} is in --grid; leave out {option(name)}")
    base = parse_train([word for group in shared for word in group])
    all_values = choose_values(
        grid, draws=options.random, one_at_a_time=options.one_at_a_time, seed=base.settings.train.seed
    )
    candidates = build_candidates(all_values, lambda values: _make_candidate(values, shared))
    out = options.out or default_folder(candidates[0], grid)
    images = SweepImages(root=base.execution.data_root, progress=decoding)
    return SweepPlan(candidates, collect(SweepOptions, options), base.execution, out, images)


def _make_candidate(values: Values, shared: list[list[str]]) -> Candidate:
    """Parse the shared options with these values, as `aag train` would."""
    swept = {option(name) for name in values}
    words = [word for group in shared if group[0].partition("=")[0] not in swept for word in group]
    data = tidy_source(peek_option(words, "--data") or DataSettings.source)
    recipe = str(values.get("recipe") or peek_option(words, "--recipe") or "auto")
    _, method = choose_recipe(recipe, data, values.get("method") or peek_option(words, "--method"))
    types = describe_options(method)
    for name, value in values.items():
        words += _spell_value(name, str(value), types.get(option(name)))
    request = parse_train(words)
    parsed = request.settings.options()
    typed = {name: parsed.get(name, value) for name, value in values.items()}
    return Candidate(typed, request.settings, request.recipe, request.given)


def _spell_value(name: str, value: str, annotation: Any) -> list[str]:
    """Return the command-line words of an option: a flag for true and false, several words for a list."""
    inner = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    args = get_args(inner)
    if inner is bool:
        if value.lower() not in ("true", "false"):
            raise AAGError(f"{name} takes true or false, not {value!r}")
        return [option(name if value.lower() == "true" else f"no_{name}")]
    if value.lower() == "none" and NoneType in args:
        return [option(name), "None"]
    is_list = get_origin(inner) is tuple or any(get_origin(each) is tuple for each in args)
    return [option(name), *(value.split() if is_list else [value])]


# --- printing ---------------------------------------------------------------------------------------------------------


def _print_list(plan: SweepPlan, as_json: bool) -> int:
    rows = plan.rows()
    if as_json:
        print(json.dumps([row.to_json() for row in rows], indent=1, ensure_ascii=False))
        return 0
    cells = table_rows(rows, one_at_a_time=plan.options.one_at_a_time)
    for cell, row in zip(cells, rows, strict=True):
        if not row.is_finished and (seconds := plan.estimate_seconds(row.epochs)):
            cell["time"] = f"about {duration(seconds) if seconds < 60 else rough_duration(seconds)}"
    print_rows(cells)
    say, left = Printer(), plan.unfinished_trials()
    if len(plan.rungs) > 1:
        rungs = [f"{pluralize(count, 'setting')} for {pluralize(epochs or 0, 'epoch')}" for count, epochs in plan.rungs]
        say(f"rungs    {', '.join(rungs)}; now rung {len(plan.rung_rows())}")
    times = [plan.estimate_seconds(trial.settings.train.epochs) or 0 for trial in left]
    about = f", about {rough_duration(sum(times))}" if sum(times) > 30 else ""
    say(f"left     {pluralize(len(left), 'run')}{about}")
    say(f"sweep    {plan.folder}")
    return 0


def _print_plan(plan: SweepPlan) -> int:
    """Print only the commands to stdout, for a pipe."""
    plan.prepare()
    commands = plan.commands()
    for command in commands:
        print(command)
    if not commands:
        print("nothing to run: everything is done", file=sys.stderr)
    elif len(plan.rung_rows()) < len(plan.rungs):
        print("then run the same command again for the next rung, which depends on these results", file=sys.stderr)
    return 0


def _print_result(result: SweepResult, plan: SweepPlan, say: Printer) -> None:
    say()
    print_rows(table_rows(result.rows, one_at_a_time=plan.options.one_at_a_time))
    for row in result.rows:
        if row.message:
            say(f"{row.status}: {describe_values(row.values)}: {row.message}")
    if any(row.message and row.status != INVALID for row in result.rows):
        say("(--retry-failed runs failed settings again)")
    say(f"ranked   by {result.protocol}")
    say(f"sweep    {result.folder}")
    if not result.is_complete:
        say("\nNot all runs are done. The same command resumes.")
    elif result.best:
        say(f"\nThe best setting, on all images:\n  {result.command}")
    else:
        say("\nNo setting has a result.")
