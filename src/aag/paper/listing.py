"""What each table and figure shows and needs, and how much of it is done; and the same of every run."""

import textwrap
from collections import Counter
from collections.abc import Mapping

from aag.errors import AAGError
from aag.paper.experiments import PAPER, Figure, Table
from aag.paper.plan import Planned, Reproduce, Standing, select, standing
from aag.paper.results import Results
from aag.text import duration, rough_duration

Stand = Mapping[str, Standing]  # by the run's name
DONE = (Standing.RECORDED, Standing.PARTIAL)
HINT = """\
aag reproduce table2              runs what is missing, resumes what was cut off; Ctrl-C saves, the same command goes on
aag reproduce table1 --list       shows its runs one by one
aag reproduce table2 --plan       prints the commands, for a scheduler; --shard 2/8 takes a part
aag reproduce table1 --dataset cifar10 --network resnet18 --row AAG       takes a column, a row or a cell
aag reproduce page                writes one page: all of it, ours beside the paper's"""


def listing(options: Reproduce, results: Results, width: int) -> str:
    every = select(options, PAPER.values())
    in_all = {run.name: standing(run, results) for run in every}
    # Each on two lines: beside six columns of numbers a sentence has no room.
    lines = [f"{'':<8}{'runs':>5}{'recorded':>10}{'begun':>7}{'stale':>7}{'missing':>9}  {'to go':<15}  title"]
    indent = " " * 8
    for part in PAPER.values():
        runs = chosen(options, part)
        if runs is None:
            continue
        stand = {run.name: standing(run, results) for run in runs}  # a figure may lack what a table does not need
        lines.append(f"{part.id:<8}{counts(runs, stand)}  {to_go(runs, stand, results):<15}  {part.title}")
        lines += textwrap.wrap(first_sentence(part.shows), max(40, width), initial_indent=indent,
                               subsequent_indent=indent)  # fmt: skip
    lines.append("")
    if options.epochs_scale != 1:
        lines.append(
            f"Short versions: {options.epochs_scale:g} of each run's epochs, recorded under names of their own."
        )
    done = sum(each in DONE for each in in_all.values())
    lines.append(f"Many share runs: {len(every)} in all, {done} recorded; to go: {to_go(every, in_all, results)}.")
    if results.all:
        lines.append(f"Times are of training, by the nearest records ({machines(results)}); ? where none is near.")
    if Standing.PARTIAL in in_all.values():
        lines.append("* recorded without something that the table or figure shows.")
    return "\n".join([*lines, "", HINT])


def each(runs: list[Planned], stand: Stand, results: Results) -> str:
    """Run by run. The time of one that is recorded is its own."""
    lines = []
    for run in runs:
        result = results.seed(run.config)
        seconds = result.record["seconds"] if result else results.seconds(run.config)
        time = "?" if seconds is None else duration(seconds) if result else f"about {rough_duration(seconds)}"
        lines.append(f"{stand[run.name]:<10}{time:<17}{run.label}")
    return "\n".join(lines)


def chosen(options: Reproduce, part: Table | Figure) -> list[Planned] | None:
    """None: nothing here fits the filters, which another table does."""
    try:
        return select(options, [part])
    except AAGError:
        return None


def first_sentence(text: str) -> str:
    sentence, dot, _ = text.partition(". ")
    return sentence + dot.strip()


def counts(runs: list[Planned], stand: Stand) -> str:
    found = Counter(stand[run.name] for run in runs)
    recorded = f"{found[Standing.RECORDED] + found[Standing.PARTIAL]}{'*' * bool(found[Standing.PARTIAL])}"
    rest = f"{found[Standing.BEGUN]:>7}{found[Standing.STALE]:>7}{found[Standing.MISSING]:>9}"
    return f"{len(runs):>5}{recorded:>10}{rest}"


def to_go(runs: list[Planned], stand: Stand, results: Results) -> str:
    """How long what is not recorded takes; what a begun run has behind it is not taken off."""
    times = [results.seconds(run.config) for run in runs if stand[run.name] not in DONE]
    known = [time for time in times if time is not None]
    if not times:
        return "–"
    words = [*([rough_duration(sum(known))] if known else []), *(["?"] if len(known) < len(times) else [])]
    return " + ".join(words)


def machines(results: Results) -> str:
    """What the records were made on."""
    return ", ".join(sorted({result.gpu or "a CPU" for result in results.all}))
