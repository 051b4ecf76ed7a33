"""List the tables and figures, what each needs and how much of it is done; or every run."""

import textwrap
from collections import Counter
from collections.abc import Mapping
from typing import Any

from aag.errors import AAGError
from aag.paper.experiments import PAPER, Part
from aag.paper.plan import PlannedRun, Reproduce, RunStatus, run_status, select_runs
from aag.paper.results import Results
from aag.text import duration, rough_duration

Statuses = Mapping[str, RunStatus]  # by the run's name
DONE = (RunStatus.RECORDED, RunStatus.INCOMPLETE)
HINT = """\
aag reproduce table2              run what is missing and resume what was interrupted; Ctrl-C saves
aag reproduce table1 --list       list its runs
aag reproduce table2 --minutes 9  save and stop within 9 minutes, with exit code 75; the same command resumes
aag reproduce table2 --plan       print the commands, for a scheduler; --shard 2/8 takes one part of eight
aag reproduce table1 --dataset cifar10 --network resnet18 --row AAG       select a column, a row or a cell
aag reproduce figure4 --save fig4.pdf     draw a figure from the records
aag reproduce page                write one page: all tables and figures, our numbers next to the paper's"""


def list_parts(options: Reproduce, results: Results, width: int) -> str:
    every = select_runs(options, PAPER.values())
    all_statuses = {run.name: run_status(run, results) for run in every}
    # Two lines each: a sentence does not fit next to six columns of numbers.
    lines = [f"{'':<8}{'runs':>5}{'recorded':>10}{'started':>9}{'stale':>7}{'missing':>9}  {'time left':<15}  title"]
    indent = " " * 8
    for part in PAPER.values():
        runs = _select_part(options, part)
        if runs is None:
            continue
        statuses = {run.name: run_status(run, results) for run in runs}  # a figure may need more than a table
        lines.append(f"{part.id:<8}{_counts(statuses)}  {time_left(runs, statuses, results):<15}  {part.title}")
        lines += textwrap.wrap(
            _first_sentence(part.shows), max(40, width), initial_indent=indent, subsequent_indent=indent
        )
    lines.append("")
    if options.epochs_scale != 1:
        lines.append(f"Short versions: {options.epochs_scale:g} of each run's epochs, recorded under their own names.")
    done = sum(status in DONE for status in all_statuses.values())
    left = time_left(every, all_statuses, results)
    lines.append(f"Tables and figures share runs: {len(every)} in total, {done} recorded; time left: {left}.")
    if results.all:
        names = machine_names(results)
        lines.append(f"Times are training times, estimated from similar records ({names}); ?: no record.")
    if RunStatus.INCOMPLETE in all_statuses.values():
        lines.append("* recorded without something that the table or figure shows.")
    return "\n".join([*lines, "", HINT])


def list_runs(runs: list[PlannedRun], statuses: Statuses, results: Results) -> str:
    """Return one line per run; the time of a recorded run is its own, of others an estimate."""
    lines = []
    for run in runs:
        result = results.same_seed(run.experiment)
        seconds = result.seconds if result else results.estimate_seconds(run.experiment)
        time = "?" if seconds is None else duration(seconds) if result else f"about {rough_duration(seconds)}"
        stale = [str(each) for each in results.stale_records(run.experiment) if statuses[run.name] is RunStatus.STALE]
        lines.append(f"{statuses[run.name]:<12}{time:<17}{run.label}" + "".join(f"; {text}" for text in stale[:1]))
    return "\n".join(lines)


def part_rows(options: Reproduce, results: Results) -> list[dict[str, Any]]:
    """Return a row per table and figure: its runs, how many are in each status, and the seconds left."""
    rows = []
    for part in PAPER.values():
        runs = _select_part(options, part)
        if runs is None:
            continue
        statuses = [run_status(run, results) for run in runs]
        times = [
            results.estimate_seconds(run.experiment) for run, at in zip(runs, statuses, strict=True) if at not in DONE
        ]
        counts = {status.value: statuses.count(status) for status in RunStatus}
        left = None if None in times else round(sum(time for time in times if time is not None))
        rows.append({"name": part.id, "title": part.title, "runs": len(runs), **counts, "seconds_left": left})
    return rows


def run_rows(runs: list[PlannedRun], statuses: Statuses, results: Results) -> list[dict[str, Any]]:
    """Return a row per run; the seconds of a recorded run are its own, of others an estimate."""
    rows = []
    for run in runs:
        result = results.same_seed(run.experiment)
        seconds = result.seconds if result else results.estimate_seconds(run.experiment)
        row = {"name": run.name, "status": statuses[run.name].value, "parts": list(run.parts), "seconds": seconds}
        rows.append({**row, "is_estimate": result is None})
    return rows


def _select_part(options: Reproduce, part: Part) -> list[PlannedRun] | None:
    """Return the selected runs of a part; None if the filters match only other parts."""
    try:
        return select_runs(options, [part])
    except AAGError:
        return None


def _first_sentence(text: str) -> str:
    sentence, dot, _ = text.partition(". ")
    return sentence + dot.strip()


def _counts(statuses: Statuses) -> str:
    found = Counter(statuses.values())
    recorded = f"{found[RunStatus.RECORDED] + found[RunStatus.INCOMPLETE]}{'*' * bool(found[RunStatus.INCOMPLETE])}"
    rest = f"{found[RunStatus.STARTED]:>9}{found[RunStatus.STALE]:>7}{found[RunStatus.MISSING]:>9}"
    return f"{len(statuses):>5}{recorded:>10}{rest}"


def time_left(runs: list[PlannedRun], statuses: Statuses, results: Results) -> str:
    """Estimate the training time of what is not recorded; started runs count whole."""
    times = [results.estimate_seconds(run.experiment) for run in runs if statuses[run.name] not in DONE]
    known = [time for time in times if time is not None]
    if not times:
        return "–"
    words = [*([rough_duration(sum(known))] if known else []), *(["?"] if len(known) < len(times) else [])]
    return " + ".join(words)


def machine_names(results: Results) -> str:
    """Name what the records were made on."""
    return ", ".join(sorted({result.machine for result in results.all}))
