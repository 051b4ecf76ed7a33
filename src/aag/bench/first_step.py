"""`aag train` until its first step is done: python -m aag.bench.first_step STARTED OPTIONS…

STARTED is the time (time.monotonic) before this process was started. The last line printed is a JSON object.
"""

import json
import sys
import time

from aag.cli import train_config


def main() -> None:
    started = float(sys.argv[1])
    config = train_config(sys.argv[2:])

    from rich.console import Console

    from aag.bench.timing import wait
    from aag.training import train
    from aag.training.loop import Trainer
    from aag.training.reporter import Terminal
    from aag.training.runtime import Runtime

    class Watch(Terminal):
        warm_up_seconds = 0.0
        seconds: float | None = None

        def start(self, trainer: Trainer, reached: int) -> None:
            self.trainer = trainer
            super().start(trainer, reached)

        def warm(self, runtime: Runtime, seconds: float) -> None:
            self.warm_up_seconds = seconds
            super().warm(runtime, seconds)

        def should_stop(self) -> bool:
            progress = self.trainer.progress
            if not progress.step and not progress.epoch:
                return False
            if self.seconds is None:
                wait(self.trainer.runtime.device)
                self.seconds = time.monotonic() - started
            return True

    watch = Watch(Console())
    with watch:
        train(config, watch, watch.should_stop)
    print()
    told = {"seconds": watch.seconds, "warm_up_seconds": watch.warm_up_seconds, "runtime": str(watch.trainer.runtime)}
    print(json.dumps(told))


if __name__ == "__main__":
    main()
