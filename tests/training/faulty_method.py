"""Methods whose second process fails at the start of the second epoch, once."""

import os
import signal
from pathlib import Path

from aag.methods import Extract
from aag.methods.simclr import SimCLR


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
