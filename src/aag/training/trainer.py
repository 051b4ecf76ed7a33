"""The training loop: epochs of steps, callbacks, checkpoints, and resuming after any stop."""

import json
import logging
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from aag import kernels, nets
from aag.data import DATASETS, ImageSet
from aag.distributed import (
    any_process,
    copy_from_main,
    is_distributed,
    is_main,
    on_main,
    raise_any,
    rank,
    world_size,
)
from aag.errors import AAGError, KernelsUnsupportedError, NotFiniteError, first_line
from aag.evaluate import sharded
from aag.methods import Method, MethodContext
from aag.nets import Encoder, EncoderSpec
from aag.nets.pretrained import load_pretrained
from aag.nets.sync_norm import average_running_statistics
from aag.provenance import provenance
from aag.runs import Run, differences
from aag.settings import TrainSettings
from aag.training.batches import Batches
from aag.training.callbacks import Callback
from aag.training.checkpoints import Checkpoints, LoadedCheckpoint
from aag.training.checks import check_processes, check_sizes, check_types
from aag.training.deterministic import deterministic_algorithms
from aag.training.encoders import freeze, load_start_weights
from aag.training.reading import fits_on_device
from aag.training.rollback import RETRY_FACTOR, check_history, check_state, explain
from aag.training.runtime import Runtime, choose_precision, choose_runtime, find_device
from aag.training.schedule import learning_rate
from aag.training.settings import settings_of_parts
from aag.training.statistics import mean_rows
from aag.training.step import Step

_log = logging.getLogger("aag.training")


@dataclass
class Progress:
    """How far a run is; with the weights, all that resuming needs."""

    epoch: int = 0  # epochs finished
    step: int = 0  # steps finished in the current epoch
    seconds: float = 0.0  # of training, without evaluation
    lr_factor: float = 1.0  # of the schedule's learning rate; less after a retry


