"""Train, evaluate and record the missing runs of a table or figure, one after the other."""

import json
import sys
import traceback
from collections import Counter
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile

import torch
from rich.console import Console

from aag.data import TrainTestSets
from aag.data.datasets import DATASETS, require_files
from aag.distributed import read_launch
from aag.errors import AAGError
from aag.files import explain_write_errors
from aag.locks import LockedError
from aag.paper.listing import (
    Statuses,
    estimate_times,
    list_parts,
    list_runs,
    machine_names,
    part_rows,
    run_rows,
    time_left,
)
from aag.paper.page import save_figure
from aag.paper.plan import (
    TSNE,
    PlannedRun,
    RecordStatus,
    ReproduceOptions,
    command,
    has_run_folder,
    missing_needs,
    record_status,
    select_runs,
)
from aag.paper.results import Results, setting_differences
from aag.records import write_record
from aag.runs import Run
from aag.serving import evaluate_run, save_evaluation, write_projection
from aag.signals import INTERRUPTED, RESUMABLE, Terminated, stop_within
from aag.text import pluralize
from aag.training import DataSettings, RunSettings, load_sets, train_run
from aag.training.progress import Progress, stop_on_signals
from aag.training.runtime import find_device, free_memory


class Stopped(Exception):
    """Training stopped on request, and was saved."""

    def __init__(self, exit_code: int) -> None:
        super().__init__()
        self.exit_code = exit_code


def reproduce(options: ReproduceOptions, console: Console) -> int:
    """List, plan, draw or run, as the options say. Return 0, 2 where a run failed, or the exit code of a stop."""
    if not options.what and (options.shard or options.save):
        raise AAGError("--shard and --save need a table or figure (or all), such as table2")
    if not options.what and (options.list or options.plan):
        options = replace(options, what=("all",))
    if options.json and (options.save or options.plan or bool(options.what) != options.list):
        raise AAGError("--json prints a listing: give no table or figure, or give --list, too")
    if options.minutes is not None and not 0 < options.minutes <= 1e6:
        raise AAGError(f"--minutes must be above 0 and at most 1000000, not {options.minutes:g}")
    runs = select_runs(options) if options.what and not options.save else []
    results = Results(options.results)
    statuses = {run.name: record_status(run, results) for run in runs}
    text = None
    try:
        if options.json:
            rows = run_rows(runs, statuses, results) if options.list else part_rows(options, results)
            print(json.dumps(rows, indent=1, ensure_ascii=False))
            return 0
        if options.save:
            text = save_figure(options.what, options.save, results)
        elif not options.what:
            text = list_parts(options, results, console.width)
        elif options.list:
            text = list_runs(runs, statuses, results) or "no runs"
    finally:
        for path, why in results.damaged.items():  # only now: reading projections may have found more
            _warn(f"skipped {path}: {why}")
    if text is not None:
        console.print(text, highlight=False, soft_wrap=True)
        return 0
    if options.plan:
        print_plan(runs, statuses, results)
        return 0
    with stop_within(options.minutes):
        runner = Runner(console, options.results, device=options.device, data_root=options.data_root)
        if not runs:
            runner.say(f"nothing to run for {', '.join(options.what)}")
            return 0
        return runner.run_all(runs, statuses, results)


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)


def print_plan(runs: list[PlannedRun], statuses: Statuses, results: Results) -> None:
    """Print only the commands to stdout, for a pipe."""
    for planned in runs:
        if statuses[planned.name] is RecordStatus.RECORDED:
            continue
        if statuses[planned.name] is RecordStatus.INCOMPLETE and not _is_finished(planned):
            _warn(f"{planned.name}: {_explain_deleted(planned, results)}")
            continue
        print(command(planned, results.folder))
    if not runs:
        print("nothing to run in this selection", file=sys.stderr)
    elif all(status is RecordStatus.RECORDED for status in statuses.values()):
        print("nothing to run: everything selected is recorded", file=sys.stderr)


def _is_finished(planned: PlannedRun) -> bool:
    """Return whether the folder of a finished run still exists."""
    return has_run_folder(planned) and planned.run.encoder_file.exists()


def _explain_deleted(planned: PlannedRun, results: Results) -> str:
    result = results.find_result(planned.experiment)
    assert result is not None
    lacks = _describe_needs(missing_needs(planned, results))
    return (
        f"{result.path} has no {lacks}, and its run folder {planned.run.folder} is gone; "
        "delete the record to train the run again"
    )


def _describe_needs(needs: frozenset[str]) -> str:
    epochs = sorted((need for need in needs if "@" in need), key=lambda need: int(need.partition("@")[2]))
    measures = [need for need in ("knn", "linear") if need in needs]
    curves = needs - {TSNE, *epochs, *measures}
    return " and no ".join([TSNE] * (TSNE in needs) + ["step curves"] * bool(curves) + measures + epochs)


