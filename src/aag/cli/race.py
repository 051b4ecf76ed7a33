"""aag race"""

from dataclasses import dataclass

from aag.cli.output import Printer, make_console, print_rows
from aag.cli.parsing import collect, parse
from aag.cli.train import parse_train, split_options
from aag.errors import AAGError
from aag.paper import Experiment, Results
from aag.race import DATA, FULL_SEEDS, RaceSettings, leaderboard, run_entry


@dataclass(frozen=True)
class Race(RaceSettings):
    """Print the leaderboard: which training reaches a kNN accuracy fastest, by the records.

    aag race --recipe paper --epochs 1000

    With --recipe or --method, train, evaluate and record that entry first; takes every option of aag train. The
    accuracy is that of the last epoch on the test split, the mean of all seeds. The time is that of the whole training.
    Choose settings with aag sweep, which never uses test images."""

    json: bool = False
    """Print the leaderboard as JSON."""


def run(arguments: list[str]) -> int:
    own, shared = split_options(arguments, Race)
    options = parse(Race, "race", own)
    race = collect(RaceSettings, options)
    words = [word for group in shared for word in group]
    given = {group[0].partition("=")[0] for group in shared}
    request = parse_train(words if "--data" in given else ["--data", DATA, *words])
    code = 0
    if given & {"--recipe", "--method"}:
        if "--seed" in given or "--out" in given:
            raise AAGError("an entry has the seeds 0, 1, … (--seeds) and a folder for each; leave out --seed and --out")
        console = make_console(stderr=options.json, ignore_write_errors=True)
        code = run_entry(Experiment(request.settings, request.recipe), request.execution, race, console)
    elif extra := given - {"--data", "--network", "--width", "--image-size"}:
        raise AAGError(f"{min(extra)} belongs to an entry; name its --recipe or --method")
    data, network = request.settings.data.source, request.settings.encoder.network
    entries = leaderboard(Results(race.results), race.target, request.settings)
    rows = [{"place": place, **entry.row()} for place, entry in enumerate(entries, 1)]
    if options.json or rows:
        print_rows(rows, as_json=options.json, title=f"kNN of at least {race.target:g} % on {data} with {network}")
    else:
        Printer()(f"no record in {race.results} reaches a kNN of {race.target:g} % on {data} with {network}")
    if rows and not options.json:
        Printer()(f"Entries with fewer than {FULL_SEEDS} seeds are provisional.")
    return code