class Trainer:
    """Trains an encoder with a method on images, all made by the caller.

    With a `run`, it logs, saves checkpoints and resumes from them; without one it only trains. `run_settings` is the
    JSON of the whole run by section, where the caller knows more of it than the objects tell.

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
        check_types(encoder, method, images, settings, run)
        device = find_device(str(device))
        self.settings = settings = settings.resolve(choose_precision(device, settings.precision))
        self.encoder, self.method, self.image_set = encoder, method, images
        self.run = run = run if is_main() else None
        self.callbacks, self.should_stop, self.checkpoint_minutes = tuple(callbacks), should_stop, checkpoint_minutes
        check_sizes(encoder, images, settings)
        on_main(lambda: check_processes(encoder, method, settings))
        # The last partial batch is dropped, and so are batches that do not fill a window.
        self.steps_per_epoch = len(images) // (settings.batch_size * settings.accumulate) * settings.accumulate
        self.checkpoints = Checkpoints(run, keep_checkpoints) if run else None
        self.on_nan, self.deterministic = on_nan, deterministic and device.type == "cuda"
        if is_main() and not (run and run.checkpoints()):  # the others get the main process's weights
            if settings.start_from:
                load_start_weights(encoder, settings.start_from)
            if settings.pretrained:
                _log.info("weights  loading %s of %s", settings.pretrained, encoder.spec.network)
                load_pretrained(encoder, settings.pretrained)
        freeze(encoder, settings.freeze)
        method.settings = method.settings.resolve(DATASETS.get(images.name))
        with torch.random.fork_rng(devices=[]):  # layers that the method makes start by the seed, too
            torch.default_generator.manual_seed(hash((settings.seed, -1)) % 2**63)
            method.setup(MethodContext(encoder, len(images), settings))
        self.runtime = choose_runtime(encoder, device, settings.precision, compile, self.deterministic)
        if is_distributed():
            self.runtime = self.runtime.for_processes()
        self.run_name, self.run_settings = (
            run_name,
            run_settings or settings_of_parts(encoder, method, images, settings),
        )
        self.images_on = images_on
        self.progress = Progress()
        self.history = torch.zeros(0)  # statistics of the current epoch, one row per step
        self._pixels = ""  # hash of all pixels, of images that were decoded while training
        self._loaded: LoadedCheckpoint | None = None
        self._stack = ExitStack()

    def fit(self) -> bool:
        """Train to the end, from the run's checkpoint if it has one. False: stopped on request, and saved."""
        with ExitStack() as self._stack:
            on_main(self._open_run)
            self._stack.enter_context(torch.random.fork_rng(devices=[]))
            if self.deterministic:
                self._stack.enter_context(deterministic_algorithms())
            self.prepare()
            try:
                return self._fit()
            finally:
                self._tell("on_end")

    def _open_run(self) -> None:
        if self.run:
            self.run.check(self.run_settings)
            self._stack.enter_context(self.run.lock())
            self.run.start(self.run_settings, self.run_name)
            self._load_checkpoint()

    @property
    def epoch(self) -> int:
        return self.progress.epoch

    def position(self) -> dict[str, int]:
        """Epochs finished and steps finished in all, as every logged row states them."""
        return {"epoch": self.progress.epoch, "step": self.progress.epoch * self.steps_per_epoch + self.progress.step}

    def log(self, *rows: dict[str, Any]) -> None:
        if self.run:
            self.run.log(rows)
        for row in rows:
            self._tell("on_log", row)

    def encode(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return features [N, F] and unit embeddings [N, d] of images, in the precision of training.

        With several processes each encodes its share, so all of them must call this.
        """
        average_running_statistics(self.encoder, self.method)
        return sharded.encode(self.encoder, images, self.runtime.autocast_dtype)

    def embed(self, images: Tensor) -> Tensor:
        """Return unit embeddings [N, d] of images, as `encode` does."""
        average_running_statistics(self.encoder, self.method)
        return sharded.embed(self.encoder, images, self.runtime.autocast_dtype)

    def prepare(self) -> None:
        """Move everything to the device and build the step."""
        for module in (self.encoder, self.method):
            module.to(self.runtime.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._place_images()
        if self.runtime.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.runtime.device)
        before = self.step.state() if hasattr(self, "step") else None  # of a `fit` that was stopped
        self._build_step(self.runtime)
        if before:
            self.step.load_state(before)

    def _place_images(self) -> None:
        """Copy the images to the device if they fit, and if all are decoded; else they are read from the host."""
        self.images, decoding = self.image_set.images, self.image_set.decoding
        if self.images_on == "host" or (decoding and not decoding.is_ready(len(self.images))):
            return
        if self.images_on == "device" or fits_on_device(self.images, self.runtime.device):
            self.images = self.images.to(self.runtime.device)

    def close(self) -> None:
        """Undo what `prepare` changed elsewhere: a plain runtime turns kernels off. `fit` does it itself."""
        self._stack.close()

    def _build_step(self, runtime: Runtime) -> None:
        self.runtime = runtime
        if runtime.is_plain:
            self._stack.enter_context(kernels.disabled())
        if previous := getattr(self, "step", None):
            previous.close()
        self.step = Step(self.encoder, self.method, self.settings, runtime)
        self._stack.callback(self.step.close)
        self._build_batches()

    def _build_batches(self) -> None:
        self.batches = Batches(
            self.images,
            self.method,
            self.settings.batch_size,
            self.settings.seed,
            view_size=self.encoder.spec.image_size,
            device=self.runtime.device,
            decoding=self.image_set.decoding,
        )
        self._stack.callback(self.batches.close)

    def train_step(self, epoch: int, step: int, lr: float) -> Tensor:
        """Run step 0, 1, … of an epoch and return its statistics."""
        place, last = step % self.settings.accumulate, self.settings.accumulate - 1
        return self.step(self.batches.batch(epoch, step), lr, first=place == 0, last=place == last)

    def warm_up(self) -> float:
        """Compile and capture; falls back to simpler ways where that fails. Returns the seconds it took."""
        started = time.monotonic()
        while not self.runtime.is_plain:
            failure = ""
            try:
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", module="torch")  # the compiler's advice to its own developers
                    self.step.warm_up(lambda: self.batches.first(self.progress.epoch))
            except torch.cuda.OutOfMemoryError:
                raise
            except Exception as error:
                if isinstance(error, AAGError) and not isinstance(error, KernelsUnsupportedError):
                    raise  # a mistake in the method, which no other way of computing mends
                failure = first_line(error)[:120]
            (failed,) = any_process(bool(failure))
            if not failed:
                break
            state = self.step.state()
            self._build_step(self.runtime.fallback(failure or "another process failed"))
            self.step.load_state(state)
        return time.monotonic() - started

    # --- the loop -----------------------------------------------------------------------------------------------------

    def _fit(self) -> bool:
        resumed = self._resume_everywhere()
        self._tell("on_start")
        if self.progress.epoch < self.settings.epochs:
            if any_process(not self._wait_for_images())[0]:
                self._raise_decoding_failure()
                return False
            plain = self.runtime.is_plain
            seconds = self.warm_up()  # first: it may fall back, and the log says to what
            if not plain:
                self._tell("on_ready", seconds)
            where = {**provenance(str(self.runtime.device)), "threads": torch.get_num_threads()}
            about = {"runtime": str(self.runtime), "images": len(self.image_set)}
            self.log({"kind": "start", **self.position(), **where, **about})
        if not resumed:
            self._tell("on_epoch")
            self._save()
        self._saved_at = time.monotonic()
        while self.progress.epoch < self.settings.epochs:
            try:
                if any_process(self.should_stop() or not self._wait_for_images())[0] or not self._epoch():
                    self._save()
                    self._raise_decoding_failure()
                    return False
                self._tell("on_epoch")
                if self.progress.epoch == self.settings.epochs or any_process(self._save_is_due())[0]:
                    self._save()
            except NotFiniteError as error:
                self._roll_back(error)
        if self.run and not nets.is_saved(self.encoder, self.run.encoder_file, self._encoder_extra()):
            self._note(f"{self.run.encoder_file} was missing or damaged; it is written again from the checkpoint")
            self._save_encoder()
        return True

    def _wait_for_images(self) -> bool:
        """Wait until the images of the next optimizer step are decoded. False: stop requested, or decoding failed."""
        decoding, last = self.image_set.decoding, self.progress.step + self.settings.accumulate - 1
        if decoding is None:
            return True
        return not decoding.failure and decoding.wait(
            self.batches.rows_needed(self.progress.epoch, last), self.should_stop
        )

    def _raise_decoding_failure(self) -> None:
        """Raise in all processes if the images of one cannot be decoded."""
        decoding = self.image_set.decoding
        raise_any(str(decoding.failure) if decoding and decoding.failure else "")

    def _epoch(self) -> bool:
        """Train from the current step to the end of the epoch. False: a stop was requested before that."""
        settings, progress, steps = self.settings, self.progress, self.steps_per_epoch
        device = self.runtime.device
        history = torch.zeros(steps, len(self.step.names), device=device)
        if progress.step:
            history[: progress.step] = self.history[: progress.step]
        self.history = history
        if not progress.step:
            self._before_epoch()
        started, seconds_before, first = time.monotonic(), progress.seconds, progress.step
        shown, checked = started, progress.step
        while progress.step < steps:
            at = progress.step
            if device.type == "cpu":  # what a network draws for itself (stochastic depth) belongs to the step
                own = (rank(),) if rank() else ()  # processes have other images, and so other draws
                torch.default_generator.manual_seed(hash((settings.seed, progress.epoch, at, *own)) % 2**63)
            lr = learning_rate(settings, progress.epoch * steps + at, steps) * progress.lr_factor
            history[at] = self.train_step(progress.epoch, at, lr)
            progress.step = at + 1
            now = time.monotonic()
            # Reading the loss makes the host wait for the GPU: twice a second does no harm.
            if device.type == "cpu" or any_process(is_main() and now - shown > 0.5)[0]:
                shown = now
                loss = history[at, 0].item()
                checked = check_history(history, checked, at + 1, progress.epoch)
                self._tell("on_step", loss)
            if progress.step < steps and progress.step % settings.accumulate == 0:
                stop, save = any_process(self.should_stop() or not self._wait_for_images(), self._save_is_due())
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
        views = (steps - first) * settings.batch_size * len(self.batches.augmentations)
        means = mean_rows(rows, self.step.names, self.position())
        speed = {"seconds": round(progress.seconds, 3), "views_per_second": round(views / elapsed, 1)}
        if device.type == "cuda":
            speed["peak_memory"] = torch.cuda.max_memory_reserved(device)
        self.log(*means[:-1], {**means[-1], "lr": lr, **speed})
        return True

    def _before_epoch(self) -> None:
        """The method's turn: what it does here counts as training."""
        started = time.monotonic()
        if self.image_set.decoding and self.progress.epoch == 1 and self.images.device != self.runtime.device:
            self._place_images()  # now all are decoded
            self.batches.close()
            self._build_batches()
        self.method.before_epoch(self.progress.epoch, lambda: self.encode(self.images))
        copy_from_main(self.method.state_dict().values())  # clusters and neighbours must agree to the last bit
        self.step.optimizer.reset(self.method.reinitialized_parameters())
        self.batches.reset()
        self.progress.seconds += time.monotonic() - started

    def _roll_back(self, error: NotFiniteError) -> None:
        """Resume from the last checkpoint at a lower learning rate, once and with --on-nan retry; otherwise raise."""
        retry = self.on_nan == "retry" and self.progress.lr_factor == 1 and on_main(self._load_checkpoint)
        if not retry:
            on_main(lambda: self._give_up(error))
        self._resume_everywhere()
        self.batches.reset()
        self.progress.lr_factor = RETRY_FACTOR
        reason = str(error).partition(";")[0]
        self.log({"kind": "retry", **self.position(), "lr_factor": RETRY_FACTOR, "reason": reason})
        if is_main():
            _log.warning(
                "%s; back to the checkpoint at epoch %d, step %d, from there with %g times the learning rate",
                reason, self.progress.epoch + 1, self.progress.step, RETRY_FACTOR,
            )  # fmt: skip
        self._save()

    def _give_up(self, error: NotFiniteError) -> None:
        raise explain(error, self.run, self.on_nan, self.progress.lr_factor) from error

    def _note(self, text: str) -> None:
        """Tell the user something, and log it."""
        _log.warning(text)
        self.log({"kind": "note", **self.position(), "text": text})

    def _tell(self, event: str, *arguments: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(self, *arguments)

    # --- checkpoints --------------------------------------------------------------------------------------------------

    def _save_is_due(self) -> bool:
        return self.run is not None and time.monotonic() - self._saved_at > 60 * self.checkpoint_minutes

    def _save(self) -> None:
        """Write the encoder and the checkpoint. With several processes, all must call it."""
        average_running_statistics(self.encoder, self.method)
        tensors = self.step.state()
        check_state(tensors.values())
        if self.run is None:
            return
        self._check_pixels(self.image_set.decoding.digest if self.image_set.decoding else "")
        if self.progress.step:
            tensors["history"] = self.history[: self.progress.step]
        state = {
            "settings": self.run_settings,
            "images": self.image_set.fingerprint(),
            "pixels": self._pixels,
            "spec": self.encoder.spec.to_json(),
            "threads": torch.get_num_threads(),
            "processes": world_size(),
            **vars(self.progress),
        }
        self._save_encoder()  # first: no checkpoint of a finished run may stand next to an older encoder
        assert self.checkpoints is not None
        self.checkpoints.save(tensors, state)
        self._saved_at = time.monotonic()

    def _check_pixels(self, found: str) -> None:
        """Raise if images that were decoded while training are not those of the checkpoint that was resumed."""
        if found and self._pixels and found != self._pixels:
            raise self._other_images_error()
        self._pixels = found or self._pixels

    def _other_images_error(self) -> AAGError:
        assert self.run is not None
        return AAGError(
            f"the images of {self.image_set.name} are not those that {self.run.folder} was trained on; "
            "choose another --out"
        )

    def _save_encoder(self) -> None:
        assert self.run is not None
        nets.save(self.encoder, self.run.encoder_file, self._encoder_extra())

    def _encoder_extra(self) -> dict[str, str]:
        """What the encoder's file says about the run, so that it cannot be taken for another's."""
        extra = {"epoch": str(self.progress.epoch), "settings": json.dumps(self.run_settings, sort_keys=True)}
        return extra if self.progress.lr_factor == 1 else {**extra, "lr_factor": str(self.progress.lr_factor)}

    def _load_checkpoint(self) -> bool:
        """Read the run's checkpoint, if it has one, and use its number of threads."""
        self._loaded = found = self.checkpoints.load() if self.checkpoints else None
        if found and self.runtime.device.type == "cpu" and found.state["processes"] == world_size():
            # The order of sums, and so the last bits, depends on the threads and on the processes.
            threads, before = found.state["threads"], torch.get_num_threads()
            if threads != before:
                torch.set_num_threads(threads)
                _log.warning(
                    "training with the %d threads that this run began with, not %d: its bits depend on them",
                    threads, before,
                )  # fmt: skip
        return found is not None

    def _resume_everywhere(self) -> bool:
        """Resume in the main process and copy its state to the others."""
        if not is_distributed():
            return self._resume()
        resumed, self.progress, history, threads = on_main(
            lambda: (self._resume(), self.progress, self.history.cpu(), torch.get_num_threads())
        )
        self.history = history.to(self.runtime.device)
        if self.runtime.device.type == "cpu":
            torch.set_num_threads(threads)
        state = self.step.state()
        copy_from_main(state.values())
        self.step.load_state(state)  # also into the kernels' copies
        return resumed

    def _resume(self) -> bool:
        """Restore the run's checkpoint. False: there is none."""
        run, found = self.run, self._loaded
        self._loaded = None
        if run is None:
            return self.position()["step"] > 0
        if found is None:
            if any(row["kind"] == "epoch" for row in run.metrics()):
                raise AAGError(
                    f"{run.folder} has metrics but no checkpoint to resume from; "
                    "choose another --out, or delete the folder to start again"
                )
            run.filter_metrics(lambda row: False)
            return False
        other = set(differences(found.state["settings"], self.run_settings)) - {"epochs"}  # `Run.check` has judged it
        if other:
            raise AAGError(
                f"{run.checkpoint} is of a run with another {', '.join(sorted(other))}; choose another --out"
            )
        if found.state["images"] != self.image_set.fingerprint():
            raise self._other_images_error()
        self._check_pixels(found.state.get("pixels", ""))
        if EncoderSpec.from_json(found.state["spec"]) != self.encoder.spec:
            raise AAGError(f"{run.checkpoint} belongs to another network; choose another --out")
        self._restore(found)
        if found.warning:
            self._note(found.warning)
        return True

    def _restore(self, found: LoadedCheckpoint) -> None:
        """Return to a checkpoint; what was logged after it is dropped, and will be logged again."""
        tensors, state = dict(found.tensors), found.state
        history = tensors.pop("history", torch.zeros(0, len(self.step.names)))
        if state["step"] >= self.steps_per_epoch or history.shape != (state["step"], len(self.step.names)):
            raise AAGError("the checkpoint's position does not fit this run; choose another --out")
        self.history = history.to(self.runtime.device)
        self.step.load_state(tensors)
        self.progress = Progress(**{name: state[name] for name in vars(self.progress)})
        reached = self.position()["step"]
        if self.run:
            self.run.filter_metrics(lambda row: row["step"] <= reached)
