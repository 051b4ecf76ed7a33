"""Methods whose second process fails at the start of the second epoch, once."""

import os
import signal
from pathlib import Path

from torch import Tensor

from aag.distributed import rank
from aag.methods import Extract
from aag.methods.base import Embeddings
from aag.methods.simclr import SimCLR
from aag.nets import Encoder


class Preempted(SimCLR):
    """The second of several processes gets SIGTERM."""

    name = "preempted"

    def before_epoch(self, epoch: int, extract: Extract) -> None:
        if epoch == 1 and os.environ["RANK"] == "1":
            signal.raise_signal(signal.SIGTERM)


class Dying(SimCLR):
    """The second process is killed, unless it was restarted."""

    name = "dying"

    def before_epoch(self, epoch: int, extract: Extract) -> None:
        if epoch == 1 and os.environ["RANK"] == "1" and not Path("died").exists():
            Path("died").touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Diverging(SimCLR):
    """The second process computes NaN in its share of one batch."""

    name = "diverging"
    epoch, has_diverged = 0, False

    def before_epoch(self, epoch: int, extract: Extract) -> None:
        self.epoch = epoch

    def embed(self, encoder: Encoder, views: Tensor) -> Embeddings:
        embeddings = super().embed(encoder, views)
        if self.epoch == 1 and rank() == 1 and not self.has_diverged:
            self.has_diverged = True
            return embeddings * float("nan")
        return embeddings
