"""The paper's tables and figures as data, the runs they need, and ours beside theirs."""

from aag.paper.experiments import PAPER, Cell, Figure, Table, in_short, with_epochs
from aag.paper.results import Result, Results

__all__ = ["PAPER", "Cell", "Figure", "Result", "Results", "Table", "in_short", "with_epochs"]
