"""Train until the first step is done: python -m aag.bench.first_step JSON

The JSON names the run and the time (time.monotonic) before this process was started, see startup.py. The last line
printed is a JSON object.
"""

import json
import sys
import time
from pathlib import Path

from rich.console import Console

from aag.bench.timing import synchronise
from aag.training import Callback, Execution, RunSettings, Trainer, train_run
from aag.training.progress import Progress


class FirstStep(Callback):
    """Stops training after its first step and keeps the time of it."""

    def __init__(self, started: float) -> None:
        self.started, self.seconds, self.warm_up_seconds = started, 0.0, 0.0

    def on_start(self, trainer: Trainer) -> None:
        self.trainer = trainer

    def on_ready(self, trainer: Trainer, seconds: float) -> None:
        self.warm_up_seconds = seconds

    def should_stop(self) -> bool:
        if not self.seconds and self.trainer.position()["step"]:
            synchronise(self.trainer.runtime.device)
            self.seconds = time.monotonic() - self.started
        return bool(self.seconds)


def main(job_json: str) -> None:
    job = json.loads(job_json)
    execution = Execution(
        out=Path(job["out"]),
        device=job["device"],
        compile=job["compile"],
        data_root=Path(job["data_root"]) if job["data_root"] else None,
    )
    first = FirstStep(job["started"])
    with Progress(Console()) as progress:
        train_run(
            RunSettings.from_json(job["settings"]),
            execution,
            recipe=job["recipe"],
            callbacks=[progress, first],
            should_stop=first.should_stop,
        )
    runtime = str(first.trainer.runtime)
    print(f"\n{json.dumps({'seconds': first.seconds, 'warm_up_seconds': first.warm_up_seconds, 'runtime': runtime})}")


if __name__ == "__main__":
    main(sys.argv[1])
