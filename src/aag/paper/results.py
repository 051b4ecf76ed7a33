"""What was measured: the records under a folder, matched with the runs that the paper's tables ask for."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aag.config import TrainConfig


@dataclass(frozen=True)
class Result:
    """One record: a run that was finished and evaluated."""

    path: Path
    record: dict[str, Any]
    config: TrainConfig  # as it was run; what its version did not know has its default

    @property
    def name(self) -> str:
        return self.record["name"]

    def measure(self, measure: str) -> float | None:
        """knn (the last epoch's), linear, or knn@E; in percent."""
        kind, _, epoch = measure.partition("@")
        if epoch:
            return dict(map(tuple, self.record["knn_by_epoch"])).get(int(epoch))
        if kind == "knn":
            return self.record["knn"]["last"]
        return next((r["accuracy"] for r in self.record["evaluation"] if r["protocol"]["evaluation"] == kind), None)


class Results:
    """All records of a folder. A file that cannot be read as one is passed over, and told of in `damaged`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.all: list[Result] = []
        self.damaged: dict[Path, str] = {}
        for path in sorted(folder.glob("*.json")):
            try:
                record = json.loads(path.read_text(encoding="utf-8"))
                config = TrainConfig.from_json(record["settings"])
                _ = record["name"], record["knn"]["last"], record["evaluation"], record["knn_by_epoch"]
                self.all.append(Result(path, record, config))
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                self.damaged[path] = f"{type(error).__name__}: {error}"

    def of(self, config: TrainConfig) -> list[Result]:
        """Of this run, with any seed, by seed."""
        wanted = _but(config, "seed")
        return self._where(lambda result: _but(result.config, "seed") == wanted)

    def stale(self, config: TrainConfig) -> list[Result]:
        """By name this run's, but of settings that its recipe no longer has."""
        current = self.of(config)
        return self._where(
            lambda result: result not in current and result.name == replace(config, seed=result.config.seed).run_name()
        )

    def short(self, config: TrainConfig) -> list[Result]:
        """Of this run with fewer epochs, the longest last."""
        wanted = _but(config, "seed", "epochs", "warmup_epochs")
        found = self._where(
            lambda result: (
                _but(result.config, "seed", "epochs", "warmup_epochs") == wanted
                and result.config.epochs < config.epochs
            )
        )
        return sorted(found, key=lambda result: result.config.epochs)

    def seconds(self, config: TrainConfig) -> float | None:
        """How long this run may take, by the fastest of the nearest records: of this network, this method if any."""
        like = [result for result in self.all if result.config.network == config.network and result.record["seconds"]]
        same = [result for result in like if result.config.method == config.method] or like
        near = min((abs(result.config.batch_size - config.batch_size) for result in same), default=0)
        paces = [
            result.record["seconds"] / result.config.epochs / _IMAGES.get(result.config.data, 50_000)
            for result in same
            if abs(result.config.batch_size - config.batch_size) == near
        ]
        return min(paces) * config.epochs * _IMAGES.get(config.data, 50_000) if paces else None

    def _where(self, wanted: Callable[[Result], bool]) -> list[Result]:
        return sorted(filter(wanted, self.all), key=lambda result: result.config.seed)


_IMAGES = {"cifar10": 50_000, "cifar100": 50_000, "svhn": 73_257, "sample": 3_000}


def _but(config: TrainConfig, *names: str) -> dict[str, Any]:
    return {name: value for name, value in config.identity().items() if name not in names}
