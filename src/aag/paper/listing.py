"""List the tables and figures, what each needs and how much of it is done; or every run."""

import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from aag.errors import AAGError
from aag.paper.experiments import PAPER, Part
from aag.paper.plan import PlannedRun, RecordStatus, ReproduceOptions, record_status, select_runs
from aag.paper.results import Results
from aag.text import duration, rough_duration

Statuses = Mapping[str, RecordStatus]  # by the run's name
DONE = (RecordStatus.RECORDED, RecordStatus.INCOMPLETE)
HINT = """\
aag reproduce table2              run what is missing and resume what was interrupted; Ctrl-C saves
aag reproduce table1 --list       list its runs
aag reproduce table2 --minutes 9  save and stop within 9 minutes, with exit code 75; the same command resumes
aag reproduce table2 --plan       print the commands, for a scheduler; --shard 2/8 takes one part of eight
aag reproduce table1 --dataset cifar10 --network resnet18 --row AAG       select a column, a row or a cell
aag reproduce figure4 --save fig4.pdf     draw a figure from the records
aag reproduce page                write one page: all tables and figures, our numbers next to the paper's"""


def list_parts(options: ReproduceOptions, results: Results, width: int) -> str:
    every = select_runs(options, PAPER.values())
    all_statuses = {run.name: record_status(run, results) for run in every}
    # Two lines each: a sentence does not fit next to six columns of numbers.
    lines = [f"{'':<8}{'runs':>5}{'recorded':>10}{'started':>9}{'stale':>7}{'missing':>9}  {'time left':<15}  title"]
    indent = " " * 8
    for part, statuses, times in _part_statuses(options, results):
        lines.append(f"{part.id:<8}{_counts(statuses)}  {time_left(times):<15}  {part.title}")
        lines += textwrap.wrap(
            _first_sentence(part.shows), max(40, width), initial_indent=indent, subsequent_indent=indent
        )
    lines.append("")
    if options.epochs_scale != 1:
        lines.append(f"Short versions: {options.epochs_scale:g} of each run's epochs, recorded under their own names.")
    done = sum(status in DONE for status in all_statuses.values())
    left = time_left(estimate_times(every, all_statuses, results))
    lines.append(f"Tables and figures share runs: {len(every)} in total, {done} recorded; time left: {left}.")
    if results.all:
        names = machine_names(results)
        lines.append(f"Times are training times, estimated from similar records ({names}); ?: no record.")
    if RecordStatus.INCOMPLETE in all_statuses.values():
        lines.append("* recorded without something that the table or figure shows.")
    return "\n".join([*lines, "", HINT])


def list_runs(runs: list[PlannedRun], statuses: Statuses, results: Results) -> str:
    """Return one line per run; the time of a recorded run is its own, of others an estimate."""
    lines = []
    for run in runs:
        seconds, is_estimate = _run_seconds(run, results)
        time = "?" if seconds is None else f"about {rough_duration(seconds)}" if is_estimate else duration(seconds)
        stale = results.stale_records(run.experiment)[:1] if statuses[run.name] is RecordStatus.STALE else []
        lines.append(f"{statuses[run.name]:<12}{time:<17}{run.label}" + "".join(f"; {each}" for each in stale))
    return "\n".join(lines)


def part_rows(options: ReproduceOptions, results: Results) -> list[dict[str, Any]]:
    """Return a row per table and figure: its runs, how many are in each status, and the seconds left."""
    rows = []
    for part, statuses, times in _part_statuses(options, results):
        counts = Counter(statuses.values())
        left = None if None in times else round(sum(time for time in times if time is not None))
        by_status = {status.value: counts[status] for status in RecordStatus}
        rows.append({"name": part.id, "title": part.title, "runs": len(statuses), **by_status, "seconds_left": left})
    return rows


def run_rows(runs: list[PlannedRun], statuses: Statuses, results: Results) -> list[dict[str, Any]]:
    """Return a row per run; the seconds of a recorded run are its own, of others an estimate."""
    rows = []
    for run in runs:
        seconds, is_estimate = _run_seconds(run, results)
        row = {"name": run.name, "status": statuses[run.name].value, "parts": list(run.parts), "seconds": seconds}
        rows.append({**row, "is_estimate": is_estimate})
    return rows


class _PartStatuses(NamedTuple):
    """A table or figure, with the selected runs that it needs."""

    part: Part
    statuses: Statuses
    times_left: list[float | None]  # see `estimate_times`


def _part_statuses(options: ReproduceOptions, results: Results) -> Iterator[_PartStatuses]:
    """Yield the tables and figures that have selected runs."""
    for part in PAPER.values():
        try:
            runs = select_runs(options, [part])
        except AAGError:  # the filters match only other parts
            continue
        statuses = {run.name: record_status(run, results) for run in runs}  # a figure may need more than a table
        yield _PartStatuses(part, statuses, estimate_times(runs, statuses, results))


def _run_seconds(run: PlannedRun, results: Results) -> tuple[float | None, bool]:
    """Return the training time of a run, and whether it is an estimate; None if it is not known."""
    result = results.find_result(run.experiment)
    return (result.seconds, False) if result else (results.estimate_seconds(run.experiment), True)


def _first_sentence(text: str) -> str:
    sentence, dot, _ = text.partition(". ")
    return sentence + dot.strip()


def _counts(statuses: Statuses) -> str:
    found = Counter(statuses.values())
    incomplete = found[RecordStatus.INCOMPLETE]
    recorded = f"{found[RecordStatus.RECORDED] + incomplete}{'*' * bool(incomplete)}"
    rest = f"{found[RecordStatus.STARTED]:>9}{found[RecordStatus.STALE]:>7}{found[RecordStatus.MISSING]:>9}"
    return f"{len(statuses):>5}{recorded:>10}{rest}"


def estimate_times(runs: list[PlannedRun], statuses: Statuses, results: Results) -> list[float | None]:
    """Return the estimated training seconds of each run that is not recorded; None if unknown.

    Started runs count whole.
    """
    return [results.estimate_seconds(run.experiment) for run in runs if statuses[run.name] not in DONE]


def time_left(times: list[float | None]) -> str:
    """Return the sum of `estimate_times` in words: 5 min + ?, if some are unknown."""
    known = [time for time in times if time is not None]
    if not times:
        return "–"
    words = [*([rough_duration(sum(known))] if known else []), *(["?"] if len(known) < len(times) else [])]
    return " + ".join(words)


def machine_names(results: Results) -> str:
    """Name what the records were made on."""
    return ", ".join(sorted({result.machine for result in results.all}))
