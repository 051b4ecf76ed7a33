"""The training loop: epochs of steps, callbacks, checkpoints, and resuming after any stop."""

import logging
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from aag.data import ImageSet
from aag.distributed import any_process, copy_from_main, is_distributed, is_main, on_main, rank, world_size
from aag.errors import AAGError, NotFiniteError
from aag.methods import Method
from aag.nets import Encoder
from aag.nets.sync_norm import average_running_statistics
from aag.provenance import provenance
from aag.runs import Run
from aag.settings import TrainSettings
from aag.training.callbacks import Callback
from aag.training.checkpoints import LoadedCheckpoint
from aag.training.checks import check_execution, check_types
from aag.training.deterministic import deterministic_algorithms, restore_threads
from aag.training.engine import Engine
from aag.training.finite import RETRY_FACTOR, check_history, check_state, explain_failure
from aag.training.saving import RunSaver, TrainingProgress
from aag.training.schedule import learning_rate
from aag.training.settings import settings_of_parts
from aag.training.statistics import mean_rows

SHOW_SECONDS = 0.5  # between two losses that are read from a GPU: so rarely, the wait does no harm
_log = logging.getLogger("aag.training")


class Trainer(Engine):
    """Train an encoder with a method on images. The caller makes all three.

    With a `run`, it logs, saves checkpoints and resumes from them; without one it only trains. `run_settings`: the
    settings of the whole run as JSON by section; by default, they are read from the objects.

    Inside `aag.distributed.process_group`, several processes train one encoder, each on its share of every batch. All
    run the same code and callbacks; only the main one reads and writes the run folder.
    """

    def __init__(
        self,
        encoder: Encoder,
        method: Method,
        images: ImageSet,
        settings: TrainSettings | None = None,
        *,
        run: Run | None = None,
        run_name: str = "",
        run_settings: dict[str, Any] | None = None,
        callbacks: Iterable[Callback] = (),
        device: str | torch.device = "auto",
        compile: str = "auto",
        checkpoint_minutes: float = 1.0,
        keep_checkpoints: int = 2,
        on_nan: str = "stop",
        deterministic: bool = False,
        images_on: str = "auto",
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        settings = settings or TrainSettings()
        self.callbacks = tuple(callbacks)
        check_types(encoder, method, images, settings, run, self.callbacks)
        check_execution(checkpoint_minutes, keep_checkpoints, on_nan, images_on)
        super().__init__(
            encoder, method, images, settings, device=device, compile=compile, deterministic=deterministic,
            images_on=images_on, load_weights=not (run and run.checkpoints()),
        )  # fmt: skip
        self.run = run = run if is_main() else None
        self.should_stop, self.on_nan = should_stop, on_nan
        self.run_name = run_name
        self.run_settings = run_settings or settings_of_parts(encoder, method, images, self.settings)
        self.saver: RunSaver | None = None
        if run:
            parts = self.run_settings, images, encoder
            self.saver = RunSaver(run, *parts, keep=keep_checkpoints, minutes=checkpoint_minutes)
        self.progress = TrainingProgress()
        self.history = torch.zeros(0)  # statistics of the current epoch, one row per step
        self._loaded: LoadedCheckpoint | None = None  # to be restored

    def fit(self) -> bool:
        """Train to the end, from the run's checkpoint if it has one. Return False if stopped on request, and saved."""
        with ExitStack() as self._stack:
            on_main(self._open_run)
            self._stack.enter_context(torch.random.fork_rng(devices=[]))
            if self.deterministic:
                self._stack.enter_context(deterministic_algorithms())
            self.prepare()
            try:
                return self._fit()
            finally:
                self._notify("on_end")

    @property
    def epoch(self) -> int:
        return self.progress.epoch

    def position(self) -> dict[str, int]:
        """Return the number of finished epochs and of all finished steps, which every logged row has."""
        return {"epoch": self.progress.epoch, "step": self.progress.epoch * self.steps_per_epoch + self.progress.step}

    def log(self, *rows: dict[str, Any]) -> None:
        """Add rows to the run's log and show them to the callbacks. A row has a `kind`; epoch and step are added."""
        rows = tuple({**self.position(), **row} for row in rows)
        if self.run:
            self.run.log(rows)
        for row in rows:
            self._notify("on_log", row)

    def _warn(self, text: str) -> None:
        """Log a warning, for the user and in the metrics."""
        _log.warning(text)
        self.log({"kind": "note", "text": text})

    def _notify(self, event: str, *arguments: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(self, *arguments)

    # --- the loop -----------------------------------------------------------------------------------------------------

    def _fit(self) -> bool:
        resumed = self._resume()
        self._notify("on_start")
        if self.progress.epoch < self.settings.epochs and not self._compile():
            return False
        if not resumed:
            self._notify("on_epoch")
            self._save()
        if self.saver:
            self.saver.restart_clock()
        while self.progress.epoch < self.settings.epochs:
            try:
                if any_process(self._must_stop())[0] or not self._train_epoch():
                    self._save()
                    self.raise_decoding_failure()
                    return False
                self._notify("on_epoch")
                if self.progress.epoch == self.settings.epochs or any_process(self._save_is_due())[0]:
                    self._save()
            except NotFiniteError as error:
                self._roll_back(error)
        if self.saver and (repaired := self.saver.repair_encoder(self.progress)):
            self._warn(repaired)
        return True

    def _compile(self) -> bool:
        """Compile, and log the runtime. Return False if stopped before the first images were decoded."""
        if any_process(not self._wait_for_images())[0]:
            self.raise_decoding_failure()
            return False
        plain = self.runtime.is_plain
        seconds = self.warm_up(self.progress.epoch)  # first: it may fall back, and the log says to what
        if not plain:
            self._notify("on_ready", seconds)
        where = {**provenance(str(self.runtime.device)), "threads": torch.get_num_threads()}
        about = {"runtime": str(self.runtime), "images": len(self.image_set)}
        self.log({"kind": "start", **where, **about})
        return True

    def _train_epoch(self) -> bool:
        """Train from the current step to the end of the epoch. Return False if a stop was requested before that."""
        settings, progress, steps = self.settings, self.progress, self.steps_per_epoch
        history = self._allocate_history()
        if progress.step == 0:
            self.match_view_size(progress.epoch)  # like the start, this does not count as training time
            started = time.monotonic()
            self.begin_epoch(progress.epoch)
            progress.seconds += time.monotonic() - started
        started, seconds_before, first_step = time.monotonic(), progress.seconds, progress.step
        shows_every_step = self.runtime.device.type == "cpu"  # reading the loss makes the host wait for a GPU
        show_loss, last_shown, checked = shows_every_step, started, first_step
        while progress.step < steps:
            step = progress.step
            lr = learning_rate(settings, progress.epoch * steps + step, steps) * progress.lr_factor
            self._seed_step()
            history[step] = self.train_step(progress.epoch, step, lr)
            progress.step = step + 1
            if show_loss:
                show_loss, last_shown = shows_every_step, time.monotonic()
                loss = history[step, 0].item()
                checked = check_history(history, checked, progress.step, progress.epoch)
                self._notify("on_step", loss)
            if progress.step < steps and progress.step % settings.accumulate == 0:
                loss_is_due = is_main() and time.monotonic() - last_shown > SHOW_SECONDS
                stop, save, loss_is_due = any_process(self._must_stop(), self._save_is_due(), loss_is_due)
                show_loss = show_loss or loss_is_due
                if stop or save:
                    checked = check_history(history, checked, progress.step, progress.epoch)
                    progress.seconds = seconds_before + time.monotonic() - started
                    if stop:
                        return False
                    self._save()
        rows = history.cpu()  # waits for the GPU
        check_history(rows, checked, steps, progress.epoch)
        elapsed = time.monotonic() - started
        progress.seconds = seconds_before + elapsed
        progress.epoch, progress.step = progress.epoch + 1, 0
        self._log_epoch(rows, lr, steps - first_step, elapsed)
        return True

    def _allocate_history(self) -> Tensor:
        """Return memory for the statistics of the epoch's steps, with those of the steps that are done."""
        history = torch.zeros(self.steps_per_epoch, len(self.step.names), device=self.runtime.device)
        if done := self.progress.step:
            history[:done] = self.history[:done]
        self.history = history
        return history

    def _log_epoch(self, rows: Tensor, lr: float, steps: int, elapsed: float) -> None:
        """Log the statistics of a finished epoch, whose last `steps` took `elapsed` seconds in this session."""
        views = steps * self.settings.batch_size * len(self.batches.augmentations)
        speed = {"seconds": round(self.progress.seconds, 3), "views_per_second": round(views / elapsed, 1)}
        if self.runtime.device.type == "cuda":
            speed["peak_memory"] = torch.cuda.max_memory_reserved(self.runtime.device)
        *windows, epoch = mean_rows(rows, self.step.names, self.position())
        self.log(*windows, {**epoch, "lr": lr, **speed})

    def _seed_step(self) -> None:
        """Seed PyTorch's generator by the step on a CPU, for networks that draw from it (stochastic depth)."""
        if self.runtime.device.type == "cpu":
            own = (rank(),) if rank() else ()  # processes have other images, and so other draws
            at = (self.settings.seed, self.progress.epoch, self.progress.step, *own)
            torch.default_generator.manual_seed(hash(at) % 2**63)

    def _must_stop(self) -> bool:
        return self.should_stop() or not self._wait_for_images()

    def _wait_for_images(self) -> bool:
        return self.wait_for_images(self.progress.epoch, self.progress.step, self.should_stop)

    def _roll_back(self, error: NotFiniteError) -> None:
        """Resume from the last checkpoint at a lower learning rate, once and with --on-nan retry; otherwise raise."""
        retry = self.on_nan == "retry" and self.progress.lr_factor == 1 and on_main(self._load_checkpoint)
        if not retry:
            on_main(lambda: self._give_up(error))
        self._resume()
        self.match_view_size(self.progress.epoch)
        self.batches.reset()
        self.progress.lr_factor = RETRY_FACTOR
        reason = str(error).partition(";")[0]
        self.log({"kind": "retry", "lr_factor": RETRY_FACTOR, "reason": reason})
        if is_main():
            _log.warning(
                "%s; resuming from the checkpoint at epoch %d, step %d, with %g times the learning rate",
                reason, self.progress.epoch + 1, self.progress.step, RETRY_FACTOR,
            )  # fmt: skip
        self._save()

    def _give_up(self, error: NotFiniteError) -> None:
        raise explain_failure(error, self.run, self.on_nan, self.progress.lr_factor) from error

    # --- saving and resuming ------------------------------------------------------------------------------------------

    def _save_is_due(self) -> bool:
        return self.saver is not None and self.saver.is_due()

    def _save(self) -> None:
        """Write the encoder and the checkpoint. With several processes, all must call it."""
        average_running_statistics(self.encoder, self.method)
        tensors = self.step.state()
        check_state(tensors.values())
        if self.saver:
            self.saver.save(tensors, self.history, self.progress)

    def _open_run(self) -> None:
        if self.run:
            self.run.check(self.run_settings)
            self._stack.enter_context(self.run.lock())
            self.run.start(self.run_settings, self.run_name)
            self._load_checkpoint()

    def _load_checkpoint(self) -> bool:
        """Read the run's checkpoint, if it has one, and use its number of threads."""
        self._loaded = found = self.saver.load() if self.saver else None
        if found and self.runtime.device.type == "cpu" and found.state["processes"] == world_size():
            restore_threads(found.state["threads"])  # with other processes, the bits differ anyway
        return found is not None

    def _resume(self) -> bool:
        """Restore the checkpoint in the main process and copy its state to the others. Return whether there was one."""
        resumed, self.progress, history, threads = on_main(
            lambda: (self._restore(), self.progress, self.history.cpu(), torch.get_num_threads())
        )
        self.history = history.to(self.runtime.device)
        if is_distributed():
            if self.runtime.device.type == "cpu":
                torch.set_num_threads(threads)
            state = self.step.state()
            copy_from_main(state.values())
            self.step.load_state(state)  # also into the kernels' copies
        return resumed

    def _restore(self) -> bool:
        """Restore the checkpoint that was read, and drop the rows logged after it: they will be logged again."""
        found, self._loaded = self._loaded, None
        if self.saver is None:
            return self.position()["step"] > 0
        if found is None:
            self.saver.clear_metrics()
            return False
        tensors, state = dict(found.tensors), found.state
        history = tensors.pop("history", torch.zeros(0, len(self.step.names)))
        if state["step"] >= self.steps_per_epoch or history.shape != (state["step"], len(self.step.names)):
            raise AAGError("the checkpoint's position does not fit this run; choose another --out")
        self.history = history
        self.step.load_state(tensors)
        self.progress = TrainingProgress(**{name: state[name] for name in vars(self.progress)})
        reached = self.position()["step"]
        self.saver.run.filter_metrics(lambda row: row["step"] <= reached)
        if found.warning:
            self._warn(found.warning)
        return True
