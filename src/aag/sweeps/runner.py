"""Run a sweep: train missing runs, rank them, continue with the best. A failed setting does not stop the others."""

import copy
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch
from torch import nn

from aag.data import ImageSet, TrainTestSets
from aag.data.loading import source_name
from aag.errors import AAGError, NotFiniteError, first_line
from aag.files import explain_write_errors, write_bytes, write_json
from aag.locks import LockedError
from aag.provenance import provenance
from aag.serving import evaluate_run, save_evaluation
from aag.sweeps.plan import SweepPlan, Trial
from aag.sweeps.results import (
    DONE,
    FAILED,
    NOT_FINITE,
    OUT_OF_MEMORY,
    UNFINISHED,
    SweepResult,
    describe_values,
    read_failures,
)
from aag.text import duration, pluralize, rough_duration
from aag.training import Callback, TrainResult, train_run
from aag.training.api import describe_choices
from aag.training.commands import train_command
from aag.training.runtime import find_device, free_memory


class SweepRunner:
    """Runs a plan. `new_progress(held-out images)` returns the callback that shows the progress of a run."""

    def __init__(
        self,
        plan: SweepPlan,
        *,
        backbone: nn.Module | None = None,
        should_stop: Callable[[], bool] = lambda: False,
        new_progress: Callable[[ImageSet | None], AbstractContextManager[Callback]] | None = None,
        after_run: Callable[[TrainResult, TrainTestSets], None] = lambda result, sets: None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        if plan.measure == "linear" and backbone is not None:
            raise AAGError("rank_by linear needs a network by name, not a module; rank by knn")
        self.plan, self.backbone = plan, backbone
        self.should_stop, self.after_run, self.say = should_stop, after_run, say
        self.new_progress = new_progress or (lambda test: nullcontext(Callback()))
        self._locked_names: set[str] = set()  # of runs that other processes train

    def run(self) -> SweepResult:
        """Train what is missing, rung by rung, until all is done or a stop is requested."""
        self.plan.prepare()
        self._describe()
        with explain_write_errors(self.plan.folder):
            self.plan.folder.mkdir(parents=True, exist_ok=True)
        while trials := [trial for trial in self.plan.unfinished_trials() if trial.name not in self._locked_names]:
            self._announce(trials)
            for number, trial in enumerate(trials, 1):
                if self.should_stop():
                    return self._write()
                seed = f" seed={trial.settings.train.seed}" if self.plan.options.seeds > 1 else ""
                self.say(f"[{number}/{len(trials)}] {describe_values(trial.candidate.values)}{seed}")
                is_finished = self.plan.outcome(trial).status not in UNFINISHED  # by another process, meanwhile
                if not is_finished and not self._attempt(trial):
                    return self._write()
                self._report(trial)
                self._write()
                free_memory()
        return self._write()

    def _describe(self) -> None:
        """Print the data and, for a folder, the chosen options."""
        plan = self.plan
        for line in describe_choices(plan.choices):
            self.say(line)
        held_out = f" + {plan.held_out_count:,} held out" if plan.held_out_count else ", no labels"
        self.say(f"data     {source_name(plan.data.source)}: {plan.train_count:,} training images{held_out}")

    def _announce(self, trials: list[Trial]) -> None:
        rung, rungs = len(self.plan.rung_rows()), len(self.plan.rungs)
        lengths = {trial.settings.train.epochs for trial in trials}
        seconds = [self.plan.estimate_seconds(trial.settings.train.epochs) or 0 for trial in trials]
        left = f", about {rough_duration(sum(seconds))}" if sum(seconds) > 30 else ""
        each = f" of {pluralize(lengths.pop(), 'epoch')}" if len(lengths) == 1 else ""
        where = f"rung {rung} of {rungs}: " if rungs > 1 else ""
        self.say(f"{where}{pluralize(len(trials), 'run')}{each}{left}")

    def _report(self, trial: Trial) -> None:
        """Print the outcome of a run in one line."""
        found, words = self.plan.outcome(trial), []
        if (score := getattr(found, self.plan.measure)) is not None:
            words.append(f"{self.plan.measure.replace('knn', 'kNN')} {score:.2f} %")
        if found.seconds is not None and found.status not in UNFINISHED:
            words.append(duration(found.seconds))
        if found.status != DONE:
            words.append("another process trains it" if trial.name in self._locked_names else found.status)
        self.say(f"      {'  '.join(words)}")

    def _attempt(self, trial: Trial) -> bool:
        """Train a run. Return False if it was stopped on request; a failure is noted."""
        advice = "use a smaller batch_size, image_size or network"
        try:
            return self._train(trial)
        except NotFiniteError as error:
            self._note_failure(trial, NOT_FINITE, f"{str(error).partition(';')[0]}; try a lower lr")
        except (torch.OutOfMemoryError, MemoryError):
            self._note_failure(trial, OUT_OF_MEMORY, advice)
        except LockedError:
            self._locked_names.add(trial.name)
        except AAGError as error:
            self._note_failure(trial, FAILED, error)
        except Exception as error:  # a bug, or an error of the GPU
            if "can't allocate memory" in str(error):  # a CPU's allocator
                self._note_failure(trial, OUT_OF_MEMORY, advice)
            else:
                traceback.print_exc()
                self._note_failure(trial, FAILED, f"{type(error).__name__}: {first_line(error)}")
        return True

    def _note_failure(self, trial: Trial, status: str, error: object) -> None:
        self.plan.failures[trial.name] = (status, str(error))

    def _train(self, trial: Trial) -> bool:
        settings = self.plan.resolve(trial)
        sets = self.plan.images.load(settings)
        with self.new_progress(sets[1]) as progress:
            result = train_run(
                settings,
                replace(self.plan.execution, out=trial.run.folder),
                recipe=trial.candidate.recipe,
                sets=sets,
                backbone=copy.deepcopy(self.backbone),
                callbacks=[progress],
                should_stop=self.should_stop,
            )
        if result.complete and self.plan.measure == "linear":
            with trial.run.lock():
                save_evaluation(evaluate_run(trial.run, device=self.plan.execution.device, sets=sets))
        if result.complete:
            if self.plan.outcome(trial).status in UNFINISHED:  # it would be trained again and again
                raise AAGError(
                    f"the run has no results of its last epoch; delete {trial.run.folder}, then --retry-failed"
                )
            self.after_run(result, sets)
        return result.complete

    # --- results ------------------------------------------------------------------------------------------------------

    def result(self) -> SweepResult:
        """Return the results so far."""
        plan, rows = self.plan, self.plan.rows()
        is_complete = not plan.unfinished_trials()
        result = SweepResult(rows, plan.folder, plan.measure, plan.held_out_count, is_complete)
        if result.best and plan.images.images is None and self.backbone is None:
            best, execution = result.best.candidate, replace(plan.execution, out=None)
            return replace(result, command=train_command(best.settings, best.recipe, execution, best.given))
        return result

    def _write(self) -> SweepResult:
        """Write sweep.json and sweep.md."""
        plan, result = self.plan, self.result()
        failures = plan.failures if plan.options.retry_failed else {**read_failures(plan.file), **plan.failures}
        options = {name: value for name, value in vars(plan.options).items() if name not in ("rank_by", "retry_failed")}
        content = {
            "data": plan.data.source,
            **options,
            "rank_by": plan.measure,
            "protocol": result.protocol,
            "holdout": plan.holdout,
            "held_out_images": plan.held_out_count,
            "is_complete": result.is_complete,
            "best": result.best and {**result.best.to_json(), "command": result.command},
            "rows": [row.to_json() for row in result.rows],
            "failures": failures,
            **provenance(str(find_device(plan.execution.device))),
        }
        write_json(plan.file, content)
        page = result.to_markdown(plan.folder.name, one_at_a_time=plan.options.one_at_a_time)
        write_bytes(plan.folder / "sweep.md", page.encode(errors="replace"))
        return result
