"""The last checkpoints of a run: which one to resume from, and how a new one takes its place."""

import contextlib
import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from aag.errors import AAGError
from aag.files import explain_write_errors, temporary_path
from aag.runs import Run
from aag.tensor_files import DamagedFileError
from aag.training import checkpoint


class LoadedCheckpoint(NamedTuple):
    """A whole checkpoint."""

    tensors: dict[str, Tensor]
    state: dict[str, Any]
    warning: str  # about newer ones that are damaged; empty if there are none


class Checkpoints:
    """Reads the newest whole checkpoint of a run, and keeps the last `keep` of them. Use it inside the run's lock."""

    def __init__(self, run: Run, keep: int = 2) -> None:
        self.run, self.keep = run, keep
        self._newest_is_whole = False  # if not, `save` overwrites it and keeps the older ones

    def load(self) -> LoadedCheckpoint | None:
        """Return the newest undamaged checkpoint; None if the run has none. Raise if all are damaged."""
        damaged: list[DamagedFileError] = []
        for path in self.run.checkpoints():
            try:
                tensors, state = checkpoint.load(path)
            except DamagedFileError as error:
                damaged.append(error)
                continue
            self._newest_is_whole = path == self.run.checkpoint
            warning = f"{damaged[0]}; resuming from the older {path.name}" if damaged else ""
            return LoadedCheckpoint(tensors, state, warning)
        if damaged:
            older = ", and so are the older ones" if len(damaged) > 1 else ", and there is no older one"
            raise AAGError(f"{damaged[0]}{older}; choose another --out, or delete the folder to start again")
        return None

    def save(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Write the newest checkpoint. If this fails or the process is killed, the previous one is still there."""
        previous = self._link_newest() if self.keep > 1 and self._newest_is_whole else None
        try:
            checkpoint.save(self.run.checkpoint, tensors, state)
            self._newest_is_whole = True
            if previous:
                with explain_write_errors(self.run.folder):
                    self._shift_older(previous)
        finally:
            if previous:
                previous.unlink(missing_ok=True)
        for path in self.run.checkpoints():
            if path not in [self.run.checkpoint_file(age) for age in range(self.keep)]:
                with contextlib.suppress(OSError):
                    path.unlink()

    def _link_newest(self) -> Path:
        """Return a second name of the newest checkpoint, or a copy where the file system has no hard links."""
        path, linked = self.run.checkpoint, temporary_path(self.run.checkpoint)
        try:
            os.link(path, linked)
        except OSError:
            with explain_write_errors(path):
                shutil.copyfile(path, linked)
        return linked

    def _shift_older(self, previous: Path) -> None:
        """Shift the older checkpoints by one, down to `previous`."""
        for age in range(self.keep - 2, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                os.replace(self.run.checkpoint_file(age), self.run.checkpoint_file(age + 1))
        os.replace(previous, self.run.checkpoint_file(1))
