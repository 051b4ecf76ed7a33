"""The training loop: epochs of steps, kNN now and then, checkpoints, and going on after any stop."""

import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from aag import data, kernels, methods, nets
from aag.config import TrainConfig
from aag.data import ImageSet
from aag.data.known import KNOWN
from aag.errors import AAGError
from aag.evaluate import knn_accuracy
from aag.files import write_bytes
from aag.provenance import provenance
from aag.training import checkpoint
from aag.training.reporter import Reporter
from aag.training.result import Result, summarise
from aag.training.run import Run
from aag.training.runtime import Runtime, decide
from aag.training.schedule import learning_rate
from aag.training.step import Step
from aag.training.views import Views

LOG_STEPS = 50  # steps that one row of similarities and gradients in metrics.jsonl averages


@dataclass
class Progress:
    """Where a run stands; with the weights, all that a resumed run needs."""

    epoch: int = 0  # epochs finished
    step: int = 0  # steps finished in the epoch under way
    seconds: float = 0.0  # of training, without evaluation


def train(
    config: TrainConfig, reporter: Reporter | None = None, should_stop: Callable[[], bool] = lambda: False
) -> Result:
    """Trains `config`, from the run folder's checkpoint where there is one. `should_stop` is asked after every step."""
    return Trainer(config.validate(), reporter or Reporter(), should_stop).train()


def encoder_spec(config: TrainConfig, images: ImageSet) -> nets.EncoderSpec:
    """The encoder's, normalised for these images."""
    mean, std = data.normalisation(config.data) if config.data in KNOWN else images.statistics()
    return nets.EncoderSpec(
        config.network, config.width, config.head, config.embedding, config.norm_images, images.image_size, mean, std
    )


