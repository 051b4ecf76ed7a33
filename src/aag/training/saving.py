"""Save checkpoints and the encoder in the run folder, and resume from them."""

import json
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from aag import nets
from aag.data import ImageSet
from aag.distributed import world_size
from aag.errors import AAGError
from aag.nets import Encoder, EncoderSpec
from aag.runs import Run, differences
from aag.training.checkpoints import Checkpoints, LoadedCheckpoint


@dataclass
class TrainingProgress:
    """How far training is. Checkpoints store these fields by name, next to the weights."""

    epoch: int = 0  # epochs finished
    step: int = 0  # steps finished in the current epoch
    seconds: float = 0.0  # of training, without evaluation
    lr_factor: float = 1.0  # of the schedule's learning rate; less after a retry


class RunSaver:
    """Saves training in a run folder and reads it again. Only the main process has one; use it in the run's lock."""

    def __init__(
        self, run: Run, settings: dict[str, Any], images: ImageSet, encoder: Encoder, *, keep: int, minutes: float
    ) -> None:
        """settings: of the whole run, by section. minutes: between checkpoints. keep: number of checkpoints to keep."""
        self.run, self.settings, self.images, self.encoder = run, settings, images, encoder
        self.checkpoints, self.minutes = Checkpoints(run, keep), minutes
        self._saved_at = time.monotonic()
        self._pixels = ""  # hash of all pixels, of images that were decoded while training

    def is_due(self) -> bool:
        """Return whether it is time for the next checkpoint."""
        return time.monotonic() - self._saved_at > 60 * self.minutes

    def restart_clock(self) -> None:
        """Count the minutes to the next checkpoint from now."""
        self._saved_at = time.monotonic()

    def save(self, tensors: dict[str, Tensor], history: Tensor, progress: TrainingProgress) -> None:
        """Write the encoder and a checkpoint. `history`: the statistics of the current epoch, one row per step."""
        self._check_pixels(self.images.decoding.digest if self.images.decoding else "")
        if progress.step:
            tensors = {**tensors, "history": history[: progress.step]}
        state = {
            "settings": self.settings,
            "images": self.images.fingerprint(),
            "pixels": self._pixels,
            "spec": self.encoder.spec.to_json(),
            "threads": torch.get_num_threads(),
            "processes": world_size(),
            **vars(progress),
        }
        self._save_encoder(progress)  # first: no checkpoint of a finished run may stand next to an older encoder
        self.checkpoints.save(tensors, state)
        self.restart_clock()

    def load(self) -> LoadedCheckpoint | None:
        """Return the newest whole checkpoint; None if there is none. Raise if it belongs to another run."""
        found, path = self.checkpoints.load(), self.run.checkpoint
        if found is None:
            return None
        other = set(differences(found.state["settings"], self.settings)) - {"epochs"}  # which `Run.check` has checked
        if other:
            raise AAGError(f"{path} belongs to a run with another {', '.join(sorted(other))}; choose another --out")
        if found.state["images"] != self.images.fingerprint():
            raise other_images_error(self.images, self.run)
        self._check_pixels(found.state.get("pixels", ""))
        if EncoderSpec.from_json(found.state["spec"]) != self.encoder.spec:
            raise AAGError(f"{path} belongs to another network; choose another --out")
        return found

    def clear_metrics(self) -> None:
        """Drop the rows of a run that has no checkpoint yet. Raise if it had one."""
        if any(row["kind"] == "epoch" for row in self.run.metrics()):
            raise AAGError(
                f"{self.run.folder} has metrics but no checkpoint to resume from; "
                "choose another --out, or delete the folder to start again"
            )
        self.run.filter_metrics(lambda row: False)

    def repair_encoder(self, progress: TrainingProgress) -> str:
        """Write the encoder of a finished run if its file is missing or damaged, and say so."""
        path = self.run.encoder_file
        if nets.is_saved(self.encoder, path, self._encoder_extra(progress)):
            return ""
        self._save_encoder(progress)
        return f"{path} was missing or damaged; it is written again from the checkpoint"

    def _save_encoder(self, progress: TrainingProgress) -> None:
        nets.save(self.encoder, self.run.encoder_file, self._encoder_extra(progress))

    def _encoder_extra(self, progress: TrainingProgress) -> dict[str, str]:
        """Return the metadata of the encoder's file, which identifies the run."""
        extra = {"epoch": str(progress.epoch), "settings": json.dumps(self.settings, sort_keys=True)}
        return extra if progress.lr_factor == 1 else {**extra, "lr_factor": str(progress.lr_factor)}

    def _check_pixels(self, found: str) -> None:
        """Raise if images that were decoded while training are not those of the checkpoint that was resumed."""
        if found and self._pixels and found != self._pixels:
            raise other_images_error(self.images, self.run)
        self._pixels = found or self._pixels


def other_images_error(images: ImageSet, run: Run) -> AAGError:
    """Return the error for a run that was trained on other images than these."""
    return AAGError(f"the images of {images.name} are not those that {run.folder} was trained on; choose another --out")
