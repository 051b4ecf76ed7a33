"""The training engine: it holds encoder, method and images on a device, and runs steps on their batches."""

import logging
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack

import torch
from torch import Tensor

from aag import kernels
from aag.data import DATASETS, ImageSet
from aag.distributed import any_process, copy_from_main, is_distributed, is_main, on_main, raise_any
from aag.errors import AAGError, KernelsUnsupportedError, first_line
from aag.evaluate import distributed
from aag.methods import Method, MethodContext
from aag.nets import Encoder
from aag.nets.pretrained import load_pretrained
from aag.nets.sync_norm import average_running_statistics
from aag.settings import TrainSettings
from aag.training.batches import Batches
from aag.training.checks import check_low_res, check_processes, check_same_images, check_sizes
from aag.training.encoders import freeze, load_start_weights, zero_init_residual
from aag.training.prefetch import fits_on_device
from aag.training.runtime import Runtime, choose_precision, choose_runtime, find_device
from aag.training.step import Step

_log = logging.getLogger("aag.training")


class Engine:
    """Trains step by step; `Trainer` adds epochs, callbacks and the run folder. Call `prepare` first, `close` last."""

    step: Step
    batches: Batches
    images: Tensor  # on the device if they fit, else on the host

    def __init__(
        self,
        encoder: Encoder,
        method: Method,
        images: ImageSet,
        settings: TrainSettings,
        *,
        device: str | torch.device = "auto",
        compile: str = "auto",
        deterministic: bool = False,
        images_on: str = "auto",
        load_weights: bool = True,
    ) -> None:
        """load_weights: start from the weights that the settings name; False if a checkpoint will replace them."""
        device = find_device(str(device))
        self.settings = settings = settings.resolve(choose_precision(device, settings.precision))
        self.encoder, self.method, self.image_set, self.images_on = encoder, method, images, images_on
        self.deterministic = deterministic and device.type == "cuda"
        check_same_images(images)
        on_main(lambda: check_sizes(encoder, images, settings))
        on_main(lambda: check_processes(encoder, method, settings))
        # The last partial batch is dropped, and so are batches that do not fill a window.
        self.steps_per_epoch = len(images) // (settings.batch_size * settings.accumulate) * settings.accumulate
        if load_weights and is_main():  # the others get the main process's weights
            self._set_initial_weights()
        freeze(encoder, settings.freeze)
        method.settings = method.settings.resolve(DATASETS.get(images.name))
        with torch.random.fork_rng(devices=[]):  # the seed also decides how the method's own layers start
            torch.default_generator.manual_seed(hash((settings.seed, -1)) % 2**63)
            method.setup(MethodContext(encoder, len(images), settings))
        check_low_res(method, settings)
        self.runtime = choose_runtime(encoder, device, settings.precision, compile, self.deterministic)
        if is_distributed():
            self.runtime = self.runtime.for_processes()
        self.view_size = encoder.spec.image_size  # of the views that the step is built for
        self._stack = ExitStack()

    # --- preparing ----------------------------------------------------------------------------------------------------

    def _set_initial_weights(self) -> None:
        """Change the encoder's new weights as the settings say: load others, or start some of them differently."""
        encoder, settings = self.encoder, self.settings
        if settings.start_from:
            load_start_weights(encoder, settings.start_from)
        if settings.pretrained:
            _log.info("weights  loading %s of %s", settings.pretrained, encoder.spec.network)
            load_pretrained(encoder, settings.pretrained)
        if settings.zero_init_residual:
            zero_init_residual(encoder)

    def prepare(self) -> None:
        """Move everything to the device and build the step."""
        for module in (self.encoder, self.method):
            module.to(self.runtime.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._place_images()
        if self.runtime.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.runtime.device)
        self._build_step(self.runtime)
        self._stack.callback(lambda: self.step.close())  # the last one: each closes the one before it
        self._stack.callback(lambda: self.batches.close())

    def warm_up(self, epoch: int = 0) -> float:
        """Compile and capture the step of an epoch, or fall back to a simpler runtime. Return the seconds it took."""
        started = time.monotonic()
        if self._view_size(epoch) != self.view_size:
            self.view_size = self._view_size(epoch)
            self._build_step(self.runtime)
        while not self.runtime.is_plain:
            failure = ""
            try:
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", module="torch")  # the compiler's advice to its own developers
                    # The thread of backward has no CUDA context before its first product; PyTorch makes one.
                    warnings.filterwarnings("ignore", message="Attempting to run cuBLAS")
                    self.step.warm_up(lambda: self.batches.first_batch(epoch))
            except torch.cuda.OutOfMemoryError:
                raise
            except Exception as error:
                if isinstance(error, AAGError) and not isinstance(error, KernelsUnsupportedError):
                    raise  # an error in the method itself: no fallback can fix it
                failure = first_line(error)[:120]
            (failed,) = any_process(bool(failure))
            if not failed:
                break
            self._build_step(self.runtime.fallback(failure or "another process failed"))
        return time.monotonic() - started

    def match_view_size(self, epoch: int) -> None:
        """Build and compile the step again if the size of the views changes in this epoch."""
        if self._view_size(epoch) != self.view_size:
            self.warm_up(epoch)

    def close(self) -> None:
        """Undo the global changes of `prepare`: a plain runtime turns kernels off. `Trainer.fit` calls this itself."""
        self._stack.close()

    def _build_step(self, runtime: Runtime) -> None:
        """Build the step. It takes over the state of the previous one, of a stopped `fit` or a runtime that failed.

        Fall back to a simpler runtime if the encoder changed after this one was chosen, such as by a hook on a weight.
        """
        self.runtime = runtime
        if runtime.is_plain:
            self._stack.enter_context(kernels.disabled())
        previous: Step | None = getattr(self, "step", None)
        if previous:
            previous.close()
        try:
            self.step = Step(self.encoder, self.method, self.settings, runtime)
        except KernelsUnsupportedError as error:
            self._build_step(runtime.fallback(first_line(error)))
            return
        if previous:
            self.step.load_state(previous.state())
        self._build_batches()

    def _build_batches(self) -> None:
        if hasattr(self, "batches"):
            self.batches.close()
        self.batches = Batches(
            self.images,
            self.method,
            self.settings.batch_size,
            self.settings.seed,
            view_size=self.view_size,
            device=self.runtime.device,
            decoding=self.image_set.decoding,
        )

    def _view_size(self, epoch: int) -> int:
        """Return the side of an epoch's views, in pixels."""
        low = epoch < self.settings.low_res_epochs and self.settings.low_res_size
        return low or self.encoder.spec.image_size

    # --- training -----------------------------------------------------------------------------------------------------

    def begin_epoch(self, epoch: int) -> None:
        """Let the method prepare an epoch, such as by clustering. Call it before the epoch's first step."""
        if self.image_set.decoding and epoch == 1 and self.images.device != self.runtime.device:
            self._place_images()  # now all are decoded
            self._build_batches()
        self.match_view_size(epoch)
        self.method.before_epoch(epoch, lambda: self.encode(self.images))
        copy_from_main(self.method.state_dict().values())  # clusters and neighbours must agree to the last bit
        self.step.optimizer.reset(self.method.reinitialized_parameters())
        self.batches.reset()

    def train_step(self, epoch: int, step: int, lr: float) -> Tensor:
        """Run step 0, 1, … of an epoch and return its statistics."""
        position, last = step % self.settings.accumulate, self.settings.accumulate - 1
        return self.step(self.batches.batch(epoch, step), lr, first=position == 0, last=position == last)

    def encode(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return features [N, F] and unit embeddings [N, d] of images, in the precision of training.

        With several processes each encodes its share, so all of them must call this.
        """
        average_running_statistics(self.encoder, self.method)
        return distributed.encode(self.encoder, images, self.runtime.autocast_dtype)

    def embed(self, images: Tensor) -> Tensor:
        """Return unit embeddings [N, d] of images, as `encode` does."""
        average_running_statistics(self.encoder, self.method)
        return distributed.embed(self.encoder, images, self.runtime.autocast_dtype)

    # --- images -------------------------------------------------------------------------------------------------------

    def _place_images(self) -> None:
        """Copy the images to the device if they fit, and if all are decoded; else they are read from the host."""
        self.images, decoding = self.image_set.images, self.image_set.decoding
        if self.images_on == "host" or (decoding and not decoding.is_ready(len(self.images))):
            return
        if self.images_on == "device" or fits_on_device(self.images, self.runtime.device):
            self.images = self.images.to(self.runtime.device)

    def wait_for_images(self, epoch: int, step: int, should_stop: Callable[[], bool]) -> bool:
        """Wait until the images of an optimizer step are decoded. Return False on a stop, or if decoding failed.

        step: the first of the --accumulate batches whose gradients are averaged.
        """
        decoding, last = self.image_set.decoding, step + self.settings.accumulate - 1
        if decoding is None:
            return True
        return not decoding.failure and decoding.wait(self.batches.rows_needed(epoch, last), should_stop)

    def raise_decoding_failure(self) -> None:
        """Raise in all processes if the images of one cannot be decoded."""
        decoding = self.image_set.decoding
        raise_any(str(decoding.failure) if decoding and decoding.failure else "")