class Trainer:
    def __init__(self, config: TrainConfig, reporter: Reporter, should_stop: Callable[[], bool]) -> None:
        self.config, self.reporter, self.should_stop = config, reporter, should_stop
        self.runtime = decide(config)
        self.train_set, self.test_set = data.load_pair(config.data, root=config.data_root, image_size=config.image_size)
        if config.batch_size > len(self.train_set):
            raise AAGError(
                f"--batch-size {config.batch_size} is larger than the set: "
                f"{self.train_set.name} has {len(self.train_set)} training images"
            )
        self.steps = len(self.train_set) // config.batch_size  # the last partial batch is dropped
        self.encoder = nets.build(encoder_spec(config, self.train_set), seed=config.seed)
        self.method = methods.build(methods.Setting(config, len(self.train_set), self.encoder))
        self.run = Run.create(config.out or Path("runs") / config.run_name(), config)
        self.progress = Progress()
        self.history = torch.zeros(0)  # the statistics of the epoch under way, a row for each step

    def train(self) -> Result:
        with self.run.lock(), torch.random.fork_rng(devices=[]), ExitStack() as self.until_done:
            return self._train()

    def _train(self) -> Result:
        config, run, runtime = self.config, self.run, self.runtime
        for module in (self.encoder, self.method):
            module.to(runtime.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.images = self.train_set.images.to(runtime.device)
        if runtime.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(runtime.device)
        self._build_step(runtime)
        self._resume()
        skipped = self.train_set.skipped + (self.test_set.skipped if self.test_set else ())
        if skipped:
            write_bytes(run.skipped_file, "".join(f"{line}\n" for line in skipped).encode())
        self.reporter.start(self, self._where()["step"])
        if self.progress.epoch < config.epochs:
            self._warm_up()  # first: it may have to do with less, and the record is to say with what
            start = {**self._where(), **provenance(str(runtime.device)), "runtime": str(self.runtime)}
            run.log([{"kind": "start", **start}])
        if self.progress.epoch == self.progress.step == 0 and not run.checkpoint.exists():
            self._knn()
            self._save()

        self.saved_at = time.monotonic()
        while self.progress.epoch < config.epochs:
            if self.should_stop() or not self._epoch():
                self._save()
                return summarise(run, complete=False)
            epoch = self.progress.epoch
            done = epoch == config.epochs
            if done or (config.knn_every and epoch % config.knn_every == 0):
                self._knn()
            if done or self._save_is_due():
                self._save()
        if not run.encoder_file.exists():
            self._save_encoder()
        return summarise(run, complete=True)

    # --- an epoch ---------------------------------------------------------------------------------------------------

    def _epoch(self) -> bool:
        """From the step reached to the epoch's end. False: a stop was asked for before that."""
        config, progress = self.config, self.progress
        device = self.runtime.device
        history = torch.zeros(self.steps, len(self.step.names), device=device)
        if progress.step:
            history[: progress.step] = self.history
        self.history = history
        if not progress.step:
            self._before_epoch()
        started, before, first = time.monotonic(), progress.seconds, progress.step
        shown = started
        while progress.step < self.steps:
            at = progress.step
            if device.type == "cpu":  # what a network draws for itself (stochastic depth) is the step's own, too
                torch.default_generator.manual_seed(hash((config.seed, progress.epoch, at)) % 2**63)
            lr = learning_rate(config, progress.epoch * self.steps + at, self.steps)
            history[at] = self.step(self.views.batch(progress.epoch, at), lr)
            progress.step = at + 1
            now = time.monotonic()
            # Reading the loss makes the host wait for the GPU: twice a second does no harm.
            if device.type == "cpu" or now - shown > 0.5:
                shown = now
                loss = history[at, 0].item()
                self._check_finite(history[: at + 1])
                self.reporter.step(progress.epoch, at + 1, self.steps, loss)
            if progress.step < self.steps:
                stop = self.should_stop()
                if stop or self._save_is_due():
                    self._check_finite(history[: progress.step])
                    progress.seconds = before + time.monotonic() - started
                    if stop:
                        return False
                    self._save()
        rows = history.cpu()  # waits for the GPU
        self._check_finite(rows)
        progress.seconds = before + time.monotonic() - started
        progress.epoch, progress.step = progress.epoch + 1, 0
        speed = (self.steps - first) * config.batch_size * len(self.method.views) / (time.monotonic() - started)
        self._log_epoch(rows, lr, speed)
        return True

    def _before_epoch(self) -> None:
        """The method's turn: what it does here counts as training."""
        started = time.monotonic()
        self.method.before_epoch(self.progress.epoch, lambda: self._encode(self.images))
        self.step.optimizer.forget(self.method.fresh)
        self.views.forget()
        self.progress.seconds += time.monotonic() - started

    def _log_epoch(self, history: Tensor, lr: float, views_per_second: float) -> None:
        where, names = self._where(), self.step.names
        first = where["step"] - self.steps
        rows: list[dict[str, Any]] = []
        for start in range(0, self.steps, LOG_STEPS):
            window = history[start : start + LOG_STEPS]
            means = dict(zip(names, window.mean(dim=0).tolist(), strict=True))
            rows.append({"kind": "steps", "epoch": where["epoch"], "step": first + start + len(window), **means})
        means = dict(zip(names, history.mean(dim=0).tolist(), strict=True))
        speed = {"seconds": round(self.progress.seconds, 3), "views_per_second": round(views_per_second, 1)}
        rows.append({"kind": "epoch", **where, "lr": lr, **means, **speed, **self._memory()})
        self.run.log(rows)
        self.reporter.epoch(self.progress.epoch, means["loss"], views_per_second)

    def _check_finite(self, history: Tensor) -> None:
        bad = (~torch.isfinite(history).all(dim=1)).nonzero()
        if len(bad):
            kept = f"the last good checkpoint is kept in {self.run.folder}" if self.run.checkpoint.exists() else ""
            raise AAGError(
                f"the loss is not a number any more (epoch {self.progress.epoch + 1}, step {int(bad[0]) + 1}); {kept}; "
                "try a lower --lr, --warmup-epochs 10, or --precision fp32, with another --out"
            )

    @property
    def labels(self) -> tuple[Tensor, Tensor] | None:
        """Of the training and the test images. None: one of them has none, and there is no kNN."""
        if self.train_set.labels is None or self.test_set is None or self.test_set.labels is None:
            return None
        return self.train_set.labels, self.test_set.labels

    def _knn(self) -> None:
        """Weighted kNN of the test images among the un-augmented training images. It steers nothing."""
        if self.labels is None:
            return
        assert self.test_set is not None
        started = time.monotonic()
        embeddings = [self._encode(images)[1] for images in (self.images, self.test_set.images)]
        labels = [part.to(self.runtime.device) for part in self.labels]
        if not torch.isfinite(embeddings[0]).all():
            raise AAGError("the network's embeddings are not numbers any more; try a lower --lr, with another --out")
        accuracy = knn_accuracy(embeddings[0], labels[0], embeddings[1], labels[1])
        seconds = time.monotonic() - started
        self.run.log([{"kind": "knn", **self._where(), "knn": accuracy, "evaluation_seconds": round(seconds, 3)}])
        self.reporter.knn(self.progress.epoch, accuracy)

    def _encode(self, images: Tensor) -> tuple[Tensor, Tensor]:
        dtype = self.runtime.dtype if self.runtime.dtype != torch.float32 else None
        return self.encoder.encode(images, dtype=dtype)

    # --- starting, stopping, going on ---------------------------------------------------------------------------------

    def _build_step(self, runtime: Runtime) -> None:
        config = self.config
        self.runtime = runtime
        if runtime.is_plain:
            self.until_done.enter_context(kernels.disabled())
        self.step = Step(self.encoder, self.method, config, runtime)
        self.views = Views(self.images, self.method, config.batch_size, config.seed)

    def _warm_up(self) -> None:
        """Compiles and captures before the clock starts; where that fails, goes on with less and says so."""
        if self.runtime.is_plain:
            return
        started = time.monotonic()
        while not self.runtime.is_plain:
            try:
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", module="torch")  # the compiler's advice to its own developers
                    self.step.warm_up(lambda: self.views.first(self.progress.epoch))
                break
            except torch.cuda.OutOfMemoryError:
                raise
            except Exception as error:
                reason = str(error).strip().splitlines()[0][:120] if str(error).strip() else type(error).__name__
                state = self.step.state()
                self._build_step(self.runtime.fallback(reason))
                self.step.load_state(state)
        self.reporter.warm(self.runtime, time.monotonic() - started)

    def _where(self) -> dict[str, int]:
        return {"epoch": self.progress.epoch, "step": self.progress.epoch * self.steps + self.progress.step}

    def _save_is_due(self) -> bool:
        return time.monotonic() - self.saved_at > 60 * self.config.checkpoint_minutes

    def _save(self) -> None:
        """The checkpoint, and the encoder as it stands."""
        tensors = self.step.state()
        if not all(torch.isfinite(value).all() for value in tensors.values() if value.is_floating_point()):
            raise AAGError("the weights are not numbers any more; the last good checkpoint is kept; try a lower --lr")
        if self.progress.step:
            tensors["history"] = self.history[: self.progress.step]
        state = {
            "config": self.config.identity(), "images": self.train_set.fingerprint(), **vars(self.progress)
        }  # fmt: skip
        self._save_encoder()  # first: no checkpoint of a finished run may stand beside an older encoder
        checkpoint.save(self.run.checkpoint, tensors, state)
        self.saved_at = time.monotonic()

    def _save_encoder(self) -> None:
        nets.save(self.encoder, self.run.encoder_file, {"epoch": str(self.progress.epoch)})

    def _resume(self) -> None:
        """Puts the checkpoint's state in place, where there is one."""
        if not self.run.checkpoint.exists():
            if any(row["kind"] == "epoch" for row in self.run.metrics()):
                raise AAGError(
                    f"{self.run.folder} holds metrics but no checkpoint to go on from; "
                    "choose another --out, or delete the folder to start anew"
                )
            self.run.keep_metrics(lambda row: False)
            return
        tensors, state = checkpoint.load(self.run.checkpoint)
        saved = TrainConfig.from_json(state["config"]).identity()  # what an older version did not know has its default
        other = [name for name, value in self.config.identity().items() if saved[name] != value]
        if other:
            raise AAGError(f"{self.run.checkpoint} is of a run with another {', '.join(other)}; choose another --out")
        if state["images"] != self.train_set.fingerprint():
            raise AAGError(
                f"the images of {self.config.data} are not those that {self.run.folder} was trained on; "
                "choose another --out"
            )
        if "history" in tensors:
            self.history = tensors.pop("history").to(self.runtime.device)
        self.step.load_state(tensors)
        self.progress = Progress(state["epoch"], state["step"], state["seconds"])
        reached = self._where()["step"]
        self.run.keep_metrics(lambda row: row["step"] <= reached)

    def _memory(self) -> dict[str, int]:
        if self.runtime.device.type != "cuda":
            return {}
        return {"peak_memory": torch.cuda.max_memory_reserved(self.runtime.device)}