class Runner:
    """Trains, evaluates and records runs, one after the other. `records`: the folder of the records."""

    def __init__(self, console: Console, records: Path, *, device: str = "auto", data_root: Path | None = None) -> None:
        if read_launch().world_size > 1:
            raise AAGError("these runs are trained by one process; start the command without torchrun")
        find_device(device)
        with explain_write_errors(records):  # now, not after hours of training
            records.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=records):
                pass
        self.console, self.records, self.device, self.data_root = console, records, device, data_root
        self.loaded: tuple[DataSettings, TrainTestSets] | None = None  # of the last run

    def run_all(self, runs: list[PlannedRun], statuses: Statuses, results: Results) -> int:
        todo = [run for run in runs if statuses[run.name] is not RecordStatus.RECORDED]
        times = estimate_times(runs, statuses, results)
        left = f"; time left: {time_left(times)}" if todo else ""
        if any(time is not None for time in times):
            left += f", estimated from the records ({machine_names(results)})"
        self.say(f"{pluralize(len(runs), 'run')}, {len(runs) - len(todo)} recorded{left}")
        outcomes: Counter[str] = Counter()
        ready = self.drop_without_data(todo)
        for number, planned in enumerate(ready, 1):
            self.say(f"\n[{number}/{len(ready)}] {planned.label}")
            try:
                outcomes[self.run_guarded(planned)] += 1
            except (Stopped, KeyboardInterrupt) as stop:
                saved = "Stopped and saved" if isinstance(stop, Stopped) else "Stopped"
                self.say(f"\n{saved}. The same command resumes from the last checkpoint, in {planned.run.folder}")
                if isinstance(stop, Stopped):
                    return stop.exit_code
                return RESUMABLE if isinstance(stop, Terminated) else INTERRUPTED
            finally:
                free_memory()
        outcomes["without data"] = len(todo) - len(ready)
        if todo:
            again = "; run the same command again for the skipped ones" * bool(outcomes["skipped"])
            self.say("\n" + ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items() if count) + again)
        return 2 if outcomes["failed"] or outcomes["without data"] else 0

    def drop_without_data(self, runs: list[PlannedRun]) -> list[PlannedRun]:
        """Report data sets that are not on this machine now, not after hours of other runs."""
        absent = set()
        for name, count in Counter(run.experiment.settings.data.source for run in runs).items():
            try:
                if name in DATASETS:
                    require_files(DATASETS[name], self.data_root)
            except AAGError as error:
                absent.add(name)
                print(f"error: {error}; needed by {pluralize(count, 'run')}", file=sys.stderr)
        return [run for run in runs if run.experiment.settings.data.source not in absent]

    def run_guarded(self, planned: PlannedRun) -> str:
        """Run one run and return its outcome in words. A failed run does not stop the others."""
        try:
            return self.run_one(planned)
        except Stopped:
            raise
        except torch.OutOfMemoryError:
            error = "the GPU is out of memory; is another program using it?"
        except LockedError:
            self.say(f"skipped: another process is training into {planned.run.folder}")
            return "skipped"
        except AAGError as found:
            error = str(found)
        except Exception as found:  # a bug, or an error of the GPU
            traceback.print_exc()
            error = f"{type(found).__name__}: {found}"
        print(f"error: {planned.name}: {error}", file=sys.stderr)
        return "failed"

    def run_one(self, planned: PlannedRun) -> str:
        run, experiment = planned.run, planned.experiment
        results = Results(self.records)  # again: another process may have recorded it
        status = record_status(planned, results)
        if status is RecordStatus.RECORDED:
            self.say("recorded by another process")
            return "recorded by another process"
        if status is RecordStatus.INCOMPLETE and not _is_finished(planned):
            raise AAGError(_explain_deleted(planned, results))
        if run.exists():  # check before loading data
            if different := setting_differences(run.settings(), experiment):
                text = "; ".join(f"{name} {there} there, {here} here" for name, (there, here) in different.items())
                raise AAGError(f"{run.folder} holds a run with other settings ({text}); move it or use another --runs")
            with run.lock():
                pass
        sets = self.load(experiment.settings)
        if status is RecordStatus.INCOMPLETE and missing_needs(planned, results) == {TSNE}:
            with run.lock():
                self.project(run, sets)
            return "projected"
        self.train(planned, sets)
        with run.lock():
            self.record(run, sets, planned.needs_projection)
        if lacks := missing_needs(planned, Results(self.records)):
            raise AAGError(
                f"{run.folder} has no {_describe_needs(lacks)}; delete it and its record to train the run again"
            )
        return "recorded"

    def load(self, settings: RunSettings) -> TrainTestSets:
        """Load the images of a run; training, evaluation and the next run share them."""
        key = settings.resolve().data
        if self.loaded is None or self.loaded[0] != key:
            self.loaded = None  # frees the memory first
            self.loaded = key, load_sets(settings.resolve(), self.data_root)
        return self.loaded[1]

    def train(self, planned: PlannedRun, sets: TrainTestSets) -> None:
        with stop_on_signals() as stop, Progress(self.console) as progress:
            progress.test_set = sets[1]
            result = train_run(
                planned.experiment.settings,
                planned.execution,
                recipe=planned.experiment.recipe,
                sets=sets,
                callbacks=[progress],
                should_stop=stop,
            )
            # Ask again: whoever stops the last step of a run does not want the next run either.
            if not result.complete or stop():
                raise Stopped(stop.exit_code)

    def record(self, run: Run, sets: TrainTestSets, with_projection: bool) -> None:
        evaluation = evaluate_run(run, device=self.device, sets=sets)
        self.say(", ".join(f"{row['name']} {row['accuracy']:.2f} %" for row in evaluation.results))
        save_evaluation(evaluation)
        self.say(f"recorded in {write_record(run, self.records)}")
        if with_projection:
            self.project(run, sets)

    def project(self, run: Run, sets: TrainTestSets) -> None:
        path = write_projection(run, self.records, device=self.device, sets=sets)
        self.say(f"t-SNE saved in {path}")

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True)
