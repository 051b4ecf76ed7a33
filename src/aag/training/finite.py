"""Detect NaN and infinity in training without slowing steps, and say what to do."""

from collections.abc import Iterable

import torch
from torch import Tensor

from aag.distributed import any_process
from aag.errors import NotFiniteError
from aag.runs import Run

RETRY_FACTOR = 0.5  # of the learning rate, after a failure


def check_history(history: Tensor, first: int, last: int, epoch: int) -> int:
    """Raise if a statistic of the steps from `first` to `last` is NaN or infinite; else return `last`.

    The statistics stay on the device until this check, so no step waits for them.
    """
    bad = (~torch.isfinite(history[first:last]).all(dim=1)).nonzero()
    if any_process(len(bad) > 0)[0]:
        step = first + int(bad[0]) + 1 if len(bad) else last
        raise NotFiniteError(f"the loss is no longer finite (epoch {epoch + 1}, step {step})")
    return last


def check_state(tensors: Iterable[Tensor]) -> None:
    """Raise if weights, optimizer state or method state are not finite, although the loss was."""
    is_finite = all(bool(torch.isfinite(value).all()) for value in tensors if value.is_floating_point())
    if any_process(not is_finite)[0]:
        raise NotFiniteError("the weights are no longer finite")


def explain_failure(error: NotFiniteError, run: Run | None, on_nan: str, lr_factor: float) -> NotFiniteError:
    """Return an error that also says what was tried, what is kept, and what to do."""
    parts = [str(error).partition(";")[0]]
    if lr_factor < 1:
        parts.append("half the learning rate did not help")
    if run and run.checkpoints():
        retry = " (--on-nan retry resumes from it at half the learning rate)" if on_nan == "stop" else ""
        parts.append(f"the last good checkpoint is in {run.folder}{retry}")
    parts.append("try a lower --lr, --warmup-epochs 10 or --precision fp32, with another --out")
    return NotFiniteError("; ".join(parts))
