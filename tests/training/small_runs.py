"""Runs of seconds, and what they leave behind."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import aag
from aag.runs import Run
from aag.training import TrainResult, checkpoint

DEFAULTS = {
    "width": 4, "epochs": 2, "batch_size": 16, "knn_every": 1, "checkpoint_minutes": 0.0, "device": "cpu",
}  # fmt: skip


@dataclass(frozen=True)
class SmallRuns:
    """Trains a very narrow ResNet-18 for 2 epochs of 6 steps on the 96 + 40 photographs of an .npz."""

    folder: Path
    data: Path

    def train(self, out: str = "run", **changes: Any) -> TrainResult:
        return aag.train(str(self.data), out=self.folder / out, **DEFAULTS | changes)

    @property
    def run(self) -> Run:
        return Run(self.folder / "run")


def stop_after(steps: int) -> Callable[[], bool]:
    """Asks for a stop after this many steps of an epoch; the loop asks before the first step and after each."""
    left = iter(range(steps, -1, -1))
    return lambda: next(left, 0) == 0


def state(run: Run) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    tensors, rest = checkpoint.load(run.checkpoint)
    rest.pop("seconds")
    return tensors, rest


def rows(run: Run) -> list[dict[str, Any]]:
    timing = ("seconds", "views_per_second", "evaluation_seconds", "peak_memory")
    return [{k: v for k, v in row.items() if k not in timing} for row in run.metrics() if row["kind"] != "start"]


def losses(result: TrainResult) -> list[float]:
    return [row["loss"] for row in result.run.metrics() if row["kind"] == "epoch"]


def assert_same(one: Run, other: Run) -> None:
    """Both runs have the same weights, optimizer and method state, position and metrics, bit for bit."""
    (tensors, rest), (other_tensors, other_rest) = state(one), state(other)
    assert rest == other_rest
    assert tensors.keys() == other_tensors.keys()
    assert not [name for name, value in tensors.items() if not torch.equal(value, other_tensors[name])]
    assert rows(one) == rows(other)
