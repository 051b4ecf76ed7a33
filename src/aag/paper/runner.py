"""Runs what a table or figure still needs: train, evaluate, record, and on to the next."""

import gc
import os
import sys
import traceback
from collections import Counter
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from aag.errors import AAGError
from aag.files import explain_write_errors
from aag.paper.listing import each, listing, machines, to_go
from aag.paper.plan import TSNE, Planned, Reproduce, Standing, command, holds, lacking, select, standing
from aag.paper.results import Results
from aag.text import pluralize

if TYPE_CHECKING:
    from rich.console import Console

    from aag.training.run import Run


class Stopped(Exception):
    """On request, and saved."""


def reproduce(options: Reproduce, console: "Console") -> int:
    """Lists, plans or runs, as the options say. The exit code: 0, 2 where a run failed, 130 where it was stopped."""
    if not options.what and (options.list or options.plan or options.shard):
        raise AAGError("--list, --plan and --shard take a part of something: name a table or a figure, or all")
    runs = select(options) if options.what else []
    results = Results(options.results)
    stand = {run.name: standing(run, results) for run in runs}
    told = ""
    if not options.what:
        told = listing(options, results, console.width)
    elif options.list:
        told = each(runs, stand, results)
    for path, why in results.damaged.items():  # now: looking for projections may have found more
        warn(f"{path} is passed over: {why}")
    if not options.what or options.list:
        console.print(told or "no runs", highlight=False, soft_wrap=True)
        return 0
    if options.plan:
        plan(runs, stand, results)
        return 0
    with explain_write_errors(options.results):  # asked first: hours later would be late
        options.results.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=options.results):
            pass
    return Runner(options, console).all(runs, stand, results)


def warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)


def plan(runs: list[Planned], stand: dict[str, Standing], results: Results) -> None:
    """The commands on stdout and nothing else, so that they can be piped on."""
    for run in runs:
        if stand[run.name] is Standing.RECORDED:
            continue
        if stand[run.name] is Standing.PARTIAL and not _kept(run):
            warn(f"{run.name}: {_gone(run, results)}")
            continue
        print(command(run, results.folder))
    if not runs:
        print("nothing to run in what is selected", file=sys.stderr)
    elif all(each is Standing.RECORDED for each in stand.values()):
        print("nothing to run: all that is selected is recorded", file=sys.stderr)


def _kept(run: Planned) -> bool:
    """Whether the folder of a finished run is still there."""
    return holds(run.folder, run.config) and (run.folder / "encoder.safetensors").exists()


def _gone(run: Planned, results: Results) -> str:
    result = results.seed(run.config)
    assert result is not None
    what = _named(lacking(run, results))
    return f"{result.path} has no {what}, and its run folder {run.folder} is gone; delete the record to train it again"


def _named(lacks: frozenset[str]) -> str:
    points = sorted((need for need in lacks if "@" in need), key=lambda need: int(need.partition("@")[2]))
    measures = [need for need in ("knn", "linear") if need in lacks]
    curves = lacks - {TSNE, *points, *measures}
    return " and no ".join([TSNE] * (TSNE in lacks) + ["curves over the steps"] * bool(curves) + measures + points)


