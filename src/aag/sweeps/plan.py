"""The plan of a sweep: its rungs, the runs of each, and which are done. All state is in its folder."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from aag.data import ImageSet
from aag.distributed import read_launch
from aag.errors import AAGError
from aag.files import as_path
from aag.runs import Run
from aag.settings import Range, Settings
from aag.sweeps.candidates import Candidate
from aag.sweeps.images import SweepImages
from aag.sweeps.results import (
    INVALID,
    UNFINISHED,
    Measure,
    Outcome,
    SweepRow,
    describe_values,
    rank_rows,
    read_failures,
    read_measure,
    read_outcome,
)
from aag.training import Execution, RunSettings
from aag.training.api import check_run
from aag.training.checkpoint import read_images
from aag.training.commands import evaluate_command, train_command
from aag.training.defaults import Choice, Plan, plan_run
from aag.training.runtime import find_device
from aag.training.saving import other_images_error


@dataclass(frozen=True)
class SweepOptions(Settings):
    """How settings are chosen and ranked."""

    grid: tuple[str, ...] = ()
    """What to try: NAME=VALUE,VALUE for any option of aag train, or NAME=LOW..HIGH with --random. By default, all
    combinations are run. Ranges that span a factor of 10 are drawn log-uniformly; whole numbers stay whole."""
    random: Annotated[int, Range(at_least=1)] | None = None
    """Draw this many different settings at random, from the values and ranges of the grid; --seed decides which."""
    one_at_a_time: bool = False
    """Change one option at a time: the baseline, and each value of the grid alone."""
    halving: Annotated[int, Range(at_least=2, at_most=100)] | None = None
    """Successive halving by N: train all settings for a part of the epochs, then the best 1/N of them for N times as
    many, until the last ones train for all --epochs. Each rung has new runs."""
    seeds: Annotated[int, Range(at_least=1, at_most=1000)] = 1
    """Runs per setting, with different seeds; settings are ranked by the mean."""
    rank_by: Literal["auto", "knn", "linear", "agreement"] = "auto"
    """knn or linear: accuracy of held-out training images; agreement: of two views, without labels. auto: knn with
    labels, else agreement."""
    retry_failed: bool = False
    """Run failed settings again."""


@dataclass(frozen=True)
class Trial:
    """One run of a sweep."""

    candidate: Candidate
    settings: RunSettings  # with the rung's epochs and the seed, without a holdout
    run: Run

    @property
    def name(self) -> str:
        return self.run.folder.name


class SweepPlan:
    """Candidates, their runs in the folder `out`, and the outcomes of these."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        options: SweepOptions,
        execution: Execution,
        out: str | Path,
        images: SweepImages | None = None,
    ) -> None:
        self.data = candidates[0].settings.data  # as given, with the holdout
        self.candidates = [replace(each, settings=each.settings.replace(holdout=None)) for each in candidates]
        self.options, self.execution, self.folder = options, execution, as_path(out)
        self.images = images or SweepImages(root=execution.data_root)
        self.file = self.folder / "sweep.json"
        self.failures = {} if options.retry_failed else read_failures(self.file)
        # Known after `prepare`; until then what an earlier command found.
        self.measure: Measure = read_measure(self.file) or "knn" if options.rank_by == "auto" else options.rank_by
        self.holdout: float | None = None
        self.train_count = 0
        self.held_out_count: int | None = None  # None without labels
        self.choices: list[Choice] = []  # for a folder
        self._finished_outcomes: dict[str, Outcome] = {}
        self._epoch_seconds: dict[str, float] = {}  # of finished runs
        self._trials: dict[tuple[int, int | None], list[Trial]] = {}  # making names takes a while
        self._check()
        self.rungs = self._plan_rungs()

    def _check(self) -> None:
        if read_launch().world_size > 1:
            raise AAGError("a sweep runs in one process; print its commands with --plan and start each with torchrun")
        if self.data.start_early:
            raise AAGError("--start-early is for a single run: a sweep decodes images once for all; leave it out")
        if any(each.is_for_folder and "epochs" not in each.given for each in self.candidates):
            raise AAGError("a sweep of a folder needs the --epochs of each run, such as --epochs 100")

    def _plan_rungs(self) -> list[tuple[int, int | None]]:
        """Return the number of settings and the epochs of each rung; None: each setting's own epochs."""
        valid, factor = self._valid_candidates, self.options.halving
        if factor is None:
            return [(len(valid), None)]
        if len({each.settings.train.epochs for each in valid}) > 1:
            raise AAGError("--halving chooses the epochs of each rung; leave epochs out of --grid")
        counts = [len(valid)]
        while counts[-1] >= factor:
            counts.append(counts[-1] // factor)
        epochs, last = valid[0].settings.train.epochs, len(counts) - 1
        if not last:
            raise AAGError(f"--halving {factor} needs at least {factor} settings; the grid has {len(valid)}")
        if epochs < factor**last:
            raise AAGError(f"--halving {factor} of {len(valid)} settings needs at least --epochs {factor**last}")
        return [(count, round(epochs / factor ** (last - rung))) for rung, count in enumerate(counts)]

    @property
    def _valid_candidates(self) -> list[Candidate]:
        return [each for each in self.candidates if not each.error]

    def trials(self, candidate: Candidate, epochs: int | None) -> list[Trial]:
        """Return the runs of a candidate in a rung, one per seed."""
        key = id(candidate), epochs
        if key not in self._trials:
            first = candidate.settings.train.seed
            all_settings = [candidate.run_settings(epochs, seed) for seed in range(first, first + self.options.seeds)]
            self._trials[key] = [
                Trial(candidate, settings, Run(self.folder / candidate.folder_name(settings)))
                for settings in all_settings
            ]
        return self._trials[key]

    # --- before training ----------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Load the images, decide what to rank by, and check existing runs: all before anything is trained."""
        first = self.trials(self._valid_candidates[0], None)[0]
        plan = self._plan_run(first)
        self.choices = plan.choices
        settings = plan.settings
        self.holdout = self.images.choose_holdout(settings.replace(holdout=self.data.holdout))
        if self.options.rank_by == "auto":
            self.measure = "knn" if self.holdout else "agreement"
        if self.holdout is None and self.options.rank_by in ("knn", "linear"):
            wanted = self.options.rank_by
            raise AAGError(f"{self.data.source} has no labels, which --rank-by {wanted} needs; use --rank-by agreement")
        if self.measure == "agreement":
            self._check_same_views()
        settings = self._plan_run(first).settings
        train, test = self.images.load(settings)
        self.train_count, self.held_out_count = len(train), None if test is None else len(test)
        for candidate in self._valid_candidates:
            for _, epochs in self.rungs:
                for trial in self.trials(candidate, epochs):
                    if trial.run.exists() and self.resolve(trial).data == settings.data:
                        _check_images(trial.run, train)

    def _check_same_views(self) -> None:
        """Raise if candidates are measured on different views: weaker ones agree more, whatever is learned."""

        def views(settings: RunSettings) -> Any:
            settings = settings.resolve()
            first = settings.new_method().augmentations()[0]
            return type(first), vars(first), settings.data.source_size, settings.data.image_size

        reference = views(self._valid_candidates[0].settings)
        for each in self._valid_candidates[1:]:
            if views(each.settings) != reference:
                raise AAGError(
                    f"{describe_values(each.values)} changes the views that agreement is measured on, so it cannot "
                    "be ranked by agreement; add labels (class folders), or sweep other options"
                )

    def resolve(self, trial: Trial) -> RunSettings:
        """Return the settings of a run, with what is chosen for a folder. An existing run must have the same."""
        plan = self._plan_run(trial)
        check_run(plan.run, plan.settings)
        return plan.settings

    def _plan_run(self, trial: Trial) -> Plan:
        candidate, device = trial.candidate, find_device(self.execution.device)
        settings = trial.settings.replace(holdout=self.holdout)
        return plan_run(
            settings, candidate.recipe, candidate.given, trial.run.folder, None, device,
            for_folder=candidate.is_for_folder,
        )  # fmt: skip

    # --- what is done -------------------------------------------------------------------------------------------------

    def outcome(self, trial: Trial) -> Outcome:
        """Return the outcome of a run, also if it is not done yet."""
        seed = trial.settings.train.seed
        if trial.candidate.error:
            return Outcome(seed, trial.run.folder, INVALID, trial.candidate.error)
        if trial.name in self.failures:
            status, message = self.failures[trial.name]
            return Outcome(seed, trial.run.folder, status, message)
        if trial.name not in self._finished_outcomes:
            found = read_outcome(trial.run, trial.settings.train.epochs, seed, self.measure)
            if found.status in UNFINISHED:
                return found
            self._finished_outcomes[trial.name] = found
            if found.seconds:
                self._epoch_seconds[trial.name] = found.seconds / trial.settings.train.epochs
        return self._finished_outcomes[trial.name]

    def rung_rows(self) -> list[list[SweepRow]]:
        """Return the rows of each rung, best first, up to the first rung that is not finished."""
        found: list[list[SweepRow]] = []
        current = self.candidates
        for position, (_, epochs) in enumerate(self.rungs):
            rows = []
            for candidate in current:
                trials = self.trials(candidate, epochs)
                runs = tuple(map(self.outcome, trials))
                rows.append(SweepRow(candidate, trials[0].settings.train.epochs, runs, self.measure))
            found.append(rank_rows(rows))
            if position + 1 == len(self.rungs) or not all(row.is_finished for row in rows):
                break
            current = [row.candidate for row in found[-1] if row.is_done][: self.rungs[position + 1][0]]
            if not current:
                break
        return found

    def rows(self) -> list[SweepRow]:
        """Return one row per setting, best first: those of the last rung before those that ended earlier."""
        rows: dict[int, SweepRow] = {}
        for rung in reversed(self.rung_rows()):
            for row in rung:
                rows.setdefault(id(row.candidate), row)
        return list(rows.values())

    def unfinished_trials(self) -> list[Trial]:
        """Return the unfinished runs of the current rung: the first seed of every setting before the second of any."""
        rungs = self.rung_rows()
        current = {id(row.candidate) for row in rungs[-1]}
        epochs = self.rungs[len(rungs) - 1][1]
        trials = [trial for each in self.candidates if id(each) in current for trial in self.trials(each, epochs)]
        unfinished = [trial for trial in trials if self.outcome(trial).status in UNFINISHED]
        return sorted(unfinished, key=lambda trial: trial.settings.train.seed)

    def estimate_seconds(self, epochs: int) -> float | None:
        """Estimate the time of a run from those that are known to be finished; None without one."""
        known = self._epoch_seconds.values()
        return epochs * sum(known) / len(known) if known else None

    def commands(self) -> list[str]:
        """Return a line for a shell per unfinished run of the current rung. Call `prepare` first."""
        lines = []
        for trial in self.unfinished_trials():
            settings = trial.settings.replace(holdout=self.holdout)
            execution = replace(self.execution, out=trial.run.folder)
            line = train_command(settings, trial.candidate.recipe, execution, trial.candidate.given)
            if self.measure == "linear":
                line += f" && {evaluate_command(trial.run.folder, execution)}"
            lines.append(line)
        return lines


def _check_images(run: Run, images: ImageSet) -> None:
    """Raise if a run was trained on other images: its result must not be ranked with those of these images."""
    if read_images(run.checkpoint) not in (None, images.fingerprint()):
        raise other_images_error(images, run)
