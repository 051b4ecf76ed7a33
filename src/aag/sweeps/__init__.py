"""Sweeps: try several settings on held-out training images, and rank them.

result = aag.sweep("photos/", grid={"lr": [0.03, 0.06], "temperature": [0.1, 0.2]}, epochs=30)
result.best.values  # {"lr": 0.06, "temperature": 0.1}
"""

from aag.sweeps.api import sweep
from aag.sweeps.plan import SweepOptions, SweepPlan
from aag.sweeps.results import SweepResult, SweepRow
from aag.sweeps.runner import SweepRunner

__all__ = ["SweepOptions", "SweepPlan", "SweepResult", "SweepRow", "SweepRunner", "sweep"]