class Runner:
    def __init__(self, options: Reproduce, console: "Console") -> None:
        self.options, self.console = options, console

    def all(self, runs: list[Planned], stand: dict[str, Standing], results: Results) -> int:
        todo = [run for run in runs if stand[run.name] is not Standing.RECORDED]
        if not runs:
            self.say(f"nothing to run for {', '.join(self.options.what)}")
            return 0
        left = f"; to go: {to_go(runs, stand, results)}" if todo else ""
        left += f" by the records ({machines(results)})" if "min" in left else ""
        self.say(f"{pluralize(len(runs), 'run')}, {len(runs) - len(todo)} recorded{left}")
        outcomes: Counter[str] = Counter()
        ready = self.with_data(todo)
        for number, run in enumerate(ready, 1):
            self.say(f"\n[{number}/{len(ready)}] {run.label}")
            try:
                outcomes[self.guarded(run)] += 1
            except (Stopped, KeyboardInterrupt) as stop:
                saved = "Stopped and saved" if isinstance(stop, Stopped) else "Stopped"
                self.say(f"\n{saved}. The same command goes on where this one stopped; the run is in {run.folder}")
                return 130
            finally:
                _clear()
        outcomes["without data"] = len(todo) - len(ready)
        if todo:
            again = "; the same command looks again at what was skipped" * bool(outcomes["skipped"])
            self.say("\n" + ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items() if count) + again)
        return 2 if outcomes["failed"] or outcomes["without data"] else 0

    def with_data(self, runs: list[Planned]) -> list[Planned]:
        """Without those whose set is not here, which is told at once: after hours of other runs would be late."""
        from aag.data.datasets import DATASETS, require_files

        absent = set()
        for name, count in Counter(run.config.data for run in runs).items():
            try:
                if name in DATASETS:
                    require_files(DATASETS[name], self.options.data_root)
            except AAGError as error:
                absent.add(name)
                print(f"error: {error}; needed by {pluralize(count, 'run')}", file=sys.stderr)
        return [run for run in runs if run.config.data not in absent]

    def guarded(self, run: Planned) -> str:
        """What became of a run; one that fails holds up no other."""
        import torch

        try:
            return self.one(run)
        except Stopped:
            raise
        except torch.OutOfMemoryError:
            error = "the GPU is out of memory; is another program using it?"
        except AAGError as found:
            if isinstance(found.__cause__, BlockingIOError):  # the folder's lock
                self.say(f"skipped: another process is training into {run.folder}")
                return "skipped"
            error = str(found)
        except Exception as found:  # a bug, or a GPU's error: told in full
            traceback.print_exc()
            error = f"{type(found).__name__}: {found}"
        print(f"error: {run.name}: {error}", file=sys.stderr)
        return "failed"

    def one(self, run: Planned) -> str:
        from aag.training import Run

        results = Results(self.options.results)  # anew: another process may have recorded it meanwhile
        stands = standing(run, results)
        if stands is Standing.RECORDED:
            self.say("recorded meanwhile")
            return "recorded meanwhile"
        if stands is Standing.PARTIAL and not _kept(run):
            raise AAGError(_gone(run, results))
        there = Run(run.folder)
        if os.path.exists(there.config_file):  # also where the folder cannot be looked into, which training tells of
            if there.config().identity() != run.config.identity():
                raise AAGError(f"{run.folder} holds a run with other settings; move it away or give another --runs")
            with there.lock():  # asked first: loading the data to find the folder taken would be a waste
                pass
        if stands is Standing.PARTIAL and lacking(run, results) == {TSNE}:
            with there.lock():
                self.project(there)
            return "projected"
        self.train(run)
        with there.lock():
            path = self.record(there, run.projected)
        results = Results(self.options.results)
        if not results.seed(run.config):
            raise AAGError(f"{path} was written and is no record: {results.damaged.get(path, 'of other settings')}")
        if lacks := lacking(run, results):
            raise AAGError(f"{run.folder} has no {_named(lacks)}; move it and its record away to train it again")
        return "recorded"

    def train(self, run: Planned) -> None:
        from aag.training import train
        from aag.training.reporter import Terminal, stop_signals

        with stop_signals() as should_stop, Terminal(self.console) as terminal:
            result = train(run.config, terminal, should_stop)
            # Asked again: one who stops the last step of a run does not want the next run.
            if not result.complete or should_stop():
                raise Stopped

    def record(self, run: "Run", projected: bool) -> Path:
        from aag.evaluate.run import evaluate_run
        from aag.records import write_record

        found = evaluate_run(run, device=self.options.device, data_root=self.options.data_root)
        path = write_record(run, self.options.results)
        numbers = ", ".join(f"{each['name']} {each['accuracy']:.2f} %" for each in found.results)
        self.say(f"{numbers}\nrecorded in {path}")
        if projected:
            self.project(run)
        return path

    def project(self, run: "Run") -> None:
        from aag.evaluate.run import write_projection

        options = self.options
        path = write_projection(run, options.results, device=options.device, data_root=options.data_root)
        self.say(f"projected in {path}")

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True)


def _clear() -> None:
    """Leaves the next run a GPU like a fresh process's: what a run reserved would count as the next one's memory, and
    a compiler that has seen many networks stops compiling."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
        if "torch._dynamo" in sys.modules:
            torch.compiler.reset()
