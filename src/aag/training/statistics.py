"""The statistics of an epoch's steps, as rows of metrics.jsonl."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

LOG_STEPS = 50  # steps that one row of kind "steps" averages


def mean_rows(history: Tensor, names: Sequence[str], position: dict[str, int]) -> list[dict[str, Any]]:
    """Return the means of each LOG_STEPS steps, and last those of the whole epoch.

    history: [steps, names]. position: epochs and steps finished, after this epoch.
    """

    def means(steps: Tensor) -> dict[str, float]:
        return dict(zip(names, steps.mean(dim=0).tolist(), strict=True))

    rows: list[dict[str, Any]] = []
    done = position["step"] - len(history)
    for window in history.split(LOG_STEPS):
        done += len(window)
        rows.append({"kind": "steps", "epoch": position["epoch"], "step": done, **means(window)})
    return [*rows, {"kind": "epoch", **position, **means(history)}]
